--- Squares of small differences, magnitudes of others, see ops.huber_loss.

local Module = require 'moonshard.nn.module'
local errors = require 'moonshard.base.errors'
local ops = require 'moonshard.ops'

---@class ms.nn.HuberLoss: ms.nn.Module
---@field delta number
---@overload fun(opts?: { delta?: number, reduction?: 'mean'|'sum'|'none' }): ms.nn.HuberLoss
local HuberLoss = Module.extend('nn.HuberLoss')

HuberLoss._settings = { 'reduction', 'delta' }

---@param opts? { delta?: number, reduction?: 'mean'|'sum'|'none' }
function HuberLoss:init(opts)
  opts = errors.options(self._name, opts, {
    delta = 'number', reduction = { 'mean', 'sum', 'none' },
  })
  self.delta = opts.delta or 1
  self.reduction = opts.reduction or 'mean'
end

---@param x ms.Tensor
---@param y ms.Tensor  same shape
---@return ms.Tensor  (), with 'none' the shape of x
function HuberLoss:forward(x, y)
  return ops.huber_loss(x, y, { reduction = self.reduction, delta = self.delta })
end

return HuberLoss
