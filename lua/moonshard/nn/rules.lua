--- Rules for first values of parameters (`nn.init`). A rule is data: the runtime applies it to the
--- elements a rank holds, as a function of seed, parameter name and element index.
---
--- Touches: moonshard.errors, moonshard_ffi.parameter.

local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.internal.errors'
local naming = require 'moonshard.internal.naming'
local parameter = require 'moonshard_ffi.parameter'

---@class ms.nn.init
local init = {}

--- Leave the memory zero.
---@return ms.nn.InitRule
function init.zeros()
  return { kind = 'constant', a = 0 }
end

---@return ms.nn.InitRule
function init.ones()
  return { kind = 'constant', a = 1 }
end

---@param value number
---@return ms.nn.InitRule
function init.constant(value)
  arguments.number('init.constant', 'value', value)
  return { kind = 'constant', a = value }
end

--- Uniform in [low, high). ValueError when high is below low.
---@param low number
---@param high number
---@return ms.nn.InitRule
function init.uniform(low, high)
  arguments.number('init.uniform', 'low', low)
  arguments.number('init.uniform', 'high', high)
  if low ~= low or high ~= high or low > high then
    errors.raise('ValueError', "init.uniform: 'high' is %g, expected %g ('low') or more", high, low)
  end
  return { kind = 'uniform', a = low, b = high }
end

---@param mean? number  default 0
---@param deviation? number  default 1; ValueError below 0
---@return ms.nn.InitRule
function init.normal(mean, deviation)
  mean = arguments.number('init.normal', 'mean', mean, 0)
  deviation = arguments.number('init.normal', 'deviation', deviation, 1)
  if deviation ~= deviation or deviation < 0 then
    errors.raise('ValueError', "init.normal: 'deviation' is %g, expected 0 or more", deviation)
  end
  return { kind = 'normal', a = mean, b = deviation }
end

--- What PyTorch's Linear begins with: uniform within 1/sqrt(fan_in)
--- (kaiming_uniform with a = sqrt(5), arXiv:1502.01852).
---@param fan_in integer
---@return ms.nn.InitRule
function init.fan_in_uniform(fan_in)
  arguments.number('init.fan_in_uniform', 'fan_in', fan_in)
  local bound = fan_in > 0 and 1 / math.sqrt(fan_in) or 0
  return init.uniform(-bound, bound)
end

--- Glorot's uniform rule (Glorot and Bengio 2010).
---@param fan_in integer
---@param fan_out integer
---@param gain? number  default 1
---@return ms.nn.InitRule
function init.xavier_uniform(fan_in, fan_out, gain)
  arguments.number('init.xavier_uniform', 'fan_in', fan_in)
  arguments.number('init.xavier_uniform', 'fan_out', fan_out)
  gain = arguments.number('init.xavier_uniform', 'gain', gain, 1)
  local bound = gain * math.sqrt(6 / (fan_in + fan_out))
  return init.uniform(-bound, bound)
end

--- Overwrite a tensor that has memory by a rule.
---@param tensor ms.Tensor
---@param rule ms.nn.InitRule
---@param name string  keys the random stream
---@return ms.Tensor tensor
function init.apply_(tensor, rule, name)
  arguments.tensor('init.apply_', 'tensor', tensor)
  arguments.rule('init.apply_', 'rule', rule)
  if rule.kind ~= 'constant' and (type(name) ~= 'string' or name == '') then
    errors.raise('ValueError', 'a %s rule needs the name that keys its random stream', rule.kind)
  end
  parameter.fill(tensor, rule, name or '')
  return tensor
end

return naming.space('nn.init', init)
