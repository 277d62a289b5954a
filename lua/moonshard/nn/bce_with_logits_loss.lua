--- Binary cross-entropy of sigmoid(x), see ops.binary_cross_entropy_with_logits.

local Module = require 'moonshard.nn.module'
local errors = require 'moonshard.base.errors'
local ops = require 'moonshard.ops'

---@alias ms.nn.BCEOptions
---| { weight?: ms.Tensor, pos_weight?: ms.Tensor, reduction?: 'mean'|'sum'|'none' }

---@class ms.nn.BCEWithLogitsLoss: ms.nn.Module
---@field weight ms.Tensor?  a buffer
---@field pos_weight ms.Tensor?  a buffer
---@overload fun(opts?: ms.nn.BCEOptions): ms.nn.BCEWithLogitsLoss
local BCEWithLogitsLoss = Module.extend('nn.BCEWithLogitsLoss')

BCEWithLogitsLoss._settings = { 'reduction' }

---@param opts? ms.nn.BCEOptions
function BCEWithLogitsLoss:init(opts)
  opts = errors.options(self._name, opts, {
    weight = 'tensor', pos_weight = 'tensor', reduction = { 'mean', 'sum', 'none' },
  })
  self.reduction = opts.reduction or 'mean'
  for _, name in ipairs { 'weight', 'pos_weight' } do
    if opts[name] then
      self:buffer(name, opts[name])
    end
  end
end

---@param x ms.Tensor
---@param y ms.Tensor  probabilities, same shape
---@return ms.Tensor  (), with reduction = 'none' the shape of x
function BCEWithLogitsLoss:forward(x, y)
  return ops.binary_cross_entropy_with_logits(x, y, {
    weight = self.weight, pos_weight = self.pos_weight, reduction = self.reduction,
  })
end

return BCEWithLogitsLoss
