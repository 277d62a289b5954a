--- The 1cycle policy (arXiv:1708.07120): the rate rises to its maximum and then falls, the momentum
--- moves in the other direction: torch's OneCycleLR.

local arguments = require 'moonshard_ffi.arguments'
local class = require 'moonshard.base.class'
local errors = require 'moonshard.base.errors'
local LRScheduler = require 'moonshard.optim.lr_scheduler.scheduler'

---@class ms.optim.lr_scheduler.OneCycleLR: ms.optim.lr_scheduler.LRScheduler
local OneCycleLR = class('optim.lr_scheduler.OneCycleLR', LRScheduler)

---@class ms.optim.lr_scheduler.OneCycleLR.Options
---@field max_lr number|number[]  for all groups, or by group
---@field total_steps? integer  alternatively epochs and steps_per_epoch
---@field epochs? integer
---@field steps_per_epoch? integer
---@field pct_start? number  fraction of the steps in which the rate rises, default 0.3
---@field anneal_strategy? 'cos'|'linear'  default 'cos'
---@field cycle_momentum? boolean  default true
---@field base_momentum? number|number[]  minimum, default 0.85
---@field max_momentum? number|number[]  default 0.95
---@field div_factor? number  initial rate: max_lr / div_factor, default 25
---@field final_div_factor? number  final rate: initial rate / final_div_factor, default 1e4
---@field three_phase? boolean  fall to the initial rate in as many steps, then to the final rate;
---  default false
---@field last_epoch? integer  default -1

OneCycleLR._options = {
  'max_lr', 'total_steps', 'epochs', 'steps_per_epoch', 'pct_start', 'anneal_strategy',
  'cycle_momentum', 'base_momentum', 'max_momentum', 'div_factor', 'final_div_factor',
  'three_phase',
}
OneCycleLR._needs = { 'max_lr' }
OneCycleLR._state = {
  'total_steps', 'anneal_strategy', '_max_lr', '_min_lr', '_base_momentum', '_max_momentum',
  '_ends', 'cycle_momentum',
}

local NAME = OneCycleLR._name

local function total_of(opts)
  if opts.total_steps ~= nil then
    return arguments.whole(NAME, 'total_steps', opts.total_steps, nil, 1)
  elseif opts.epochs == nil or opts.steps_per_epoch == nil then
    errors.raise('ValueError', 'You must define either total_steps OR (epochs AND steps_per_epoch)')
  end
  return arguments.whole(NAME, 'epochs', opts.epochs, nil, 1)
    * arguments.whole(NAME, 'steps_per_epoch', opts.steps_per_epoch, nil, 1)
end

-- One number for each group.
local function by_group(n, name, value)
  local out = {}
  if type(value) ~= 'table' then
    for i = 1, n do
      out[i] = arguments.number(NAME, name, value)
    end
    return out
  end
  for i, number in ipairs(arguments.array(NAME, name, value)) do
    out[i] = arguments.number(NAME, ('%s[%d]'):format(name, i), number)
  end
  if #out ~= n then
    errors.raise('ValueError', 'expected %d values for %s, got %d', n, name, #out)
  end
  return out
end

-- The name of the optimizer option that is the momentum.
local function momentum_name(optimizer)
  for _, name in ipairs(optimizer.options) do
    if name == 'momentum' or name == 'betas' then
      return name
    end
  end
end

local function set_momentum(self, group, momentum)
  if self._momentum == 'betas' then
    group.betas = { momentum, group.betas[2] }
  else
    group.momentum = momentum
  end
end

-- Steps at which phases end.
local function ends_of(total, share, three_phase)
  if three_phase then
    return { share * total - 1, 2 * share * total - 2, total - 1 }
  end
  return { share * total - 1, total - 1 }
end

local function take_momentum(self, opts, n)
  local cycles = arguments.flag(NAME, 'cycle_momentum', opts.cycle_momentum, true)
  self.cycle_momentum, self._momentum = cycles, momentum_name(self.optimizer)
  if cycles and not self._momentum then
    errors.raise('ValueError',
      'optimizer must support momentum or beta1 with `cycle_momentum` option enabled')
  end
  local function given(value, default)
    return value == nil and default or value
  end
  self._base_momentum = by_group(n, 'base_momentum', given(opts.base_momentum, 0.85))
  self._max_momentum = by_group(n, 'max_momentum', given(opts.max_momentum, 0.95))
end

---@param optimizer ms.optim.Optimizer
---@param opts ms.optim.lr_scheduler.OneCycleLR.Options
function OneCycleLR:init(optimizer, opts)
  opts = LRScheduler._checked(OneCycleLR, optimizer, opts)
  local n, first = #optimizer.param_groups, {}
  local share = arguments.number(NAME, 'pct_start', opts.pct_start, 0.3)
  if share < 0 or share > 1 then
    errors.raise('ValueError', 'Expected float between 0 and 1 pct_start, but got %g', share)
  end
  self.optimizer, self.total_steps = optimizer, total_of(opts)
  if opts.anneal_strategy ~= nil then
    errors.choice(NAME, 'anneal_strategy', opts.anneal_strategy, { 'cos', 'linear' })
  end
  self.anneal_strategy = opts.anneal_strategy or 'cos'
  self._ends = ends_of(self.total_steps, share,
    arguments.flag(NAME, 'three_phase', opts.three_phase, false))
  self._max_lr, self._min_lr = by_group(n, 'max_lr', opts.max_lr), {}
  take_momentum(self, opts, n)
  for i = 1, n do
    first[i] = self._max_lr[i] / arguments.number(NAME, 'div_factor', opts.div_factor, 25)
    self._min_lr[i] = first[i]
      / arguments.number(NAME, 'final_div_factor', opts.final_div_factor, 1e4)
  end
  self:_begin(optimizer, opts, first)
end

local function between(self, from, to, share)
  if self.anneal_strategy == 'linear' then
    share = math.min(share, 1) -- one step after the last, torch's rate would be negative
    return (to - from) * share + from
  end
  return to + (from - to) / 2 * (1 + math.cos(math.pi * share))
end

-- The phase of a step, from 1, and the completed fraction of the phase.
local function phase_of(self, step)
  local start = 0
  for phase, last in ipairs(self._ends) do
    if step <= last or phase == #self._ends then
      return phase, last > start and (step - start) / (last - start) or 1
    end
    start = last
  end
end

function OneCycleLR:_rates()
  local step, n = self.last_epoch, #self._ends
  if step > self.total_steps then
    errors.raise('ValueError', 'Tried to step %d times. The specified number of total steps is %d',
      step, self.total_steps)
  end
  local phase, share = phase_of(self, step)
  for i, group in ipairs(self.cycle_momentum and self.optimizer.param_groups or {}) do
    local low, high = self._base_momentum[i], self._max_momentum[i]
    local marks = n == 3 and { high, low, high, high } or { high, low, high }
    set_momentum(self, group, between(self, marks[phase], marks[phase + 1], share))
  end
  return self:_each(function(_, base, i)
    local marks = n == 3 and { base, self._max_lr[i], base, self._min_lr[i] }
      or { base, self._max_lr[i], self._min_lr[i] }
    return between(self, marks[phase], marks[phase + 1], share)
  end)
end

return OneCycleLR
