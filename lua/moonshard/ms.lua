--- The table `ms` that `require 'moonshard'` returns.

local MODULE = ...
local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local autograd = require 'moonshard.autograd'
local capture = require 'moonshard.base.capture'
local create = require 'moonshard.base.create'
local device = require 'moonshard.base.device'
local dtype = require 'moonshard.base.dtype'
local errors = require 'moonshard.base.errors'
local json = require 'moonshard.base.json'
local namespace = require 'moonshard.base.namespace'
local ops = require 'moonshard.ops'
local parameter = require 'moonshard_ffi.parameter'
local random = require 'moonshard.base.random'
local scope = require 'moonshard.base.scope'
require 'moonshard.tensor'
local util = require 'moonshard.base.util'

local C = B.C

---@class ms
---@field version string
---@field bf16 ms.DType  a dtype's name, as the fields below
---@field f16 ms.DType
---@field f32 ms.DType
---@field f64 ms.DType
---@field i32 ms.DType
---@field i64 ms.DType
---@field u8 ms.DType
---@field bool ms.DType
local ms = {
  version = B.string(C.ms_version()),
  class = require 'moonshard.base.class',
  errors = namespace.space('ms.errors', util.merged(errors)),
  json = namespace.space('ms.json', util.merged(json)),
  device = namespace.space('ms.device', { available = device.available, info = device.info }),
  ops = namespace.space('ms.ops', util.merged(ops)),
  autograd = namespace.space('ms.autograd', util.merged(autograd),
    { Function = 'moonshard.autograd.custom_function' }),
}

for _, name in ipairs(dtype.names) do
  ms[name] = name
end
for _, functions in ipairs {
  create, require 'moonshard.base.machine', require 'moonshard.base.memory',
} do
  for name, fn in next, functions do
    ms[name] = fn
  end
end

-- ms.device(kind, index) is device.use.
getmetatable(ms.device).__call = function(_, kind, index)
  return device.use(kind, index)
end

ms.manual_seed = random.manual_seed
ms.get_rng_state, ms.set_rng_state = random.get_rng_state, random.set_rng_state
ms.no_grad = autograd.no_grad
ms.enable_grad = autograd.enable_grad
ms.is_grad_enabled = autograd.is_grad_enabled
ms.cat, ms.stack = ops.cat, ops.stack
ms.matmul = ops.matmul
ms.where, ms.all, ms.any = ops.where, ops.all, ops.any
ms.equal, ms.allclose = ops.equal, ops.allclose
ms.scope, ms.keep = scope.block, scope.keep
ms.error = errors.raise
ms.warn = errors.warn
ms.capture_warnings = errors.capture_warnings

--- Is this value a tensor?
---@type fun(value: any): boolean
ms.is_tensor = B.is_ref

--- Is `object` an instance of `class`, of a subclass, or of a class that has `class` as a mixin
--- (fsdp.FSDPModule)?
---@param object any
---@param class ms.Class
---@return boolean
function ms.is(object, class)
  if type(class) ~= 'table' or type(rawget(class, '_name')) ~= 'string' then
    arguments.refuse('ms.is', 'class', class, 'a class')
  end
  return util.is(object, class)
end

--- Print the reference of a name ('nn.Linear', 'Tensor:cumsum'), tensor, public function, class or
--- instance; for a namespace ('ops') its names; without an argument an overview. KeyError suggests
--- the nearest names.
---@param what? any
function ms.help(what)
  local reference = require 'moonshard.reference'
  reference.use(ms, MODULE)
  print(reference.help(what))
end

--- Release unreferenced tensors immediately.
ms.collect = B.collect

--- Free everything that the runtime has allocated. Tensors become stale. Raises a device error that
--- was not reported yet. The runtime is closed in any case.
function ms.close()
  if B.state.depth > 0 then
    errors.raise('RuntimeError', 'close: a scope is open')
  end
  B.collect()
  local status = C.ms_close() -- a hook, in which this closes nothing, runs in a scope
  parameter.forget_managers()
  errors.check(status)
end

local lazy = {}
for _, name in ipairs {
  'nn', 'models', 'optim', 'fsdp', 'data', 'schedule', 'checkpoint', 'dist', 'amp', 'ema',
  'parallel', 'train',
} do
  lazy[name] = 'moonshard.' .. name
end
for _, name in ipairs { 'compile', 'compile_report', 'compile_step', 'custom_op' } do
  lazy[name] = 'moonshard.compile'
end

function capture.compile_module(module, opts)
  return require('moonshard.compile').compile_module(module, opts)
end

return namespace.space('ms', ms, lazy)
