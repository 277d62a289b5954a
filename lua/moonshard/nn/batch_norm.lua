--- The base of batch normalisations (arXiv:1502.03167). Mean and variance are taken for each
--- channel (dimension 2) over all samples and positions of the batch.
---
--- In training mode it normalises by the mean and biased variance of the batch, and moves
--- running_mean and running_var (unbiased) towards them by `momentum`. In evaluation mode it uses
--- the running values. f16 and bf16 are computed in f32.
---
--- Shapes: x (N, C, ...)  weight, bias, running_mean, running_var (C)  num_batches_tracked i64 ()

local B = require 'moonshard_ffi'
local Module = require 'moonshard.nn.module'
local arguments = require 'moonshard_ffi.arguments'
local autograd = require 'moonshard.autograd'
local check = require 'moonshard.nn.check'
local create = require 'moonshard.base.create'
local device = require 'moonshard.base.device'
local errors = require 'moonshard.base.errors'
local ops = require 'moonshard.ops'
local rules = require 'moonshard.nn.rules'

local calls = B.calls

---@class ms.nn._BatchNorm: ms.nn.Module
---@field num_features integer
---@field eps number
---@field momentum number|false
---@field weight ms.Tensor?  (C)
---@field bias ms.Tensor?  (C)
---@field running_mean ms.Tensor?  (C)
---@field running_var ms.Tensor?  (C)
---@field num_batches_tracked ms.Tensor?  i64 ()
local BatchNorm = Module.extend('nn._BatchNorm')

BatchNorm._settings = { 'eps', 'momentum' }

---@class ms.nn.BatchNorm.Options
---@field eps? number  default 1e-5
---@field momentum? number|false  weight of a new batch in the running values (default 0.1); false:
---  running values are averages over all batches
---@field affine? boolean  learn weight and bias (default true)
---@field bias? boolean  with affine, learn a bias (default true)
---@field track_running_stats? boolean  default true; false: evaluation also normalises by the
---  batch
---@field dtype? ms.DType

BatchNorm.options = {
  'eps', 'momentum', 'affine', 'track_running_stats', 'bias', 'device', 'dtype',
}

--- Least and most number of dimensions of the input. Subclasses override them.
BatchNorm._least_dims, BatchNorm._most_dims = 2, math.huge

---@param num_features integer
---@param opts? ms.nn.BatchNorm.Options
function BatchNorm:init(num_features, opts)
  local name = self._name
  check.sizes(name, 0, { 'num_features' }, num_features)
  opts = errors.options(name, opts, self.options)
  if opts.device ~= nil then
    device.check(name, opts.device)
  end
  self.num_features = num_features
  self.eps = arguments.number(name, 'eps', opts.eps, 1e-5)
  self.momentum = opts.momentum ~= false and arguments.number(name, 'momentum', opts.momentum, 0.1)
  self.affine = arguments.flag(name, 'affine', opts.affine, true)
  self.track_running_stats =
    arguments.flag(name, 'track_running_stats', opts.track_running_stats, true)
  local dtype = opts.dtype ~= nil and arguments.floating(name, 'dtype', opts.dtype) or 'f32'
  local has_bias = arguments.flag(name, 'bias', opts.bias, true)
  if self.affine then
    self:param('weight', { num_features }, rules.ones(), { dtype = dtype })
    if has_bias then
      self:param('bias', { num_features }, rules.zeros(), { dtype = dtype })
    end
  end
  if self.track_running_stats then
    self:buffer('running_mean', create.zeros(num_features, { dtype = dtype }))
    self:buffer('running_var', create.ones(num_features, { dtype = dtype }))
    self:buffer('num_batches_tracked', create.full({}, 0, { dtype = 'i64' }))
  end
end

-- Reshape a (C) tensor to (1, C, 1, ...), which broadcasts against x.
local function channels(t, x)
  local shape = { 1, -1 }
  for d = 3, x:dim() do
    shape[d] = 1
  end
  return t:reshape(shape)
end

local function all_but_channels(x)
  local over = { 1 }
  for d = 3, x:dim() do
    over[d - 1] = d
  end
  return over
end

-- Update the running values in place. As in PyTorch, an empty batch is counted but changes no
-- value.
local function track(self, mean, variance, n)
  self.num_batches_tracked:add_(1)
  if n == 0 then
    return
  end
  local momentum = self.momentum or 1 / self.num_batches_tracked:item()
  local function move(buffer, value)
    buffer:copy_(buffer:to(value:dtype()) * (1 - momentum) + value:reshape(-1) * momentum)
  end
  move(self.running_mean, mean)
  move(self.running_var, variance * (n / (n - 1)))
end

-- The number of values of a channel. ValueError if training has only one.
local function check_count(self, x)
  local n = x:numel() / math.max(self.num_features, 1)
  if self.training and n == 1 then
    errors.raise('ValueError', 'Expected more than 1 value per channel when training, got input '
      .. 'size (%s)', table.concat(x:shape(), ', '))
  end
  return n
end

-- The mean of an empty batch is 0: NaN would reach the gradients of the parameters.
local function mean_of(x, over)
  return x:numel() > 0 and x:mean(over, true) or x:sum(over, true)
end

--- Mean and biased variance of each channel, the batch minus its mean, and the number of values of
--- each channel. SyncBatchNorm includes the batches of other ranks.
---@param x ms.Tensor
---@return ms.Tensor mean, ms.Tensor variance, ms.Tensor centred, integer n
function BatchNorm:_statistics(x)
  local n = check_count(self, x)
  local over = all_but_channels(x)
  local mean = mean_of(x, over)
  local centred = x - mean
  return mean, mean_of(centred:square(), over), centred, n
end

local function check_input(self, x)
  local n = arguments.tensor(self._name, 'x', x):dim()
  if n < self._least_dims or n > self._most_dims then
    errors.raise('ValueError', '%s: x has %d dimensions, expected %s', self._name, n,
      self._expected_dims)
  elseif x:size(2) ~= self.num_features then
    errors.raise('ValueError', '%s: x is (%s), expected %d channels in dimension 2', self._name,
      table.concat(x:shape(), ', '), self.num_features)
  end
end

--- True if the statistics are computed from this rank's batch alone.
function BatchNorm._is_local()
  return true
end

local LEAST_PLANE = 8 -- elements of a sample's channel from which one kernel is faster

-- Normalise with the fused kernel.
local function normalise(self, x)
  if self.training or not self.running_mean then
    local n = check_count(self, x)
    local stats = calls.channel_stats(x, 0)
    if self.training and self.running_mean then
      autograd.no_grad(track, self, stats[1], stats[2], n)
    end
    return calls.channel_norm(x, stats, self.weight, self.bias, 0, self.eps, true)
  end
  local compute = x:dtype() == 'f64' and 'f64' or 'f32'
  local stats = ops.stack { self.running_mean:to(compute), self.running_var:to(compute) }
  return calls.channel_norm(x, stats, self.weight, self.bias, 0, self.eps, false)
end

---@param x ms.Tensor  (N, C, ...)
---@return ms.Tensor
function BatchNorm:forward(x)
  check_input(self, x)
  local dtype = x:dtype()
  if self:_is_local() and (not self.weight or self.weight:dtype() == dtype)
    and x:numel() > 0 and x:numel() >= LEAST_PLANE * x:size(1) * x:size(2) then
    return normalise(self, x)
  end
  local compute = dtype == 'f64' and 'f64' or 'f32'
  x = x:to(compute)
  local weight = self.weight and channels(self.weight:to(compute), x)
  local bias = self.bias and channels(self.bias:to(compute), x)
  local y
  if self.training or not self.running_mean then
    local mean, variance, centred, n = self:_statistics(x)
    if self.training and self.running_mean then
      autograd.no_grad(track, self, mean, variance, n)
    end
    local scale = (variance + self.eps):rsqrt()
    y = centred * (weight and scale * weight or scale)
    y = bias and y + bias or y
  else
    local mean = channels(self.running_mean:to(compute), x)
    local scale = (channels(self.running_var:to(compute), x) + self.eps):rsqrt()
    scale = weight and scale * weight or scale
    y = x * scale + (bias and bias - mean * scale or (mean * scale):neg())
  end
  return y:to(dtype)
end

BatchNorm._channels, BatchNorm._all_but_channels = channels, all_but_channels

function BatchNorm:extra_repr()
  return ('%d, eps=%g, momentum=%s, affine=%s, bias=%s, track_running_stats=%s'):format(
    self.num_features, self.eps, self.momentum and ('%g'):format(self.momentum) or 'None',
    tostring(self.affine), tostring(self.bias ~= nil), tostring(self.track_running_stats))
end

local classes = { _BatchNorm = BatchNorm }

--- Batch normalisation of (N, C) or (N, C, L).
---@class ms.nn.BatchNorm1d: ms.nn._BatchNorm
---@overload fun(num_features: integer, opts?: ms.nn.BatchNorm.Options): ms.nn.BatchNorm1d
local BatchNorm1d = BatchNorm.extend('nn.BatchNorm1d')
BatchNorm1d._least_dims, BatchNorm1d._most_dims, BatchNorm1d._expected_dims = 2, 3, '2 or 3'
classes.BatchNorm1d = BatchNorm1d

--- Batch normalisation of (N, C, H, W).
---@class ms.nn.BatchNorm2d: ms.nn._BatchNorm
---@overload fun(num_features: integer, opts?: ms.nn.BatchNorm.Options): ms.nn.BatchNorm2d
local BatchNorm2d = BatchNorm.extend('nn.BatchNorm2d')
BatchNorm2d._least_dims, BatchNorm2d._most_dims, BatchNorm2d._expected_dims = 4, 4, '4'
classes.BatchNorm2d = BatchNorm2d

--- Batch normalisation of (N, C, D, H, W).
---@class ms.nn.BatchNorm3d: ms.nn._BatchNorm
---@overload fun(num_features: integer, opts?: ms.nn.BatchNorm.Options): ms.nn.BatchNorm3d
local BatchNorm3d = BatchNorm.extend('nn.BatchNorm3d')
BatchNorm3d._least_dims, BatchNorm3d._most_dims, BatchNorm3d._expected_dims = 5, 5, '5'
classes.BatchNorm3d = BatchNorm3d

return classes
