--- Optimizers over the local shards of parameters.

local naming = require 'moonshard.internal.naming'

local lazy = {
  Optimizer = 'moonshard.optim.optimizer',
  SGD = 'moonshard.optim.sgd',
  Adam = 'moonshard.optim.adam',
  AdamW = 'moonshard.optim.adamw',
  lr_scheduler = 'moonshard.optim.lr_scheduler',
}

---@class ms.optim
---@field Optimizer ms.optim.Optimizer
---@field SGD ms.optim.SGD
---@field Adam ms.optim.Adam
---@field AdamW ms.optim.AdamW
---@field lr_scheduler ms.optim.lr_scheduler
local optim = {}

--- Scale the gradients of plain parameters together to a total norm; a sharded model has
--- model:clip_grad_norm_(). Where that fails some may be scaled and others not: drop them.
---@param params ms.Tensor[]
---@param max_norm number
---@param norm_type? number  2 (default) or math.huge
---@return ms.Tensor  (), f64: the norm before
function optim.clip_grad_norm_(params, max_norm, norm_type)
  return require('moonshard_ffi.optim').clip(params, max_norm,
    norm_type == nil and 2 or norm_type)
end

return naming.space('optim', optim, lazy)
