--- Learning rate schedulers of an optimizer, as in torch.optim.lr_scheduler. (ms.schedule has
--- similar schedules as plain functions of the step.)
---
---     local scheduler = ms.optim.lr_scheduler.StepLR(opt, { step_size = 30, gamma = 0.1 })
---     opt:step(); scheduler:step()

local namespace = require 'moonshard.base.namespace'
local rules = require 'moonshard.optim.lr_scheduler.rules'

---@class ms.optim.lr_scheduler
local lr_scheduler = {
  LRScheduler = require 'moonshard.optim.lr_scheduler.scheduler',
  StepLR = rules.StepLR,
  MultiStepLR = rules.MultiStepLR,
  ConstantLR = rules.ConstantLR,
  LinearLR = rules.LinearLR,
  ExponentialLR = rules.ExponentialLR,
  CosineAnnealingLR = rules.CosineAnnealingLR,
  LambdaLR = require 'moonshard.optim.lr_scheduler.lambda_lr',
  OneCycleLR = require 'moonshard.optim.lr_scheduler.one_cycle_lr',
  ReduceLROnPlateau = require 'moonshard.optim.lr_scheduler.reduce_lr_on_plateau',
  SequentialLR = require 'moonshard.optim.lr_scheduler.sequential_lr',
}

return namespace.space('optim.lr_scheduler', lr_scheduler)
