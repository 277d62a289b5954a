--- Mean (or sum, or each) of |x - y|, see ops.l1_loss.

local Module = require 'moonshard.nn.module'
local errors = require 'moonshard.base.errors'
local ops = require 'moonshard.ops'

---@class ms.nn.L1Loss: ms.nn.Module
---@overload fun(opts?: { reduction?: 'mean'|'sum'|'none' }): ms.nn.L1Loss
local L1Loss = Module.extend('nn.L1Loss')

L1Loss._settings = { 'reduction' }

---@param opts? { reduction?: 'mean'|'sum'|'none' }
function L1Loss:init(opts)
  opts = errors.options(self._name, opts, { reduction = { 'mean', 'sum', 'none' } })
  self.reduction = opts.reduction or 'mean'
end

---@param x ms.Tensor
---@param y ms.Tensor  same shape
---@return ms.Tensor  (), with 'none' the shape of x
function L1Loss:forward(x, y)
  return ops.l1_loss(x, y, { reduction = self.reduction })
end

return L1Loss
