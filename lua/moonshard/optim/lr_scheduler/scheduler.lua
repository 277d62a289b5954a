--- The base class of schedulers: initial rates, steps, state. Like torch's, a scheduler computes
--- the next rate from the current one where torch does, so other changes of the rate have an
--- effect.

local arguments = require 'moonshard_ffi.arguments'
local capture = require 'moonshard.base.capture'
local class = require 'moonshard.base.class'
local errors = require 'moonshard.base.errors'
local members = require 'moonshard.dist.members'
local Optimizer = require 'moonshard.optim.optimizer'
local util = require 'moonshard.base.util'

---@class ms.optim.lr_scheduler.LRScheduler
---@field optimizer ms.optim.Optimizer
---@field base_lrs number[]  by group: the rates before the first scheduler
---@field last_epoch integer  steps so far; 0 when it is made
local LRScheduler = class('optim.lr_scheduler.LRScheduler')

LRScheduler._is_scheduler = true
--- Options of a class in the format of errors.options(), and the required ones.
LRScheduler._options = {}
LRScheduler._needs = {}
--- Additional fields of its state.
LRScheduler._state = {}

---@param optimizer ms.optim.Optimizer
---@param opts? table
---@param first? table  rates by group that replace the optimizer's
function LRScheduler:_begin(optimizer, opts, first)
  self.optimizer, self.base_lrs, self._step_count = optimizer, {}, 0
  self.last_epoch = opts.last_epoch or -1
  for i, group in ipairs(optimizer.param_groups) do
    local initial = first and first[i] or rawget(group, '_initial_lr')
    if self.last_epoch == -1 then
      initial = initial or group.lr
      rawset(group, '_initial_lr', initial)
    elseif not initial then
      errors.raise('KeyError', '%s: group %d of the optimizer has no initial rate to resume from; '
        .. 'make the scheduler anew and load its state dict', self._name, i)
    end
    self.base_lrs[i] = initial
  end
  self:_advance()
end

--- Check the options of a new scheduler.
function LRScheduler._checked(cls, optimizer, opts)
  if not util.is(optimizer, Optimizer) then
    errors.raise('TypeError', '%s: %s is not an Optimizer', cls._name, arguments.noun(optimizer))
  end
  local known = cls._options
  known = known[1] and { 'last_epoch', unpack(known) }
    or util.merged(known, { last_epoch = 'number' })
  opts = util.merged(errors.options(cls._name, opts, known))
  for _, name in ipairs(cls._needs) do
    if opts[name] == nil then
      errors.raise('TypeError', '%s needs %s', cls._name, name)
    end
  end
  arguments.whole(cls._name, 'last_epoch', opts.last_epoch, -1, -1)
  return opts
end

function LRScheduler:init()
  errors.raise('NotImplementedError', '%s computes no rate; use one of its subclasses', self._name)
end

function LRScheduler:_set(rates)
  self._last_lr = {}
  for i, group in ipairs(self.optimizer.param_groups) do
    group.lr = rates[i]
    self._last_lr[i] = group.lr
  end
end

-- The values of `rate(lr, base, i)` for all groups.
function LRScheduler:_each(rate)
  local out = {}
  for i, group in ipairs(self.optimizer.param_groups) do
    out[i] = rate(group.lr, self.base_lrs[i], i)
  end
  return out
end

-- Set epoch and rates. A step that fails is not counted.
local function move(self, epoch, rates_of)
  local groups, known = #self.optimizer.param_groups, #self.base_lrs
  if groups ~= known then
    errors.raise('RuntimeError', '%s: the optimizer has %d groups, it had %d when the scheduler '
      .. 'was made; make the scheduler anew', self._name, groups, known)
  end
  local was = self.last_epoch
  self.last_epoch = epoch
  local fine, rates = pcall(rates_of, self)
  if not fine then
    self.last_epoch = was
    error(rates, 0)
  end
  self._step_count = self._step_count + 1
  self:_set(rates)
end

function LRScheduler:_advance()
  move(self, self.last_epoch + 1, self._rates)
end

--- Set rates and epoch for a step, whatever the current rates are.
function LRScheduler:_go_to(epoch)
  move(self, epoch, self._closed or self._rates)
end

local function warn_of_order(self)
  if self._step_count == 1 and not self.optimizer._stepped then
    errors.warn('UserWarning', 'Detected call of `lr_scheduler.step()` before `optimizer.step()`. '
      .. 'You should call them in the opposite order: `optimizer.step()` before '
      .. '`lr_scheduler.step()`. Failure to do this will result in skipping the first value of the '
      .. 'learning rate schedule.', (members.of(self.optimizer.param_groups[1].params)))
  end
end

local function step(self)
  warn_of_order(self)
  self:_advance()
end

--- Set the rates for the next step. Call it after the optimizer's step.
function LRScheduler:step()
  capture.step('lr_scheduler.step', step, self)
end

--- The current rates, by group.
---@return number[]
function LRScheduler:get_last_lr()
  capture.breaks 'a learning rate is read'
  return util.slice(self._last_lr, 1)
end

local COMMON = { 'last_epoch', '_step_count' }

local function copied(value)
  return type(value) == 'table' and util.merged(value) or value
end

--- All fields except the optimizer and functions.
---@return table
function LRScheduler:state_dict()
  local sd = { base_lrs = copied(self.base_lrs), _last_lr = copied(self._last_lr) }
  for _, list in ipairs { COMMON, self._state } do
    for _, name in ipairs(list) do
      sd[name] = copied(self[name])
    end
  end
  return sd
end

--- Restore a state. The rates themselves are part of the optimizer's state.
---@param sd table
function LRScheduler:load_state_dict(sd)
  arguments.list('load_state_dict', 'sd', sd)
  arguments.whole('load_state_dict', 'sd.last_epoch', sd.last_epoch, nil, -1)
  arguments.whole('load_state_dict', 'sd._step_count', sd._step_count, nil, 0)
  for _, name in ipairs { 'base_lrs', '_last_lr' } do
    local rates = arguments.array('load_state_dict', 'sd.' .. name, sd[name])
    if #rates ~= #self.base_lrs then
      errors.raise('ValueError', 'load_state_dict: sd.%s has %d rates, the optimizer has %d groups',
        name, #rates, #self.base_lrs)
    end
  end
  for _, name in ipairs(self._state) do
    if type(sd[name]) ~= type(self[name]) then
      errors.raise('TypeError', 'load_state_dict: sd.%s is %s, not as in the state dict of %s',
        name, arguments.noun(sd[name]), self._name)
    end
  end
  self.base_lrs, self._last_lr = copied(sd.base_lrs), copied(sd._last_lr)
  for _, list in ipairs { COMMON, self._state } do
    for _, name in ipairs(list) do
      self[name] = copied(sd[name])
    end
  end
end

return LRScheduler
