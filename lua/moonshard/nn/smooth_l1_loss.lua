--- Squares of small differences, magnitudes of others, see ops.smooth_l1_loss.

local Module = require 'moonshard.nn.module'
local errors = require 'moonshard.base.errors'
local ops = require 'moonshard.ops'

---@class ms.nn.SmoothL1Loss: ms.nn.Module
---@field beta number
---@overload fun(opts?: { beta?: number, reduction?: 'mean'|'sum'|'none' }): ms.nn.SmoothL1Loss
local SmoothL1Loss = Module.extend('nn.SmoothL1Loss')

SmoothL1Loss._settings = { 'reduction', 'beta' }

---@param opts? { beta?: number, reduction?: 'mean'|'sum'|'none' }
function SmoothL1Loss:init(opts)
  opts = errors.options(self._name, opts, {
    beta = 'number', reduction = { 'mean', 'sum', 'none' },
  })
  self.beta = opts.beta or 1
  self.reduction = opts.reduction or 'mean'
end

---@param x ms.Tensor
---@param y ms.Tensor  same shape
---@return ms.Tensor  (), with 'none' the shape of x
function SmoothL1Loss:forward(x, y)
  return ops.smooth_l1_loss(x, y, { reduction = self.reduction, beta = self.beta })
end

return SmoothL1Loss
