--- Schedulers one after another, each starting at its step 0: torch's SequentialLR.

local arguments = require 'moonshard_ffi.arguments'
local class = require 'moonshard.base.class'
local errors = require 'moonshard.base.errors'
local util = require 'moonshard.base.util'
local LRScheduler = require 'moonshard.optim.lr_scheduler.scheduler'

---@class ms.optim.lr_scheduler.SequentialLR: ms.optim.lr_scheduler.LRScheduler
local SequentialLR = class('optim.lr_scheduler.SequentialLR', LRScheduler)

SequentialLR._options = { 'schedulers', 'milestones' }
SequentialLR._needs = { 'schedulers', 'milestones' }

local NAME = SequentialLR._name

local function check_schedulers(optimizer, list)
  if #arguments.array(NAME, 'schedulers', list) == 0 then
    errors.raise('ValueError', '%s expects at least one scheduler', NAME)
  end
  for i, scheduler in ipairs(list) do
    if not util.is(scheduler, LRScheduler) or util.is(scheduler, SequentialLR) then
      errors.raise('TypeError', '%s: schedulers[%d] is %s, expected a scheduler other than '
        .. 'SequentialLR', NAME, i, arguments.noun(scheduler))
    elseif scheduler.optimizer ~= optimizer then
      errors.raise('ValueError', '%s expects all schedulers to belong to the same optimizer, but '
        .. 'got scheduler %d to be of another one', NAME, i)
    end
  end
  return util.slice(list, 1)
end

local function check_milestones(list, n)
  for i, milestone in ipairs(arguments.array(NAME, 'milestones', list)) do
    arguments.whole(NAME, ('milestones[%d]'):format(i), milestone, nil, 1)
    if i > 1 and milestone <= list[i - 1] then
      errors.raise('ValueError', '%s: milestones rise, got %d after %d', NAME, milestone,
        list[i - 1])
    end
  end
  if #list ~= n - 1 then
    errors.raise('ValueError', 'Sequential Schedulers expects number of schedulers provided to be '
      .. 'one more than the number of milestone points, but got number of schedulers %d and the '
      .. 'number of milestones to be equal to %d', n, #list)
  end
  return util.slice(list, 1)
end

--- The schedulers were made before, over the same optimizer, and have set its rates; they restart.
---@param optimizer ms.optim.Optimizer
---@param opts { schedulers: ms.optim.lr_scheduler.LRScheduler[], milestones: integer[] }
---  milestones: steps at which the second, third, ... scheduler starts
function SequentialLR:init(optimizer, opts)
  opts = LRScheduler._checked(SequentialLR, optimizer, opts)
  self._schedulers = check_schedulers(optimizer, opts.schedulers)
  self._milestones = check_milestones(opts.milestones, #self._schedulers)
  self.optimizer, self.base_lrs = optimizer, {}
  self.last_epoch, self._step_count = (opts.last_epoch or -1) + 1, 1
  for i, group in ipairs(optimizer.param_groups) do
    self.base_lrs[i] = rawget(group, '_initial_lr')
    group.lr = self.base_lrs[i]
  end
  local first = self._schedulers[1]
  for _, scheduler in ipairs(self._schedulers) do
    scheduler.last_epoch = scheduler.last_epoch - 1
  end
  first._step_count = 0
  first:_advance()
  self._last_lr = first:get_last_lr()
end

function SequentialLR:_advance()
  local number, epoch = 1, self.last_epoch + 1
  for _, milestone in ipairs(self._milestones) do
    number = number + (epoch >= milestone and 1 or 0)
  end
  local scheduler = self._schedulers[number]
  if self._milestones[number - 1] == epoch then
    scheduler:_go_to(0)
  else
    scheduler:_advance()
  end
  self._step_count, self.last_epoch = self._step_count + 1, epoch
  self._last_lr = scheduler:get_last_lr()
end

--- As LRScheduler's, with the states of `schedulers`.
---@return table
function SequentialLR:state_dict()
  local sd = LRScheduler.state_dict(self)
  sd._schedulers, sd._milestones = {}, util.slice(self._milestones, 1)
  for i, scheduler in ipairs(self._schedulers) do
    sd._schedulers[i] = scheduler:state_dict()
  end
  return sd
end

---@param sd table
function SequentialLR:load_state_dict(sd)
  arguments.list('load_state_dict', 'sd', sd)
  local list = arguments.array('load_state_dict', 'sd._schedulers', sd._schedulers)
  local milestones = check_milestones(sd._milestones, #self._schedulers)
  if #list ~= #self._schedulers then
    errors.raise('ValueError', 'load_state_dict: sd has %d schedulers, expected %d', #list,
      #self._schedulers)
  end
  LRScheduler.load_state_dict(self, sd)
  self._milestones = milestones
  for i, scheduler in ipairs(self._schedulers) do
    scheduler:load_state_dict(list[i])
  end
end

return SequentialLR
