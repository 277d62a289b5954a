--- Arguments of a checkpointed segment in host memory: what the graph keeps of each is one element
--- in its shape.

local Function = require 'moonshard.autograd.custom_function'
local create = require 'moonshard.base.create'
local device = require 'moonshard.base.device'
local parameter = require 'moonshard_ffi.parameter'
local scope = require 'moonshard.base.scope'

-- x -> one element in its shape. The gradient of this is that of x.
local Stored = Function.extend 'internal.Stored'

function Stored.forward(_, x)
  return create.zeros({ 1 }, { dtype = x:dtype() }):expand(x:shape())
end

function Stored.backward(_, grad)
  return grad
end

-- That element, and the values -> the values.
local Restored = Function.extend 'internal.Restored'

function Restored.forward(_, _, values)
  return values:clone()
end

function Restored.backward(_, grad)
  return grad, nil
end

local offloaded = {}

--- Is there a device whose memory this saves?
---@return boolean
function offloaded.is_useful()
  return device.kind() ~= 'cpu'
end

--- The function and arguments with the same results that hold no memory of the device, except for
--- parameters.
---@param fn fun(...): ...
---@param args table  with `n`
---@return fun(...): ...
---@return table args
---@return table<integer, ms.Tensor> hosted  values of arguments, for the caller to release
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
    for i, values in next, hosted do -- in any order: they are independent
      given[i] = Restored.apply(given[i], values:to(place))
    end
    return fn(unpack(given, 1, args.n))
  end, out, hosted
end

return offloaded
