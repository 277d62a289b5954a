--- Mean (or sum, or each) of (x - y)^2 over all elements.

local Module = require 'moonshard.nn.module'
local errors = require 'moonshard.base.errors'
local ops = require 'moonshard.ops'

---@class ms.nn.MSELoss: ms.nn.Module
---@overload fun(opts?: { reduction?: 'mean'|'sum'|'none' }): ms.nn.MSELoss
local MSELoss = Module.extend('nn.MSELoss')

MSELoss._settings = { 'reduction' }

---@param opts? { reduction?: 'mean'|'sum'|'none' }
function MSELoss:init(opts)
  opts = errors.options(self._name, opts, { reduction = { 'mean', 'sum', 'none' } })
  self.reduction = opts.reduction or 'mean'
end

---@param x ms.Tensor
---@param y ms.Tensor  same shape
---@return ms.Tensor  (), with 'none' the shape of x
function MSELoss:forward(x, y)
  return ops.mse_loss(x, y, { reduction = self.reduction })
end

return MSELoss
