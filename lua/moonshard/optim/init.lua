--- Optimizers over the local shards of parameters.

local clip = require 'moonshard.optim.clip'
local namespace = require 'moonshard.base.namespace'

local lazy = {
  Optimizer = 'moonshard.optim.optimizer',
  SGD = 'moonshard.optim.sgd',
  Adam = 'moonshard.optim.adam',
  AdamW = 'moonshard.optim.adamw',
  RMSprop = 'moonshard.optim.rmsprop',
  Adagrad = 'moonshard.optim.adagrad',
  Lion = 'moonshard.optim.lion',
  lr_scheduler = 'moonshard.optim.lr_scheduler',
}

---@class ms.optim
---@field Optimizer ms.optim.Optimizer
---@field SGD ms.optim.SGD
---@field Adam ms.optim.Adam
---@field AdamW ms.optim.AdamW
---@field RMSprop ms.optim.RMSprop
---@field Adagrad ms.optim.Adagrad
---@field Lion ms.optim.Lion
---@field lr_scheduler ms.optim.lr_scheduler
local optim = {}

optim.clip_grad_norm_ = clip.grad_norm_
optim.clip_grad_value_ = clip.grad_value_

return namespace.space('optim', optim, lazy)
