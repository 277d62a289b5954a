--- Layer normalisation over the last dimensions (arXiv:1607.06450).
---
--- Shapes: x (..., normalized_shape)  weight, bias normalized_shape

local Module = require 'moonshard.nn.module'
local errors = require 'moonshard.base.errors'
local normalized = require 'moonshard.nn.normalized'
local ops = require 'moonshard.ops'
local rules = require 'moonshard.nn.rules'

---@class ms.nn.LayerNorm: ms.nn.Module
---@field normalized_shape integer[]
---@field eps number
---@field weight ms.Tensor?
---@field bias ms.Tensor?
---@overload fun(normalized_shape: integer|integer[], opts?: table): ms.nn.LayerNorm
local LayerNorm = Module.extend('nn.LayerNorm')

LayerNorm._settings = { 'eps' }

---@class ms.nn.LayerNorm.Options
---@field eps? number  default 1e-5
---@field bias? boolean  default true
---@field elementwise_affine? boolean  learn weight and bias (default true)
---@field dtype? ms.DType

---@param normalized_shape integer|integer[]  sizes of the last dimensions of x
---@param opts? ms.nn.LayerNorm.Options
function LayerNorm:init(normalized_shape, opts)
  local shape = normalized.shape(self._name, normalized_shape)
  opts = errors.options(self._name, opts, {
    eps = 'number', bias = 'flag', elementwise_affine = 'flag', device = 'device',
    dtype = 'floating',
  })
  self.normalized_shape, self.eps = shape, opts.eps or 1e-5
  if not (self.eps >= 0 and self.eps < math.huge) then
    errors.raise('ValueError', "%s: 'eps' is %g, expected a finite number of 0 or more", self._name,
      self.eps)
  end
  if opts.elementwise_affine ~= false then
    self:param('weight', shape, rules.ones(), { dtype = opts.dtype })
    if opts.bias ~= false then
      self:param('bias', shape, rules.zeros(), { dtype = opts.dtype })
    end
  end
end

---@param x ms.Tensor  (..., normalized_shape)
---@return ms.Tensor  of the same shape
function LayerNorm:forward(x)
  if #self.normalized_shape == 1 then
    return ops.layer_norm(x, self.weight, self.bias, self.eps)
  end
  local weight, bias = self.weight, self.bias
  local y = ops.layer_norm(normalized.flat(self, x), weight and weight:reshape(-1),
    bias and bias:reshape(-1), self.eps)
  return y:reshape(x:shape())
end

function LayerNorm:extra_repr()
  return ('%s, eps=%g, elementwise_affine=%s, bias=%s'):format(
    normalized.text(self.normalized_shape), self.eps, tostring(self.weight ~= nil),
    tostring(self.bias ~= nil))
end

return LayerNorm
