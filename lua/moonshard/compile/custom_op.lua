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

-- `args`: the arguments of fn with their number in n.
local function call(name, fn, args)
  return scope.run(name, fn, unpack(args, 1, args.n))
end

--- Register a function as an operator, and return a callable that runs it. A compiled function does
--- not look into an operator: each replay calls `fn` with the tensors of the replay. It may return
--- new tensors, of the same shapes, strides and dtypes each time; a replay in which they differ is
--- a RuntimeError. Gradients pass through what `fn` returns, as without compile.
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
  return function(...)
    if not capture.active() then
      return fn(...)
    end
    return capture.step(name, call, name, fn, { n = select('#', ...), ... })
  end
end

return custom_op
