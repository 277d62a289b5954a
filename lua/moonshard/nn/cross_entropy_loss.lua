--- Negative log-likelihood of the targets under softmax(logits), see ops.cross_entropy.
---
--- Shapes: logits (..., V) or (N, V, ...)  targets i64 (...), or probabilities like the logits
---         weight (V)

local Module = require 'moonshard.nn.module'
local errors = require 'moonshard.base.errors'
local ops = require 'moonshard.ops'

---@class ms.nn.CrossEntropyLoss: ms.nn.Module
---@field weight ms.Tensor?  a buffer
---@overload fun(opts?: ms.ops.CrossEntropyOptions): ms.nn.CrossEntropyLoss
local CrossEntropyLoss = Module.extend('nn.CrossEntropyLoss')

CrossEntropyLoss._settings = { 'ignore_index', 'reduction', 'label_smoothing' }

---@param opts? ms.ops.CrossEntropyOptions
function CrossEntropyLoss:init(opts)
  opts = errors.options(self._name, opts, {
    weight = 'tensor', ignore_index = 'whole', reduction = { 'mean', 'sum', 'none' },
    label_smoothing = 'number', dim = 'whole',
  })
  self.ignore_index, self.reduction = opts.ignore_index or -100, opts.reduction or 'mean'
  self.label_smoothing, self.dim = opts.label_smoothing or 0, opts.dim
  if opts.weight then
    self:buffer('weight', opts.weight)
  end
end

---@param logits ms.Tensor  (..., V) or (N, V, ...)
---@param targets ms.Tensor  i64 (...), or probabilities
---@return ms.Tensor  (), with reduction = 'none' one number per target
function CrossEntropyLoss:forward(logits, targets)
  return ops.cross_entropy(logits, targets, {
    weight = self.weight, ignore_index = self.ignore_index, reduction = self.reduction,
    label_smoothing = self.label_smoothing, dim = self.dim,
  })
end

return CrossEntropyLoss
