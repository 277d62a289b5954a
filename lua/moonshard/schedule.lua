--- Learning rates as pure functions of the step (from 0): nothing to save, nothing to resume.
---
---     local lr = ms.schedule.cosine { lr = 3e-3, warmup = 50, total = 1500, final = 3e-4 }
---     opt:set_lr(lr(step))

local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'
local namespace = require 'moonshard.base.namespace'

local schedule = {}

---@class ms.schedule.Options
---@field lr number  highest rate
---@field warmup? integer  steps that climb to it in a line: (step + 1) / warmup (default 0)
---@field total integer  step from which the rate stays `final`
---@field final? number  default 0

local KNOWN = { lr = 'number', warmup = 'number', total = 'number', final = 'number' }

local function checked(name, opts)
  opts = errors.options(name, opts, KNOWN)
  for _, field in ipairs { 'lr', 'total' } do
    if type(opts[field]) ~= 'number' then
      errors.raise('ValueError', '%s needs %s, a number', name, field)
    end
  end
  local warmup, total = opts.warmup or 0, opts.total
  for _, field in ipairs { 'lr', 'final' } do
    local rate = opts[field] or 0
    if not (rate >= 0 and rate < math.huge) then
      errors.raise('ValueError', '%s: %s is %g, expected a rate of 0 or more', name, field, rate)
    end
  end
  if not (warmup >= 0 and total >= 1 and warmup <= total) then
    errors.raise('ValueError', '%s: warmup is %g and total %g, expected 0 <= warmup <= total and a '
      .. 'total of at least 1', name, warmup, total)
  end
  return opts.lr, warmup, total, opts.final or 0
end

-- A step as the rates take it.
local function check_step(name, step)
  if arguments.number(name, 'step', step) < 0 or step ~= step then
    errors.raise('ValueError', '%s: step is %g, expected 0 or more', name, step)
  end
end

-- Warm-up, then `shape(progress)` from 1 down to 0 between the highest rate and the final one.
local function decaying(name, opts, shape)
  local lr, warmup, total, final = checked(name, opts)
  return function(step)
    check_step(name, step)
    if step < warmup then
      return lr * (step + 1) / warmup
    elseif step >= total then
      return final
    end
    return final + (lr - final) * shape((step - warmup) / (total - warmup))
  end
end

--- Half a cosine from `lr` to `final` (arXiv:1608.03983).
---@param opts ms.schedule.Options
---@return fun(step: integer): number
function schedule.cosine(opts)
  return decaying('schedule.cosine', opts, function(progress)
    return (1 + math.cos(math.pi * progress)) / 2
  end)
end

--- A straight line from `lr` to `final`.
---@param opts ms.schedule.Options
---@return fun(step: integer): number
function schedule.linear(opts)
  return decaying('schedule.linear', opts, function(progress)
    return 1 - progress
  end)
end

--- The same rate at every step after the warm-up.
---@param opts { lr: number, warmup?: integer }
---@return fun(step: integer): number
function schedule.constant(opts)
  opts = errors.options('schedule.constant', opts, { lr = 'number', warmup = 'number' })
  local lr, warmup = checked('schedule.constant', {
    lr = opts.lr, warmup = opts.warmup, total = math.max(1, opts.warmup or 0),
  })
  return function(step)
    check_step('schedule.constant', step)
    return step < warmup and lr * (step + 1) / warmup or lr
  end
end

return namespace.space('schedule', schedule)
