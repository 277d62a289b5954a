--- Minus the log probability of the targets, see ops.nll_loss.
---
--- Shapes: x (..., C) or (N, C, ...)  targets i64 (...)  weight (C)

local Module = require 'moonshard.nn.module'
local errors = require 'moonshard.base.errors'
local ops = require 'moonshard.ops'

---@class ms.nn.NLLLoss: ms.nn.Module
---@field weight ms.Tensor?  a buffer
---@overload fun(opts?: ms.ops.NLLOptions): ms.nn.NLLLoss
local NLLLoss = Module.extend('nn.NLLLoss')

NLLLoss._settings = { 'ignore_index', 'reduction' }

---@param opts? ms.ops.NLLOptions
function NLLLoss:init(opts)
  opts = errors.options(self._name, opts, {
    weight = 'tensor', ignore_index = 'whole', reduction = { 'mean', 'sum', 'none' },
    dim = 'whole',
  })
  self.ignore_index, self.reduction = opts.ignore_index or -100, opts.reduction or 'mean'
  self.dim = opts.dim
  if opts.weight then
    self:buffer('weight', opts.weight)
  end
end

---@param x ms.Tensor  log probabilities (..., C) or (N, C, ...)
---@param targets ms.Tensor  i64 (...)
---@return ms.Tensor  (), with reduction = 'none' one number per target
function NLLLoss:forward(x, targets)
  return ops.nll_loss(x, targets, {
    weight = self.weight, ignore_index = self.ignore_index, reduction = self.reduction,
    dim = self.dim,
  })
end

return NLLLoss
