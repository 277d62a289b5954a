--- The Lua callers of the shims: check operands, make the ref that comes back, call, raise what
--- failed, and give the ref to the collector when no scope owns it.
---
--- They are generated because they are the hot path and all alike; each is one FFI call.

local calls = {}

--- Functions that may give no tensor and succeed: their callers return nil then.
local MAY_GIVE_NONE = { ms_tensor_grad = true, ms_param_local = true, ms_optim_state = true }
--- These give a further owner of a handle that exists already, which no scope will release.
local GIVE_OWNER = { ms_optim_param = true, ms_tensor_parameter = true }
--- Names C allows for a parameter and Lua does not, and those the callers use themselves.
local TAKEN = {
  ['in'] = true, ['local'] = true, ['end'] = true, ['function'] = true, C = true, Ref = true,
  M = true, state = true, own = true, failed = true, no_tensor = true, type = true, out = true,
  status = true,
}

local HEAD = [[
-- Generated from the public headers by bindings/generate.lua.
return function(C, Ref, state, own, failed, no_tensor)
local type = type
local M = {}
]]

---@param list ms.gen.Shim[]
---@return string
function calls.source(list)
  local out = { HEAD }
  local say = function(...)
    out[#out + 1] = (...):format(select(2, ...)) .. '\n'
  end
  for _, shim in ipairs(list) do
    local name = shim.name:gsub('^msf_', '')
    local label = name:gsub('^tensor_', '')
    local params = {}
    for _, p in ipairs(shim.params) do
      if p.role ~= 'out' then
        p.lua = TAKEN[p.name] and p.name .. '_' or p.name
        params[#params + 1] = p.lua
      end
    end
    local names = table.concat(params, ', ')
    local args = shim.gives and (#params > 0 and 'out, ' .. names or 'out') or names
    say('')
    say('function M.%s(%s)', name, names)
    for _, p in ipairs(shim.params) do
      if p.role == 'in' then
        say("  if type(%s) ~= 'cdata'%s then no_tensor('%s', '%s', %s) end", p.lua,
          p.optional and (' and %s ~= nil'):format(p.lua) or '', label, p.name, p.lua)
      end
    end
    if shim.gives then
      say('  local out = Ref()')
    end
    say('  local status = C.%s(%s)', shim.name, args)
    say("  if status ~= 0 then failed(status, '%s', %s) end", shim.name, args)
    if shim.gives then
      if MAY_GIVE_NONE[shim.original] then
        say('  if out.ptr == nil then return nil end')
      end
      if GIVE_OWNER[shim.original] then
        say('  own(out)')
      else
        say('  if state.depth == 0 then own(out) end')
      end
      say('  return out')
    end
    say('end')
  end
  say('')
  say('return M')
  say('end')
  return table.concat(out)
end

return calls
