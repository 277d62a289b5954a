-- lua/moonshard/optim/lr_scheduler: rates against torch's formulas, warnings, state
local ms = require 'moonshard'
local optim = ms.optim
local lr_scheduler = optim.lr_scheduler
local checks = require 'support.checks'

local function optimizer(...)
  local groups = {}
  for i, lr in ipairs { ... } do
    groups[i] = { params = { ms.tensor({ 1 }, { requires_grad = true }) }, lr = lr }
  end
  return optim.SGD(groups)
end

-- Rates of all groups at steps 0, 1, ...
local function rates(opt, scheduler, n)
  local out = {}
  for step = 1, n do
    out[step] = {}
    for g, group in ipairs(opt.param_groups) do
      out[step][g] = group.lr
    end
    assert.same(out[step], scheduler:get_last_lr())
    opt:step()
    scheduler:step()
  end
  return out
end

local function follows(name, options, n, formula)
  local opt = optimizer(1, 0.25)
  local seen = rates(opt, lr_scheduler[name](opt, options), n)
  for step = 1, n do
    checks.close({ formula(step - 1, 1), formula(step - 1, 0.25) }, seen[step], 1e-12)
  end
end

describe('schedulers', function()
  teardown(function()
    assert.equal(0, checks.live_handles())
  end)

  it('StepLR and MultiStepLR fall at steps', function()
    follows('StepLR', { step_size = 3 }, 10, function(t, base)
      return base * 0.1 ^ math.floor(t / 3)
    end)
    follows('MultiStepLR', { milestones = { 2, 5, 5 }, gamma = 0.5 }, 8, function(t, base)
      return base * (t >= 5 and 0.125 or t >= 2 and 0.5 or 1)
    end)
  end)

  it('ConstantLR and LinearLR begin lower', function()
    follows('ConstantLR', { total_iters = 4 }, 8, function(t, base)
      return t < 4 and base / 3 or base
    end)
    follows('LinearLR', { start_factor = 0.5, total_iters = 4 }, 8, function(t, base)
      return base * (0.5 + 0.5 * math.min(t, 4) / 4)
    end)
  end)

  it('ExponentialLR and LambdaLR follow their factor', function()
    follows('ExponentialLR', { gamma = 0.9 }, 8, function(t, base) return base * 0.9 ^ t end)
    follows('LambdaLR', { lr_lambda = function(t) return 1 / (1 + t) end }, 8, function(t, base)
      return base / (1 + t)
    end)
    local opt = optimizer(1, 0.25)
    lr_scheduler.LambdaLR(opt, { lr_lambda = { function() return 2 end, function() return 4 end } })
    assert.equal(2, opt.param_groups[1].lr)
    assert.equal(1, opt.param_groups[2].lr)
  end)

  it('CosineAnnealingLR falls and climbs', function()
    follows('CosineAnnealingLR', { T_max = 5, eta_min = 0.1 }, 16, function(t, base)
      return 0.1 + (base - 0.1) * (1 + math.cos(math.pi * t / 5)) / 2
    end)
  end)

  it('OneCycleLR climbs, falls, and moves the momentum the other way', function()
    for _, strategy in ipairs { 'cos', 'linear' } do
      for _, phases in ipairs { 2, 3 } do
        local opt = optim.Adam({ ms.tensor({ 1 }, { requires_grad = true }) })
        local scheduler = lr_scheduler.OneCycleLR(opt, { max_lr = 2, total_steps = 10,
          anneal_strategy = strategy, three_phase = phases == 3 })
        local lr = { 0.08, 2, phases == 3 and 0.08 or 8e-6, 8e-6 }
        local beta = { 0.95, 0.85, 0.95, 0.95 }
        local ends = phases == 3 and { 0, 2, 4, 9 } or { 0, 2, 9 }
        for t = 0, 9 do
          local p = 1
          while t > ends[p + 1] do p = p + 1 end
          local share = (t - ends[p]) / (ends[p + 1] - ends[p])
          share = strategy == 'cos' and (1 - math.cos(math.pi * share)) / 2 or share
          checks.close(lr[p] + (lr[p + 1] - lr[p]) * share, opt.param_groups[1].lr, 1e-12)
          checks.close(beta[p] + (beta[p + 1] - beta[p]) * share, opt.param_groups[1].betas[1],
            1e-12)
          assert.equal(0.999, opt.param_groups[1].betas[2])
          opt:step()
          scheduler:step()
        end
        checks.raises('ValueError', 'Tried to step 11 times. The specified number of total steps '
          .. 'is 10', scheduler.step, scheduler)
      end
    end
  end)

  it('SequentialLR hands over at milestones', function()
    local opt = optimizer(1)
    local scheduler = lr_scheduler.SequentialLR(opt, {
      schedulers = {
        lr_scheduler.ConstantLR(opt, { factor = 0.1, total_iters = 9 }),
        lr_scheduler.ExponentialLR(opt, { gamma = 0.5 }),
      },
      milestones = { 3 },
    })
    local seen = rates(opt, scheduler, 6)
    for t, expected in ipairs { 0.1, 0.1, 0.1, 1, 0.5, 0.25 } do
      checks.close(expected, seen[t][1], 1e-12)
    end
  end)

  it('continue from a state dict', function()
    local make = {
      function(opt) return lr_scheduler.StepLR(opt, { step_size = 2 }) end,
      function(opt) return lr_scheduler.CosineAnnealingLR(opt, { T_max = 3 }) end,
      function(opt) return lr_scheduler.OneCycleLR(opt, { max_lr = 1, total_steps = 12 }) end,
      function(opt)
        return lr_scheduler.SequentialLR(opt, {
          schedulers = { lr_scheduler.LinearLR(opt), lr_scheduler.StepLR(opt, { step_size = 1 }) },
          milestones = { 5 },
        })
      end,
    }
    for _, new in ipairs(make) do
      local opt, other = optimizer(1, 0.5), optimizer(1, 0.5)
      local scheduler = new(opt)
      rates(opt, scheduler, 4)
      local resumed = new(other)
      other:load_state_dict(opt:state_dict())
      resumed:load_state_dict(scheduler:state_dict())
      assert.same(rates(opt, scheduler, 6), rates(other, resumed, 6))
    end
  end)

  it('warn when they step before the optimizer', function()
    local opt = optimizer(1)
    local scheduler = lr_scheduler.StepLR(opt, { step_size = 2 })
    local warnings = ms.capture_warnings(function() scheduler:step() end)
    assert.equal(1, #warnings)
    assert.truthy(warnings[1].message:find('Detected call of `lr_scheduler.step()`', 1, true))
    opt = optimizer(1)
    scheduler = lr_scheduler.StepLR(opt, { step_size = 2 })
    assert.same({}, ms.capture_warnings(function()
      opt:step()
      scheduler:step()
      scheduler:step()
    end))
  end)

  it('refuse options out of range', function()
    local opt = optimizer(1)
    local S = lr_scheduler
    checks.raises('TypeError', 'a number is not an Optimizer', S.StepLR, 3, { step_size = 1 })
    checks.raises('TypeError', 'needs step_size', S.StepLR, opt)
    checks.raises('ValueError', 'Expected 1 lr_lambdas, but got 2', S.LambdaLR, opt,
      { lr_lambda = { print, print } })
    checks.raises('ValueError', 'Constant multiplicative factor expected to be between 0 and 1',
      S.ConstantLR, opt, { factor = 2 })
    checks.raises('ValueError', 'Starting multiplicative factor expected to be greater than 0',
      S.LinearLR, opt, { start_factor = 0 })
    checks.raises('ValueError', 'Ending multiplicative factor', S.LinearLR, opt, { end_factor = 2 })
    checks.raises('ValueError', 'You must define either total_steps OR', S.OneCycleLR, opt,
      { max_lr = 1 })
    checks.raises('ValueError', 'between 0 and 1 pct_start', S.OneCycleLR, opt,
      { max_lr = 1, total_steps = 3, pct_start = 2 })
    checks.raises('KeyError', 'has no initial rate to resume from', S.StepLR, opt,
      { step_size = 1, last_epoch = 3 })
    local step = S.StepLR(opt, { step_size = 1 })
    checks.raises('ValueError', 'number of schedulers 1 and the number of milestones to be equal '
      .. 'to 2', S.SequentialLR, opt, { schedulers = { step }, milestones = { 1, 2 } })
    checks.raises('ValueError', 'expects all schedulers to belong to the same optimizer',
      S.SequentialLR, optimizer(1), { schedulers = { step }, milestones = {} })
    checks.raises('TypeError', 'sd.last_epoch', step.load_state_dict, step, {})
  end)
end)
