--- Offloads arguments of a checkpointed segment to host memory. The graph keeps a tensor with the
--- argument's shape and the memory of one element.

local Function = require 'moonshard.autograd.custom_function'
local create = require 'moonshard.base.create'
local device = require 'moonshard.base.device'
local parameter = require 'moonshard_ffi.parameter'
local scope = require 'moonshard.base.scope'

-- x -> a tensor of its shape with the memory of one element. Passes the gradient unchanged.
local Stored = Function.extend 'internal.Stored'

function Stored.forward(_, x)
  return create.zeros({ 1 }, { dtype = x:dtype() }):expand(x:shape())
end

function Stored.backward(_, grad)
  return grad
end

-- That tensor and the values -> the values.
local Restored = Function.extend 'internal.Restored'

function Restored.forward(_, _, values)
  return values:clone()
end

function Restored.backward(_, grad)
  return grad, nil
end

local offloaded = {}

--- Does the process have a device whose memory this saves?
---@return boolean
function offloaded.is_useful()
  return device.kind() ~= 'cpu'
end

--- A function and arguments with the same results that hold no device memory, except for
--- parameters.
---@param fn fun(...): ...
---@param args table  with `n`
---@return fun(...): ...
---@return table args
---@return table<integer, ms.Tensor> hosted  values of arguments, which the caller releases
function offloaded.of(fn, args)
  local hosted, out = {}, { n = args.n }
  for i = 1, args.n do
    out[i] = args[i]
    if parameter.is_tensor(args[i]) and not parameter.is_parameter(args[i]) then
      hosted[i] = scope.keep(args[i]:detach():to('cpu'))
      out[i] = Stored.apply(args[i])
    end
  end
  return function(...)
    local given, place = { ... }, device.name()
    for i, values in next, hosted do -- the order does not matter
      given[i] = Restored.apply(given[i], values:to(place))
    end
    return fn(unpack(given, 1, args.n))
  end, out, hosted
end

return offloaded
