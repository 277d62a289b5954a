--- Forward and backward hooks of a module, called in order of registration. Arguments and results
--- of hooks have PyTorch's form: arguments and several results are arrays, one result is passed as
--- itself.

local BackwardPass = require 'moonshard.nn.backward_hooks'
local Hook = require 'moonshard.base.hook'
local arguments = require 'moonshard_ffi.arguments'
local capture = require 'moonshard.base.capture'
local errors = require 'moonshard.base.errors'

local hooks = {
  --- Fields that hold the hooks of a module.
  FIELDS = { '_pre_hooks', '_post_hooks', '_backward_pre_hooks', '_backward_hooks' },
}

local function pack(...)
  return { n = select('#', ...), ... }
end

-- A table without array entries is one value.
local function is_array(value)
  return type(value) == 'table' and getmetatable(value) == nil
    and (value.n ~= nil or value[1] ~= nil or next(value) == nil)
end

-- A copy, because a hook may remove itself while it runs.
local function registered(module, field)
  return { unpack(rawget(module, field) or {}) }
end

--- Does the module have hooks?
---@param module ms.nn.Module
function hooks.any(module)
  return rawget(module, '_pre_hooks') or rawget(module, '_post_hooks')
    or rawget(module, '_backward_pre_hooks') or rawget(module, '_backward_hooks')
end

local function backward_pass(module)
  if rawget(module, '_backward_pre_hooks') or rawget(module, '_backward_hooks') then
    return BackwardPass(module, registered(module, '_backward_pre_hooks'),
      registered(module, '_backward_hooks'))
  end
end

--- Call `module:forward(...)` and the hooks before and after it.
---@param module ms.nn.Module
---@return ...
function hooks.forward(module, ...)
  capture.breaks 'a module has hooks'
  local args = pack(...)
  for _, hook in ipairs(registered(module, '_pre_hooks')) do
    local given = hook.fn(module, args)
    if given ~= nil then
      args = is_array(given) and given or { given }
    end
  end
  local pass = backward_pass(module)
  if pass then
    args = pass:inputs(args)
  end
  local results = pack(module:forward(unpack(args, 1, args.n or #args)))
  for _, hook in ipairs(registered(module, '_post_hooks')) do
    local output = results
    if results.n < 2 then
      output = results[1]
    end
    local given = hook.fn(module, args, output)
    if results.n > 1 and is_array(given) then
      results = pack(unpack(given, 1, given.n or #given))
    elseif given ~= nil then
      results = pack(given)
    end
  end
  if pass then
    results = pass:outputs(results)
  end
  return unpack(results, 1, results.n)
end

local next_id = 0

--- Append a hook to the list in `field`; with `prepend`, insert it first.
---@param module ms.nn.Module
---@param what string  the method, for errors
---@param field '_pre_hooks'|'_post_hooks'|'_backward_pre_hooks'|'_backward_hooks'
---@param fn fun(...)
---@param opts? { prepend?: boolean }
---@return ms.Hook
function hooks.register(module, what, field, fn, opts)
  arguments.fn(what, 'fn', fn)
  opts = errors.options(what, opts, { prepend = 'flag' })
  local list = rawget(module, field) or {}
  rawset(module, field, list)
  next_id = next_id + 1
  local id = next_id
  table.insert(list, opts.prepend and 1 or #list + 1, { id = id, fn = fn })
  return Hook(function()
    for i = #list, 1, -1 do
      if list[i].id == id then
        table.remove(list, i)
      end
    end
    if #list == 0 and rawget(module, field) == list then
      rawset(module, field, nil)
    end
  end)
end

return hooks
