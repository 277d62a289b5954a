--- Negative log-likelihood of the targets under softmax(logits).
---
--- Shapes: logits (..., V)  targets i64 (...)

local Module = require 'moonshard.nn.module'
local errors = require 'moonshard.internal.errors'
local ops = require 'moonshard.ops'

---@class ms.nn.CrossEntropyLoss: ms.nn.Module
---@overload fun(opts?: table): ms.nn.CrossEntropyLoss
local CrossEntropyLoss = Module.extend('nn.CrossEntropyLoss')

CrossEntropyLoss._settings = { 'ignore_index', 'reduction' }

---@param opts? { ignore_index?: integer, reduction?: 'mean'|'sum' }  defaults -100, 'mean'
function CrossEntropyLoss:init(opts)
  opts = errors.options(self._name, opts, {
    ignore_index = 'whole', reduction = { 'mean', 'sum' },
  })
  self.ignore_index, self.reduction = opts.ignore_index or -100, opts.reduction or 'mean'
end

---@param logits ms.Tensor  (..., V)
---@param targets ms.Tensor  i64 (...)
---@return ms.Tensor  ()
function CrossEntropyLoss:forward(logits, targets)
  return ops.cross_entropy(logits, targets, {
    ignore_index = self.ignore_index, reduction = self.reduction,
  })
end

return CrossEntropyLoss
