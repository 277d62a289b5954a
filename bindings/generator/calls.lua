--- Lua callers of the shims, and of functions with a handle and numbers. A caller checks the
--- operands, makes the ref to return, calls, raises an error on failure, and lets the collector own
--- the ref if no scope does.
---
--- They are generated because they are on the hot path and all alike. Each makes one FFI call.

local is_retried = require 'generator.retried'

local calls = {}

--- Functions that add an owner to an existing handle, which no scope will release.
local GIVE_OWNER = { ms_optim_param = true, ms_tensor_parameter = true }
--- Parameter names that are reserved in Lua or used by the callers themselves.
local TAKEN = {
  ['in'] = true, ['local'] = true, ['end'] = true, ['function'] = true, C = true, Ref = true,
  M = true, state = true, own = true, failed = true, again = true, no_tensor = true, type = true,
  find = true, out = true, status = true, istype = true, handle = true, bad_scalar = true,
  bad_handle = true,
}

-- Ranges of integers that Lua may pass, by C type.
local RANGES = {
  int32_t = { '-0x80000000', '0x7fffffff' },
  uint32_t = { '0', '0xffffffff' },
  int64_t = { '-0x20000000000000', '0x20000000000000' },
}

-- Method names that differ from the C names, for messages.
local METHODS = {
  tensor_add_scaled = 'add_', tensor_copy = 'copy_', tensor_fill = 'fill_',
  tensor_set_requires_grad = 'requires_grad_',
}

-- moonshard_ffi/calls.lua compiles a function when it is first used, behind these lines.
local HEAD = [[
-- Generated from the public headers by bindings/generate.lua.
local C, ffi, state, own, failed, again, arguments, handle = ...
local type, istype, find = type, ffi.istype, string.find
local no_tensor, bad_scalar = arguments.no_tensor, arguments.bad_scalar
local bad_handle = arguments.bad_handle
local Ref = ffi.typeof 'ms_ref'
local M = {}
]]

-- The condition under which C cannot accept a plain argument, and the call that raises then; nil
-- for pointers that only the bindings pass.
local function plain_check(p, label, opaque)
  local bare = p.type:gsub('const', ''):gsub('%s+', '')
  local range = RANGES[bare]
  local raising = ("bad_scalar('%s', '%s', %s, '%s')"):format(label, p.name, p.lua,
    bare:gsub('%*', ''))
  if range then
    return ("type(%s) ~= 'number' or not (%s >= %s and %s <= %s) or %s %% 1 ~= 0"):format(p.lua,
      p.lua, range[1], p.lua, range[2], p.lua), raising
  elseif bare == 'uint64_t' then
    return ("type(%s) ~= 'number' and not istype('uint64_t', %s)"):format(p.lua, p.lua), raising
  elseif bare == 'double' or bare == 'float' then
    return ("type(%s) ~= 'number'"):format(p.lua), raising
  elseif bare == 'bool' then
    return ("type(%s) ~= 'boolean'"):format(p.lua), raising
  elseif bare == 'char*' then
    return ("type(%s) ~= 'string' or find(%s, '\\0', 1, true)"):format(p.lua, p.lua), raising
  end
  local struct = bare:match('^([%w_]+)%*$')
  if struct and opaque[struct] then
    return ('not istype(handle.%s, %s)'):format(struct, p.lua),
      ("bad_handle('%s', '%s', %s, '%s')"):format(label, p.name, p.lua, struct)
  end
end

-- May it run operators, whose position in the script a recording notes?
local function takes_tensors(shim)
  local takes = shim.gives
  for _, p in ipairs(shim.params) do
    takes = takes or p.role == 'in'
  end
  return takes
end

---@param list ms.gen.Shim[]
---@param opaque table<string, boolean>  structs that scripts use only through handles
---@return string
function calls.source(list, opaque)
  local out = { HEAD }
  local say = function(...)
    out[#out + 1] = (...):format(select(2, ...)) .. '\n'
  end
  for _, shim in ipairs(list) do
    local name = shim.name:gsub('^msf?_', '')
    local label = METHODS[name] or name:gsub('^tensor_', ''):gsub('^comm_', '')
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
        say("  if not istype(Ref, %s)%s then no_tensor('%s', '%s', %s) end", p.lua,
          p.nullable and (' and %s ~= nil'):format(p.lua) or '', label, p.name, p.lua)
      elseif p.role == 'plain' then
        local refused, raising = plain_check(p, label, opaque)
        if refused then
          say('  if %s then', refused)
          say('    %s', raising)
          say('  end')
        end
      end
    end
    if shim.gives then
      say('  local out = Ref()')
    end
    if takes_tensors(shim) then
      say('  if state.at then state.at() end')
    end
    say('  local status = C.%s(%s)', shim.name, args)
    if is_retried(shim) then
      say("  if status ~= 0 then again(status, '%s', %s) end", shim.name, args)
    else
      say('  if status ~= 0 then failed(status) end')
    end
    if shim.gives then
      if shim.params[1].nullable then
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
  return table.concat(out)
end

return calls
