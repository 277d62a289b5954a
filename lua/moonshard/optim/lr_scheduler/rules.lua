--- Schedulers with a formula for the rate (torch.optim.lr_scheduler's names, options and defaults).
--- `rates` computes the next rate from the current one, `closed` any rate from the initial one.

local arguments = require 'moonshard_ffi.arguments'
local class = require 'moonshard.base.class'
local errors = require 'moonshard.base.errors'
local LRScheduler = require 'moonshard.optim.lr_scheduler.scheduler'

local cos, pi = math.cos, math.pi

local rules = {}

-- Define a scheduler class. `take(self, opts)` reads options into the fields listed in `state`.
local function rule(name, def)
  local cls = class('optim.lr_scheduler.' .. name, LRScheduler)
  cls._options, cls._needs, cls._state = def.options, def.needs or {}, def.state
  cls._rates, cls._closed = def.rates, def.closed
  function cls:init(optimizer, opts)
    opts = LRScheduler._checked(cls, optimizer, opts)
    def.take(self, opts, cls._name)
    self:_begin(optimizer, opts)
  end
  rules[name] = cls
end

-- Number of milestones reached at a step.
local function reached(milestones, epoch)
  local n = 0
  for _, milestone in ipairs(milestones) do
    n = n + (epoch >= milestone and 1 or 0)
  end
  return n
end

--- Multiply the rate by `gamma` every `step_size` steps.
---@class ms.optim.lr_scheduler.StepLR: ms.optim.lr_scheduler.LRScheduler
---@overload fun(optimizer: ms.optim.Optimizer, opts: ms.optim.lr_scheduler.StepLR.Options):
---  ms.optim.lr_scheduler.StepLR
---@class ms.optim.lr_scheduler.StepLR.Options
---@field step_size integer
---@field gamma? number  default 0.1
---@field last_epoch? integer  default -1: start from the beginning
rule('StepLR', {
  options = { step_size = 'number', gamma = 'number' },
  needs = { 'step_size' },
  state = { 'step_size', 'gamma' },
  take = function(self, opts, name)
    self.step_size = arguments.whole(name, 'step_size', opts.step_size, nil, 1)
    self.gamma = opts.gamma or 0.1
  end,
  rates = function(self)
    local falls = self.last_epoch > 0 and self.last_epoch % self.step_size == 0
    return self:_each(function(lr) return falls and lr * self.gamma or lr end)
  end,
  closed = function(self)
    local factor = self.gamma ^ math.floor(self.last_epoch / self.step_size)
    return self:_each(function(_, base) return base * factor end)
  end,
})

--- Multiply the rate by `gamma` at each milestone.
---@class ms.optim.lr_scheduler.MultiStepLR: ms.optim.lr_scheduler.LRScheduler
---@overload fun(optimizer: ms.optim.Optimizer, opts: ms.optim.lr_scheduler.MultiStepLR.Options):
---  ms.optim.lr_scheduler.MultiStepLR
---@class ms.optim.lr_scheduler.MultiStepLR.Options
---@field milestones integer[]  steps, in order
---@field gamma? number  default 0.1
---@field last_epoch? integer  default -1: start from the beginning
rule('MultiStepLR', {
  options = { milestones = 'list', gamma = 'number' },
  needs = { 'milestones' },
  state = { 'milestones', 'gamma' },
  take = function(self, opts, name)
    self.milestones, self.gamma = {}, opts.gamma or 0.1
    for i, milestone in ipairs(arguments.array(name, 'milestones', opts.milestones)) do
      self.milestones[i] = arguments.whole(name, ('milestones[%d]'):format(i), milestone, nil, 0)
    end
  end,
  rates = function(self)
    local n = reached(self.milestones, self.last_epoch) - reached(self.milestones,
      self.last_epoch - 1)
    return self:_each(function(lr) return lr * self.gamma ^ n end)
  end,
  closed = function(self)
    local factor = self.gamma ^ reached(self.milestones, self.last_epoch)
    return self:_each(function(_, base) return base * factor end)
  end,
})

--- Multiply the rate by `factor` until step `total_iters`.
---@class ms.optim.lr_scheduler.ConstantLR: ms.optim.lr_scheduler.LRScheduler
---@overload fun(optimizer: ms.optim.Optimizer, opts?: ms.optim.lr_scheduler.ConstantLR.Options):
---  ms.optim.lr_scheduler.ConstantLR
---@class ms.optim.lr_scheduler.ConstantLR.Options
---@field factor? number  0 to 1 (default 1/3)
---@field total_iters? integer  default 5
---@field last_epoch? integer  default -1: start from the beginning
rule('ConstantLR', {
  options = { factor = 'number', total_iters = 'number' },
  state = { 'factor', 'total_iters' },
  take = function(self, opts, name)
    self.factor = opts.factor or 1 / 3
    if not (self.factor >= 0 and self.factor <= 1) then
      errors.raise('ValueError',
        'Constant multiplicative factor expected to be between 0 and 1.')
    end
    self.total_iters = arguments.whole(name, 'total_iters', opts.total_iters, 5, 0)
  end,
  rates = function(self)
    return self:_each(function(lr)
      if self.last_epoch == 0 then
        return lr * self.factor
      end
      return self.last_epoch == self.total_iters and lr * (1 / self.factor) or lr
    end)
  end,
  closed = function(self)
    local factor = self.last_epoch >= self.total_iters and 1 or self.factor
    return self:_each(function(_, base) return base * factor end)
  end,
})

--- Multiply the rate by a factor that changes linearly from `start_factor` to `end_factor`.
---@class ms.optim.lr_scheduler.LinearLR: ms.optim.lr_scheduler.LRScheduler
---@overload fun(optimizer: ms.optim.Optimizer, opts?: ms.optim.lr_scheduler.LinearLR.Options):
---  ms.optim.lr_scheduler.LinearLR
---@class ms.optim.lr_scheduler.LinearLR.Options
---@field start_factor? number  above 0, up to 1 (default 1/3)
---@field end_factor? number  0 to 1 (default 1)
---@field total_iters? integer  number of steps of the change (default 5)
---@field last_epoch? integer  default -1: start from the beginning
rule('LinearLR', {
  options = { start_factor = 'number', end_factor = 'number', total_iters = 'number' },
  state = { 'start_factor', 'end_factor', 'total_iters' },
  take = function(self, opts, name)
    self.start_factor, self.end_factor = opts.start_factor or 1 / 3, opts.end_factor or 1
    if not (self.start_factor > 0 and self.start_factor <= 1) then
      errors.raise('ValueError', 'Starting multiplicative factor expected to be greater than 0 and '
        .. 'less or equal to 1.')
    elseif not (self.end_factor >= 0 and self.end_factor <= 1) then
      errors.raise('ValueError', 'Ending multiplicative factor expected to be between 0 and 1.')
    end
    self.total_iters = arguments.whole(name, 'total_iters', opts.total_iters, 5, 1)
  end,
  rates = function(self)
    local epoch, total, climb = self.last_epoch, self.total_iters,
      self.end_factor - self.start_factor
    return self:_each(function(lr)
      if epoch == 0 then
        return lr * self.start_factor
      elseif epoch > total then
        return lr
      end
      return lr * (1 + climb / (total * self.start_factor + (epoch - 1) * climb))
    end)
  end,
  closed = function(self)
    local factor = self.start_factor + (self.end_factor - self.start_factor)
      * math.min(self.total_iters, self.last_epoch) / self.total_iters
    return self:_each(function(_, base) return base * factor end)
  end,
})

--- Multiply the rate by `gamma` at every step.
---@class ms.optim.lr_scheduler.ExponentialLR: ms.optim.lr_scheduler.LRScheduler
---@overload fun(optimizer: ms.optim.Optimizer, opts: ms.optim.lr_scheduler.ExponentialLR.Options):
---  ms.optim.lr_scheduler.ExponentialLR
---@class ms.optim.lr_scheduler.ExponentialLR.Options
---@field gamma number
---@field last_epoch? integer  default -1: start from the beginning
rule('ExponentialLR', {
  options = { gamma = 'number' },
  needs = { 'gamma' },
  state = { 'gamma' },
  take = function(self, opts) self.gamma = opts.gamma end,
  rates = function(self)
    return self:_each(function(lr) return self.last_epoch == 0 and lr or lr * self.gamma end)
  end,
  closed = function(self)
    return self:_each(function(_, base) return base * self.gamma ^ self.last_epoch end)
  end,
})

--- Half a cosine from the initial rate to `eta_min` (arXiv:1608.03983).
---@class ms.optim.lr_scheduler.CosineAnnealingLR: ms.optim.lr_scheduler.LRScheduler
---@overload fun(optimizer: ms.optim.Optimizer,
---  opts: ms.optim.lr_scheduler.CosineAnnealingLR.Options):
---  ms.optim.lr_scheduler.CosineAnnealingLR
---@class ms.optim.lr_scheduler.CosineAnnealingLR.Options
---@field T_max integer  steps of the half cosine
---@field eta_min? number  default 0
---@field last_epoch? integer  default -1: start from the beginning
rule('CosineAnnealingLR', { -- arXiv:1608.03983, without restarts
  options = { T_max = 'number', eta_min = 'number' },
  needs = { 'T_max' },
  state = { 'T_max', 'eta_min' },
  take = function(self, opts, name)
    self.T_max = arguments.whole(name, 'T_max', opts.T_max, nil, 1)
    self.eta_min = opts.eta_min or 0
  end,
  rates = function(self)
    local epoch, half, low = self.last_epoch, self.T_max, self.eta_min
    if self._step_count == 1 and epoch > 0 then
      return self:_closed()
    end
    return self:_each(function(lr, base)
      if epoch == 0 then
        return lr
      elseif (epoch - 1 - half) % (2 * half) == 0 then -- at the minimum: division by 0
        return lr + (base - low) * (1 - cos(pi / half)) / 2
      end
      return (1 + cos(pi * epoch / half)) / (1 + cos(pi * (epoch - 1) / half)) * (lr - low) + low
    end)
  end,
  closed = function(self)
    local share = (1 + cos(pi * self.last_epoch / self.T_max)) / 2
    return self:_each(function(_, base) return self.eta_min + (base - self.eta_min) * share end)
  end,
})

return rules
