--- Optimizers over the local shards of parameters.

local clip = require 'moonshard.optim.clip'
local namespace = require 'moonshard.base.namespace'
local runtime = require 'moonshard_ffi.optim'

local lazy = {
  Optimizer = 'moonshard.optim.optimizer',
  lr_scheduler = 'moonshard.optim.lr_scheduler',
}
for name in next, runtime.rules do
  lazy[name] = 'moonshard.optim.rules'
end

---@class ms.optim
---@field Optimizer ms.optim.Optimizer
---@field lr_scheduler ms.optim.lr_scheduler
local optim = {}

optim.clip_grad_norm_ = clip.grad_norm_
optim.clip_grad_value_ = clip.grad_value_

return namespace.space('optim', optim, lazy)
