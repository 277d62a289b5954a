--- x / sqrt(mean(x^2) + eps) over the last dimensions (arXiv:1910.07467). f16 and bf16 are computed
--- in f32.
---
--- Shapes: x (..., normalized_shape)  weight normalized_shape

local Module = require 'moonshard.nn.module'
local errors = require 'moonshard.base.errors'
local normalized = require 'moonshard.nn.normalized'
local rules = require 'moonshard.nn.rules'

---@class ms.nn.RMSNorm: ms.nn.Module
---@field normalized_shape integer[]
---@field eps number?
---@field weight ms.Tensor?
---@overload fun(normalized_shape: integer|integer[], opts?: table): ms.nn.RMSNorm
local RMSNorm = Module.extend('nn.RMSNorm')

RMSNorm._settings = { 'eps' }

---@class ms.nn.RMSNorm.Options
---@field eps? number  default: 2^-23, and 2^-52 for x in f64
---@field elementwise_affine? boolean  learn a weight (default true)
---@field dtype? ms.DType

local EPSILON = { f64 = 2 ^ -52, f32 = 2 ^ -23 }

---@param normalized_shape integer|integer[]  sizes of the last dimensions of x
---@param opts? ms.nn.RMSNorm.Options
function RMSNorm:init(normalized_shape, opts)
  local shape = normalized.shape(self._name, normalized_shape)
  opts = errors.options(self._name, opts, {
    eps = 'number', elementwise_affine = 'flag', device = 'device', dtype = 'floating',
  })
  self.normalized_shape, self.eps = shape, opts.eps
  if opts.elementwise_affine ~= false then
    self:param('weight', shape, rules.ones(), { dtype = opts.dtype })
  end
end

---@param x ms.Tensor  (..., normalized_shape)
---@return ms.Tensor  of the same shape
function RMSNorm:forward(x)
  local flat, dtype = normalized.flat(self, x), x:dtype()
  local compute = dtype == 'f64' and 'f64' or 'f32'
  local wide = flat:to(compute)
  local scale = (wide:square():mean(-1, true) + (self.eps or EPSILON[compute])):rsqrt()
  local y = wide * scale
  y = rawequal(flat, x) and y or y:reshape(x:shape())
  return (self.weight and y * self.weight:to(compute) or y):to(dtype)
end

function RMSNorm:extra_repr()
  return ('%s, eps=%s, elementwise_affine=%s'):format(normalized.text(self.normalized_shape),
    self.eps and ('%g'):format(self.eps) or 'None', tostring(self.weight ~= nil))
end

return RMSNorm
