--- Layer normalisation over the last dimension (arXiv:1607.06450).
---
--- Shapes: x (..., width)  weight, bias (width)
---
--- Touches: moonshard.nn.module, moonshard.ops.

local Module = require 'moonshard.nn.module'
local check = require 'moonshard.nn.check'
local errors = require 'moonshard.internal.errors'
local ops = require 'moonshard.ops'
local rules = require 'moonshard.nn.rules'

---@class ms.nn.LayerNorm: ms.nn.Module
---@field eps number
---@field weight ms.Tensor?  (width)
---@field bias ms.Tensor?  (width)
---@overload fun(width: integer, opts?: ms.nn.LayerNorm.Options): ms.nn.LayerNorm
local LayerNorm = Module.extend('nn.LayerNorm')

LayerNorm._settings = { 'eps' }

---@class ms.nn.LayerNorm.Options
---@field eps? number  default 1e-5
---@field bias? boolean  default true
---@field elementwise_affine? boolean  learn weight and bias (default true)
---@field dtype? ms.DType

---@param width integer
---@param opts? ms.nn.LayerNorm.Options
function LayerNorm:init(width, opts)
  check.sizes(self._name, 0, { 'width' }, width)
  opts = errors.options(self._name, opts, {
    eps = 'number', bias = 'flag', elementwise_affine = 'flag', device = 'device',
    dtype = 'floating',
  })
  self.width, self.eps = width, opts.eps or 1e-5
  if not (self.eps >= 0 and self.eps < math.huge) then
    errors.raise('ValueError', "%s: 'eps' is %g, expected a finite number of 0 or more", self._name,
      self.eps)
  end
  if opts.elementwise_affine ~= false then
    self:param('weight', { width }, rules.ones(), { dtype = opts.dtype })
    if opts.bias ~= false then
      self:param('bias', { width }, rules.zeros(), { dtype = opts.dtype })
    end
  end
end

---@param x ms.Tensor  (..., width)
---@return ms.Tensor  (..., width)
function LayerNorm:forward(x)
  return ops.layer_norm(x, self.weight, self.bias, self.eps)
end

function LayerNorm:extra_repr()
  return ('(%d,), eps=%g, elementwise_affine=%s'):format(self.width, self.eps,
    tostring(self.weight ~= nil))
end

return LayerNorm
