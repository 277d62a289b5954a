--- gelu(x W^T + b), with the values of Linear followed by GELU, in one pass over the
--- pre-activation.
---
--- Has Linear's parameters but is not a subclass: a policy or an adapter that finds a Linear may
--- replace it by an affine map.

local Linear = require 'moonshard.nn.linear'
local Module = require 'moonshard.nn.module'
local ops = require 'moonshard.ops'
local util = require 'moonshard.base.util'

---@class ms.nn.LinearGELU: ms.nn.Module
---@field in_features integer
---@field out_features integer
---@field weight ms.Tensor  (out, in)
---@field bias ms.Tensor?  (out)
---@field approximate 'none'|'tanh'
---@overload fun(in_features: integer, out_features: integer, opts?: table): ms.nn.LinearGELU
local LinearGELU = Module.extend('nn.LinearGELU')

LinearGELU._settings = { 'approximate' }

---@class ms.nn.LinearGELU.Options: ms.nn.Linear.Options
---@field approximate? 'none'|'tanh'  default 'none'

LinearGELU.options = util.merged(Linear.options, { approximate = { 'none', 'tanh' } })

---@param in_features integer
---@param out_features integer
---@param opts? ms.nn.LinearGELU.Options
function LinearGELU:init(in_features, out_features, opts)
  Linear.init(self, in_features, out_features, opts)
  self.approximate = opts and opts.approximate or 'none'
end

---@param x ms.Tensor  (..., in)
---@return ms.Tensor y  (..., out)
function LinearGELU:forward(x)
  return ops.linear_gelu(x, self.weight, self.bias, self.approximate)
end

function LinearGELU:extra_repr()
  return ("%s, approximate='%s'"):format(Linear.extra_repr(self), self.approximate)
end

return LinearGELU
