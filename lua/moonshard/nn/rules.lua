--- Rules for initial values of parameters, and functions that overwrite tensors (`nn.init`).
---
--- A rule is data. The runtime applies it to the elements that a rank holds, as a function of seed,
--- parameter name and element index. `nn.init.normal_(t, ...)` and the other in-place functions
--- write immediately into any tensor or parameter, sharded or not, before or after its first use;
--- they allocate a parameter that has no memory. Like those of ms.randn(), their random numbers
--- depend on the seed and on the number of tensors drawn since, so ranks that make the same calls
--- draw the same parameter.

local arguments = require 'moonshard_ffi.arguments'
local autograd = require 'moonshard.autograd'
local create = require 'moonshard.base.create'
local errors = require 'moonshard.base.errors'
local namespace = require 'moonshard.base.namespace'
local parameter = require 'moonshard_ffi.parameter'
local ops = require 'moonshard.ops'
local random = require 'moonshard.base.random'
local scope = require 'moonshard.base.scope'
local util = require 'moonshard.base.util'

---@class ms.nn.init
local init = {}

--- All elements 0.
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

--- The default of PyTorch's Linear: uniform within 1/sqrt(fan_in) (kaiming_uniform with a =
--- sqrt(5), arXiv:1502.01852).
---@param fan_in integer
---@return ms.nn.InitRule
function init.fan_in_uniform(fan_in)
  arguments.number('init.fan_in_uniform', 'fan_in', fan_in)
  local bound = fan_in > 0 and 1 / math.sqrt(fan_in) or 0
  return init.uniform(-bound, bound)
end

--- Glorot's uniform rule (Glorot and Bengio, 2010).
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

--- Overwrite a tensor that has memory with a rule's values.
---@param tensor ms.Tensor
---@param rule ms.nn.InitRule
---@param name string  determines the random stream
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

-- The shape of the whole tensor, also if this rank holds a shard.
local function shape_of(tensor)
  local manager = parameter.manager(tensor)
  return manager and manager:_whole_shape(tensor) or parameter.shape(tensor)
end

-- fan_in and fan_out. Those of a convolution's weight (out, in, ...) include the window's elements.
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

--- The recommended gain of weights before this nonlinearity.
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

--- Glorot's uniform rule (Glorot and Bengio, 2010).
---@param tensor ms.Tensor  of two dimensions or more
---@param gain? number  default 1
---@return ms.Tensor tensor
function init.xavier_uniform_(tensor, gain)
  local fan_in, fan_out = fans('xavier_uniform_', tensor)
  return overwrite('xavier_uniform_', tensor, init.xavier_uniform(fan_in, fan_out, gain))
end

--- Glorot's normal rule.
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

--- Kaiming's uniform rule (arXiv:1502.01852).
---@param tensor ms.Tensor  of two dimensions or more
---@param opts? ms.nn.init.KaimingOptions
---@return ms.Tensor tensor
function init.kaiming_uniform_(tensor, opts)
  local bound = math.sqrt(3) * kaiming_deviation('kaiming_uniform_', tensor, opts)
  return overwrite('kaiming_uniform_', tensor, init.uniform(-bound, bound))
end

--- Kaiming's normal rule.
---@param tensor ms.Tensor  of two dimensions or more
---@param opts? ms.nn.init.KaimingOptions
---@return ms.Tensor tensor
function init.kaiming_normal_(tensor, opts)
  return overwrite('kaiming_normal_', tensor,
    init.normal(0, kaiming_deviation('kaiming_normal_', tensor, opts)))
end

-- The inverse of erf() in f64: Giles' (2010) approximation for f32, refined by Newton's method.
local CENTRE = {
  2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
  -0.00417768164, 0.246640727, 1.50140941,
}
local TAIL = {
  -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
  0.00943887047, 1.00167406, 2.83297682,
}

local function polynomial(factors, x)
  local p = x * 0
  for _, factor in ipairs(factors) do
    p = p * x + factor
  end
  return p
end

local function inverse_erf(y)
  local w = -((1 - y) * (1 + y)):log()
  local x = y * ops.where(w:lt(5), polynomial(CENTRE, w - 2.5), polynomial(TAIL, w:sqrt() - 3))
  for _ = 1, 2 do
    x = x - (x:erf() - y) * (x * x):exp() * (math.sqrt(math.pi) / 2)
  end
  return x
end

-- Map the bounds through the distribution function, draw uniform values between them, map back.
local function draw_between(tensor, mean, deviation, low, high)
  local function image(bound)
    local z = (bound - mean) / deviation / math.sqrt(2)
    return create.full({ 1 }, z, { dtype = 'f64' }):erf():item()
  end
  overwrite('trunc_normal_', tensor, init.uniform(image(low), image(high)))
  local most = 1 - 2 ^ -53 -- its inverse is finite
  local normal = inverse_erf(tensor:detach():to('f64'):clamp(-most, most))
  tensor:copy_((normal * (deviation * math.sqrt(2)) + mean):clamp(low, high):to(tensor:dtype()))
end

--- Values of a normal distribution truncated to [low, high].
---@param tensor ms.Tensor
---@param mean? number  default 0
---@param deviation? number  default 1; must be above 0
---@param low? number  default -2
---@param high? number  default 2; must be above `low`
---@return ms.Tensor tensor
function init.trunc_normal_(tensor, mean, deviation, low, high)
  local function number(name, value, default)
    return arguments.number('init.trunc_normal_', name, value, default)
  end
  arguments.tensor('init.trunc_normal_', 'tensor', tensor)
  mean, deviation = number('mean', mean, 0), number('deviation', deviation, 1)
  low, high = number('low', low, -2), number('high', high, 2)
  if deviation <= 0 or deviation ~= deviation then
    errors.raise('ValueError', "init.trunc_normal_: 'deviation' is %g, expected more than 0",
      deviation)
  elseif low >= high or low ~= low or high ~= high then
    errors.raise('ValueError', "init.trunc_normal_: 'high' is %g, expected more than %g ('low')",
      high, low)
  elseif mean < low - 2 * deviation or mean > high + 2 * deviation then
    errors.warn('UserWarning', 'mean is more than 2 std from [a, b] in init.trunc_normal_. The '
      .. 'distribution of values may be incorrect.')
  end
  autograd.no_grad(scope.block, draw_between, tensor, mean, deviation, low, high)
  return tensor
end

-- Write this rank's elements of `whole`, which has the full shape.
local function write(what, tensor, whole)
  overwrite(what, tensor, init.zeros())
  local shape, n, start = parameter.shape(tensor), tensor:numel(), 0
  if n ~= whole:numel() then
    start = select(2, parameter.part(tensor)).start
  end
  local part = whole:reshape(-1):narrow(1, start + 1, n)
  tensor:copy_(part:reshape(shape):to(tensor:dtype()))
end

local function matrix_shape(what, tensor, least)
  local shape = shape_of(arguments.tensor('init.' .. what, 'tensor', tensor))
  if #shape < 2 or least == 'exactly' and #shape > 2 then
    errors.raise('ValueError', 'init.%s: the tensor has %d dimensions, expected 2%s', what, #shape,
      least == 'exactly' and '' or ' or more')
  end
  return shape
end

--- Ones on the diagonal, zeros elsewhere.
---@param tensor ms.Tensor  of two dimensions
---@return ms.Tensor tensor
function init.eye_(tensor)
  local shape = matrix_shape('eye_', tensor, 'exactly')
  autograd.no_grad(scope.block, function()
    local rows, columns = create.arange(shape[1]):unsqueeze(2), create.arange(shape[2])
    write('eye_', tensor, rows:eq(columns):to('f32'))
  end)
  return tensor
end

local BLOCK = 32

-- Remove from x its components along the orthonormal rows of `basis`; twice, because of rounding.
local function without(x, basis)
  for _ = 1, 2 do
    x = x - ops.matmul(ops.matmul(x, basis:transpose(1, 2)), basis)
  end
  return x
end

-- Gram-Schmidt in blocks of rows: orthonormal rows with the span of the rows of x (n, m), n <= m.
-- Each has a positive component along its original row.
local function orthonormal_rows(x)
  local done
  for first = 1, x:size(1), BLOCK do
    local count = math.min(BLOCK, x:size(1) - first + 1)
    local rows, block = x:narrow(1, first, count), nil
    rows = done and without(rows, done) or rows
    for i = 1, count do
      local row = rows:narrow(1, i, 1)
      row = block and without(row, block) or row
      row = row / (row * row):sum():sqrt()
      block = block and ops.cat({ block, row }, 1) or row
    end
    done = done and ops.cat({ done, block }, 1) or block
  end
  return done
end

--- A random matrix (d1, d2 d3 ...) with orthonormal rows, or columns if there are fewer columns,
--- uniformly distributed and scaled by `gain` (arXiv:1312.6120). Each rank computes the whole
--- matrix in f64.
---@param tensor ms.Tensor  of two dimensions or more
---@param gain? number  default 1
---@return ms.Tensor tensor
function init.orthogonal_(tensor, gain)
  local shape = matrix_shape('orthogonal_', tensor)
  gain = arguments.number('init.orthogonal_', 'gain', gain, 1)
  local numel = util.product(shape)
  if numel == 0 then
    return tensor
  end
  autograd.no_grad(scope.block, function()
    local rows, columns = shape[1], numel / shape[1]
    local least, most = math.min(rows, columns), math.max(rows, columns)
    local x = overwrite('orthogonal_', create.zeros({ least, most }, { dtype = 'f64' }),
      init.normal())
    x = orthonormal_rows(x) * gain
    write('orthogonal_', tensor, rows <= columns and x or x:transpose(1, 2))
  end)
  return tensor
end

return namespace.space('nn.init', init)
