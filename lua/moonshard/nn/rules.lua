--- Rules for first values of parameters, and functions that overwrite tensors by them (`nn.init`).
---
--- A rule is data: the runtime applies it to the elements a rank holds, as a function of seed,
--- parameter name and element index. `nn.init.normal_(t, ...)` and its like write at once, into any
--- tensor or parameter, sharded or not, before or after its first use; a parameter without memory
--- gets it. Their random numbers depend on the seed and on how many were drawn since, as those of
--- ms.randn() do, so ranks that make the same calls draw the same whole parameter.

local arguments = require 'moonshard_ffi.arguments'
local autograd = require 'moonshard.autograd'
local errors = require 'moonshard.internal.errors'
local naming = require 'moonshard.internal.naming'
local parameter = require 'moonshard_ffi.parameter'
local random = require 'moonshard.internal.random'
local util = require 'moonshard.internal.util'

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

-- -- in place ------------------------------------------------------------------------------------

local function overwrite(what, tensor, rule)
  arguments.tensor('init.' .. what, 'tensor', tensor)
  autograd.no_grad(parameter.fill, tensor, rule, ('nn.init %d'):format(random.next_tensor()))
  return tensor
end

-- The shape of the whole tensor.
local function shape_of(tensor)
  if parameter.is_parameter(tensor) and parameter.has_values(tensor) then
    return select(2, parameter.part(tensor)).shape
  end
  return parameter.shape(tensor)
end

-- Numbers of inputs and outputs of one element of the result: of a convolution's weight
-- (out, in, ...) times the elements of its window.
local function fans(what, tensor)
  local shape = shape_of(arguments.tensor('init.' .. what, 'tensor', tensor))
  if #shape < 2 then
    errors.raise('ValueError', 'init.%s: fan in and fan out need a tensor of two dimensions or '
      .. 'more, got %d', what, #shape)
  end
  local window = 1
  for d = 3, #shape do
    window = window * shape[d]
  end
  return shape[2] * window, shape[1] * window
end

local GAINS = {
  linear = 1, conv1d = 1, conv2d = 1, conv3d = 1, sigmoid = 1, tanh = 5 / 3, relu = math.sqrt(2),
  selu = 3 / 4,
}

--- The factor by which weights before this nonlinearity grow.
---@param nonlinearity string  'linear', 'conv1d' to 'conv3d', 'sigmoid', 'tanh', 'relu', 'selu' or
---                            'leaky_relu'
---@param slope? number  of leaky_relu (default 0.01)
---@return number
function init.calculate_gain(nonlinearity, slope)
  if nonlinearity == 'leaky_relu' then
    slope = arguments.number('init.calculate_gain', 'slope', slope, 0.01)
    return math.sqrt(2 / (1 + slope * slope))
  elseif not GAINS[nonlinearity] then
    errors.choice('init.calculate_gain', 'nonlinearity', nonlinearity,
      { 'leaky_relu', unpack(util.sorted_keys(GAINS)) })
  end
  return GAINS[nonlinearity]
end

---@param tensor ms.Tensor
---@param low? number  default 0
---@param high? number  default 1
---@return ms.Tensor tensor
function init.uniform_(tensor, low, high)
  return overwrite('uniform_', tensor, init.uniform(low or 0, high or 1))
end

---@param tensor ms.Tensor
---@param mean? number  default 0
---@param deviation? number  default 1
---@return ms.Tensor tensor
function init.normal_(tensor, mean, deviation)
  return overwrite('normal_', tensor, init.normal(mean, deviation))
end

---@param tensor ms.Tensor
---@param value number
---@return ms.Tensor tensor
function init.constant_(tensor, value)
  return overwrite('constant_', tensor, init.constant(value))
end

---@param tensor ms.Tensor
---@return ms.Tensor tensor
function init.zeros_(tensor)
  return overwrite('zeros_', tensor, init.zeros())
end

---@param tensor ms.Tensor
---@return ms.Tensor tensor
function init.ones_(tensor)
  return overwrite('ones_', tensor, init.ones())
end

--- Glorot and Bengio 2010.
---@param tensor ms.Tensor  of two dimensions or more
---@param gain? number  default 1
---@return ms.Tensor tensor
function init.xavier_uniform_(tensor, gain)
  local fan_in, fan_out = fans('xavier_uniform_', tensor)
  return overwrite('xavier_uniform_', tensor, init.xavier_uniform(fan_in, fan_out, gain))
end

--- The same with a normal distribution.
---@param tensor ms.Tensor  of two dimensions or more
---@param gain? number  default 1
---@return ms.Tensor tensor
function init.xavier_normal_(tensor, gain)
  local fan_in, fan_out = fans('xavier_normal_', tensor)
  gain = arguments.number('init.xavier_normal_', 'gain', gain, 1)
  return overwrite('xavier_normal_', tensor,
    init.normal(0, gain * math.sqrt(2 / (fan_in + fan_out))))
end

---@class ms.nn.init.KaimingOptions
---@field a? number  slope of leaky_relu (default 0)
---@field mode? 'fan_in'|'fan_out'  default 'fan_in'
---@field nonlinearity? string  as calculate_gain() takes it (default 'leaky_relu')

local function kaiming_deviation(what, tensor, opts)
  opts = errors.options('init.' .. what, opts,
    { a = 'number', mode = 'text', nonlinearity = 'text' })
  local fan_in, fan_out = fans(what, tensor)
  local mode = opts.mode or 'fan_in'
  if mode ~= 'fan_in' and mode ~= 'fan_out' then
    errors.choice('init.' .. what, 'mode', mode, { 'fan_in', 'fan_out' })
  end
  local gain = init.calculate_gain(opts.nonlinearity or 'leaky_relu', opts.a or 0)
  return gain / math.sqrt(mode == 'fan_in' and fan_in or fan_out)
end

--- arXiv:1502.01852
---@param tensor ms.Tensor  of two dimensions or more
---@param opts? ms.nn.init.KaimingOptions
---@return ms.Tensor tensor
function init.kaiming_uniform_(tensor, opts)
  local bound = math.sqrt(3) * kaiming_deviation('kaiming_uniform_', tensor, opts)
  return overwrite('kaiming_uniform_', tensor, init.uniform(-bound, bound))
end

--- The same with a normal distribution.
---@param tensor ms.Tensor  of two dimensions or more
---@param opts? ms.nn.init.KaimingOptions
---@return ms.Tensor tensor
function init.kaiming_normal_(tensor, opts)
  return overwrite('kaiming_normal_', tensor,
    init.normal(0, kaiming_deviation('kaiming_normal_', tensor, opts)))
end

return naming.space('nn.init', init)
