--- Normalisation of each sample over groups of channels, which are dimension 2 (arXiv:1803.08494).
---
--- Shapes: x (N, C, ...)  weight, bias (C)

local B = require 'moonshard_ffi'
local Module = require 'moonshard.nn.module'
local check = require 'moonshard.nn.check'
local errors = require 'moonshard.base.errors'
local ops = require 'moonshard.ops'
local rules = require 'moonshard.nn.rules'

---@class ms.nn.GroupNorm: ms.nn.Module
---@field num_groups integer
---@field num_channels integer
---@field eps number
---@field weight ms.Tensor?  (C)
---@field bias ms.Tensor?  (C)
---@overload fun(num_groups: integer, num_channels: integer, opts?: table): ms.nn.GroupNorm
local GroupNorm = Module.extend('nn.GroupNorm')

local calls = B.calls
local LEAST_PLANE = 8 -- elements of a sample's channel from which one kernel is faster

GroupNorm._settings = { 'num_groups', 'eps' }

---@class ms.nn.GroupNorm.Options
---@field eps? number  default 1e-5
---@field affine? boolean  learn weight and bias (default true)
---@field bias? boolean  with affine, learn a bias (default true)
---@field dtype? ms.DType

---@param num_groups integer  must divide num_channels
---@param num_channels integer
---@param opts? ms.nn.GroupNorm.Options
function GroupNorm:init(num_groups, num_channels, opts)
  check.sizes(self._name, 1, { 'num_groups', 'num_channels' }, num_groups, num_channels)
  opts = errors.options(self._name, opts, {
    eps = 'number', affine = 'flag', bias = 'flag', device = 'device', dtype = 'floating',
  })
  if num_channels % num_groups ~= 0 then
    errors.raise('ValueError', 'num_channels must be divisible by num_groups, got %d and %d',
      num_channels, num_groups)
  end
  self.num_groups, self.num_channels, self.eps = num_groups, num_channels, opts.eps or 1e-5
  self.affine = opts.affine ~= false
  if self.affine then
    self:param('weight', { num_channels }, rules.ones(), { dtype = opts.dtype })
    if opts.bias ~= false then
      self:param('bias', { num_channels }, rules.zeros(), { dtype = opts.dtype })
    end
  end
end

---@param x ms.Tensor  (N, C, ...)
---@return ms.Tensor
function GroupNorm:forward(x)
  local shape = x:shape()
  if shape[2] ~= self.num_channels then
    errors.raise('ValueError', '%s: x is (%s), expected %d channels in dimension 2', self._name,
      table.concat(shape, ', '), self.num_channels)
  end
  if x:numel() >= LEAST_PLANE * shape[1] * shape[2] then
    return calls.channel_norm(x, calls.channel_stats(x, self.num_groups), self.weight, self.bias,
      self.num_groups, self.eps, true)
  end
  local rest = x:numel() / math.max(shape[1] * self.num_groups, 1)
  local y = ops.layer_norm(x:reshape(shape[1], self.num_groups, rest), nil, nil, self.eps)
    :reshape(shape)
  if not self.affine then
    return y
  end
  local channels = { -1 }
  for d = 3, #shape do
    channels[d - 1] = 1
  end
  y = y * self.weight:reshape(channels)
  return self.bias and y + self.bias:reshape(channels) or y
end

function GroupNorm:extra_repr()
  return ('%d, %d, eps=%g, affine=%s, bias=%s'):format(self.num_groups, self.num_channels,
    self.eps, tostring(self.affine), tostring(self.bias ~= nil))
end

return GroupNorm
