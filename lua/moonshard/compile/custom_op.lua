--- Operators of the script that a compiled function does not look into.

local arguments = require 'moonshard_ffi.arguments'
local capture = require 'moonshard.base.capture'
local errors = require 'moonshard.base.errors'
local scope = require 'moonshard.base.scope'

local registered = {} ---@type table<string, boolean>

local function check_name(name)
  arguments.text('custom_op', 'name', name)
  if not name:find '^[%w_]+::[%w_]+$' then
    errors.raise('ValueError', "custom_op: the name is '%s', expected a namespace and a name: "
      .. "'mylib::add_one'", name)
  elseif registered[name] then
    errors.raise('RuntimeError', "custom_op: '%s' is registered already; use another name", name)
  end
end

-- `args`: the arguments of fn with their number in n. Returns nothing.
local function call(name, fn, args)
  scope.run(name, fn, unpack(args, 1, args.n))
end

local function count_results(name, ...)
  if select('#', ...) > 0 then
    capture.breaks(("the custom operator '%s' returned a value"):format(name))
  end
  return ...
end

--- Register a function as an operator, and return a callable that runs it. A compiled function does
--- not look into an operator that only changes its arguments: each replay calls `fn` with the
--- tensors of the replay. An operator that returns values cannot be captured.
---@param name string  'namespace::name', used once
---@param opts { mutates: string[] }  mutates: names of the arguments that `fn` writes to
---@param fn fun(...): ...
---@return fun(...): ...
local function custom_op(name, opts, fn)
  check_name(name)
  opts = errors.options('custom_op', opts, { mutates = 'list' })
  for i, argument in ipairs(opts.mutates or {}) do
    arguments.text('custom_op', ('mutates[%d]'):format(i), argument)
  end
  arguments.fn('custom_op', 'fn', fn)
  registered[name] = true
  local mutates = opts.mutates ~= nil and opts.mutates[1] ~= nil
  return function(...)
    local recording = capture.active()
    if not recording then
      return fn(...)
    elseif not mutates then
      return count_results(name, fn(...))
    end
    recording:step(name, call, name, fn, { n = select('#', ...), ... })
  end
end

return custom_op
