--- Learning rates that decrease when a metric stops improving: torch's ReduceLROnPlateau.

local arguments = require 'moonshard_ffi.arguments'
local capture = require 'moonshard.base.capture'
local class = require 'moonshard.base.class'
local errors = require 'moonshard.base.errors'
local Optimizer = require 'moonshard.optim.optimizer'
local parameter = require 'moonshard_ffi.parameter'
local util = require 'moonshard.base.util'

---@class ms.optim.lr_scheduler.ReduceLROnPlateau
---@field optimizer ms.optim.Optimizer
---@field best number  the best metric so far
---@field num_bad_epochs integer  steps since the last improvement
---@field cooldown_counter integer  remaining steps of the cooldown
---@field last_epoch integer  steps so far
local Plateau = class('optim.lr_scheduler.ReduceLROnPlateau')

Plateau._is_scheduler = true

---@class ms.optim.lr_scheduler.ReduceLROnPlateau.Options
---@field mode? 'min'|'max'  whether a lower (default) or a higher metric is better
---@field factor? number  new rate / old rate, below 1, default 0.1
---@field patience? integer  bad steps without a change of the rate, default 10
---@field threshold? number  minimum improvement, default 1e-4
---@field threshold_mode? 'rel'|'abs'  relative to the best metric (default), or absolute
---@field cooldown? integer  steps after a change in which bad steps are not counted, default 0
---@field min_lr? number|number[]  minimum rate, for all groups or by group; default 0
---@field eps? number  smaller changes of a rate are not made, default 1e-8

local OPTIONS = {
  'mode', 'factor', 'patience', 'threshold', 'threshold_mode', 'cooldown', 'min_lr', 'eps',
}
local NAME = Plateau._name
local STATE = {
  'mode', 'factor', 'patience', 'threshold', 'threshold_mode', 'cooldown', 'min_lrs', 'eps', 'best',
  'num_bad_epochs', 'cooldown_counter', 'last_epoch', '_last_lr',
}

-- One minimum rate for each group.
local function least_rates(given, n)
  local out = {}
  if type(given) == 'table' then
    for i, rate in ipairs(arguments.array(NAME, 'min_lr', given)) do
      out[i] = arguments.number(NAME, ('min_lr[%d]'):format(i), rate)
    end
    if #out ~= n then
      errors.raise('ValueError', 'expected %d min_lrs, got %d', n, #out)
    end
    return out
  end
  for i = 1, n do
    out[i] = arguments.number(NAME, 'min_lr', given, 0)
  end
  return out
end

---@param optimizer ms.optim.Optimizer
---@param opts? ms.optim.lr_scheduler.ReduceLROnPlateau.Options
function Plateau:init(optimizer, opts)
  if not util.is(optimizer, Optimizer) then
    errors.raise('TypeError', '%s: %s is not an Optimizer', NAME, arguments.noun(optimizer))
  end
  opts = errors.options(NAME, opts, OPTIONS)
  self.mode = errors.choice(NAME, 'mode', opts.mode or 'min', { 'min', 'max' })
  self.factor = arguments.number(NAME, 'factor', opts.factor, 0.1)
  if self.factor >= 1 or self.factor ~= self.factor then
    errors.raise('ValueError', 'Factor should be < 1.0.')
  end
  self.patience = arguments.whole(NAME, 'patience', opts.patience, 10, 0)
  self.threshold = arguments.number(NAME, 'threshold', opts.threshold, 1e-4)
  self.threshold_mode = errors.choice(NAME, 'threshold_mode', opts.threshold_mode or 'rel',
    { 'rel', 'abs' })
  self.cooldown = arguments.whole(NAME, 'cooldown', opts.cooldown, 0, 0)
  self.eps = arguments.number(NAME, 'eps', opts.eps, 1e-8)
  self.optimizer = optimizer
  self.min_lrs = least_rates(opts.min_lr, #optimizer.param_groups)
  self._least = type(opts.min_lr) ~= 'table' and (opts.min_lr or 0) -- for groups added later
  self.best = self.mode == 'min' and math.huge or -math.huge
  self.num_bad_epochs, self.cooldown_counter, self.last_epoch = 0, 0, 0
  self:_note()
end

function Plateau:_note()
  self._last_lr = {}
  for i, group in ipairs(self.optimizer.param_groups) do
    self._last_lr[i] = group.lr
  end
end

function Plateau:_is_better(metric)
  local relative = self.threshold_mode == 'rel'
  if self.mode == 'min' then
    return metric < (relative and self.best * (1 - self.threshold) or self.best - self.threshold)
  end
  return metric > (relative and self.best * (self.threshold + 1) or self.best + self.threshold)
end

function Plateau:_reduce()
  local groups = self.optimizer.param_groups
  if #groups ~= #self.min_lrs then
    if not self._least then
      errors.raise('RuntimeError', 'The number of param groups in the `optimizer` (%d) differs '
        .. 'from when `ReduceLROnPlateau` was initialized (%d), usually due to a new param group '
        .. 'being added to the optimizer. Please modify the `min_lrs` field to match the length '
        .. 'of the `optimizer` param groups.', #groups, #self.min_lrs)
    end
    self.min_lrs = least_rates(self._least, #groups)
  end
  for i, group in ipairs(groups) do
    local rate = math.max(group.lr * self.factor, self.min_lrs[i])
    if group.lr - rate > self.eps then
      group.lr = rate
    end
  end
end

local function step(self, metric)
  if parameter.is_tensor(metric) then
    metric = metric:item()
  end
  arguments.number(NAME .. ':step', 'metric', metric)
  self.last_epoch = self.last_epoch + 1
  if self:_is_better(metric) then
    self.best, self.num_bad_epochs = metric, 0
  else
    self.num_bad_epochs = self.num_bad_epochs + 1
  end
  if self.cooldown_counter > 0 then
    self.cooldown_counter, self.num_bad_epochs = self.cooldown_counter - 1, 0
  end
  if self.num_bad_epochs > self.patience then
    self:_reduce()
    self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
  end
  self:_note()
end

--- Process a metric, after the optimizer's steps. It must be equal on all ranks.
---@param metric number|ms.Tensor  of one element
function Plateau:step(metric)
  capture.step('lr_scheduler.step', step, self, metric)
end

--- The current rates, by group.
---@return number[]
function Plateau:get_last_lr()
  return util.slice(self._last_lr, 1)
end

local function copied(value)
  return type(value) == 'table' and util.merged(value) or value
end

--- All fields except the optimizer.
---@return table
function Plateau:state_dict()
  local sd = {}
  for _, name in ipairs(STATE) do
    sd[name] = copied(self[name])
  end
  return sd
end

--- Restore a state. The rates themselves are part of the optimizer's state.
---@param sd table
function Plateau:load_state_dict(sd)
  arguments.list('load_state_dict', 'sd', sd)
  for _, name in ipairs(STATE) do
    if type(sd[name]) ~= type(self[name]) then
      errors.raise('TypeError', 'load_state_dict: sd.%s is %s, not as in the state dict of %s',
        name, arguments.noun(sd[name]), NAME)
    end
  end
  for _, name in ipairs(STATE) do
    self[name] = copied(sd[name])
  end
end

return Plateau
