--- Affine map y = x W^T + b of the last dimension.
---
--- Shapes: x (..., in)  W (out, in)  b (out)  y (..., out)
--- Init:   W and b uniform in [-1/sqrt(in), 1/sqrt(in)), as PyTorch.

local calls = require('moonshard_ffi').calls
local Module = require 'moonshard.nn.module'
local check = require 'moonshard.nn.check'
local errors = require 'moonshard.base.errors'
local ops = require 'moonshard.ops'
local rules = require 'moonshard.nn.rules'

---@class ms.nn.Linear: ms.nn.Module
---@field in_features integer
---@field out_features integer
---@field weight ms.Tensor  (out, in)
---@field bias ms.Tensor?  (out)
---@overload fun(in_features: integer, out_features: integer, opts?: table): ms.nn.Linear
local Linear = Module.extend('nn.Linear')

---@class ms.nn.Linear.Options
---@field bias? boolean  add a learned bias (default true)
---@field dtype? ms.DType  of the master weights (default 'f32')
---@field init? ms.nn.InitRule  of the weight
---@field bias_init? ms.nn.InitRule
---@field weight? ms.Tensor  tie to this parameter instead of declaring one

Linear.options = {
  bias = 'flag', device = 'device', dtype = 'floating', init = 'rule', bias_init = 'rule',
  weight = 'tensor',
}

---@param in_features integer
---@param out_features integer
---@param opts? ms.nn.Linear.Options
function Linear:init(in_features, out_features, opts)
  check.sizes(self._name, 0, { 'in_features', 'out_features' }, in_features, out_features)
  opts = errors.options(self._name, opts, self.options)
  self.in_features, self.out_features = in_features, out_features
  local default = rules.fan_in_uniform(in_features)
  local dtype = { dtype = opts.dtype }

  if opts.weight then
    self:tie('weight', opts.weight)
  else
    self:param('weight', { out_features, in_features }, opts.init or default, dtype)
  end
  if opts.bias ~= false then
    self:param('bias', { out_features }, opts.bias_init or default, dtype)
  end
end

---@param x ms.Tensor  (..., in)
---@return ms.Tensor y  (..., out)
function Linear:forward(x)
  if self._padded then -- on a GPU rows of the result are a multiple of 64 elements apart
    return calls.linear_padded(x, self.weight, self.bias)
  end
  return ops.linear(x, self.weight, self.bias)
end

function Linear:extra_repr()
  return ('in_features=%d, out_features=%d, bias=%s'):format(self.in_features, self.out_features,
    tostring(self.bias ~= nil))
end

return Linear
