--- x / sqrt(mean(x^2) + eps) over the last dimension (arXiv:1910.07467). Narrow dtypes are computed
--- in f32.
---
--- Shapes: x (..., width)  weight (width)

local Module = require 'moonshard.nn.module'
local check = require 'moonshard.nn.check'
local errors = require 'moonshard.internal.errors'
local rules = require 'moonshard.nn.rules'

---@class ms.nn.RMSNorm: ms.nn.Module
---@field eps number?
---@field weight ms.Tensor?  (width)
---@overload fun(width: integer, opts?: ms.nn.RMSNorm.Options): ms.nn.RMSNorm
local RMSNorm = Module.extend('nn.RMSNorm')

RMSNorm._settings = { 'eps' }

---@class ms.nn.RMSNorm.Options
---@field eps? number  default: 2^-23, and 2^-52 for x in f64
---@field elementwise_affine? boolean  learn a weight (default true)
---@field dtype? ms.DType

local EPSILON = { f64 = 2 ^ -52, f32 = 2 ^ -23 }

---@param width integer
---@param opts? ms.nn.RMSNorm.Options
function RMSNorm:init(width, opts)
  check.sizes(self._name, 0, { 'width' }, width)
  opts = errors.options(self._name, opts, {
    eps = 'number', elementwise_affine = 'flag', device = 'device', dtype = 'floating',
  })
  self.width, self.eps = width, opts.eps
  if opts.elementwise_affine ~= false then
    self:param('weight', { width }, rules.ones(), { dtype = opts.dtype })
  end
end

---@param x ms.Tensor  (..., width)
---@return ms.Tensor  (..., width)
function RMSNorm:forward(x)
  local dtype, dims = x:dtype(), x:dim()
  if dims == 0 or x:size(dims) ~= self.width then
    errors.raise('ValueError', '%s: x is (%s), expected a last dimension of %d', self._name,
      table.concat(x:shape(), ', '), self.width)
  end
  local compute = dtype == 'f64' and 'f64' or 'f32'
  local wide = x:to(compute)
  local scale = (wide:square():mean(dims, true) + (self.eps or EPSILON[compute])):rsqrt()
  local y = wide * scale
  if self.weight then
    y = y * self.weight:to(compute)
  end
  return y:to(dtype)
end

function RMSNorm:extra_repr()
  return ('(%d,), eps=%s, elementwise_affine=%s'):format(self.width,
    self.eps and ('%g'):format(self.eps) or 'None', tostring(self.weight ~= nil))
end

return RMSNorm
