-- lua/moonshard/schedule.lua: learning rates as functions of the step
local ms = require 'moonshard'
local schedule = ms.schedule
local checks = require 'support.checks'

describe('schedule', function()
  it('cosine climbs in a line, falls by half a cosine and stays', function()
    local lr = schedule.cosine { lr = 1, warmup = 4, total = 12, final = 0.2 }
    checks.close({ 0.25, 0.5, 1, 1 }, { lr(0), lr(1), lr(3), lr(4) })
    checks.close(0.6, lr(8)) -- half way: the mean of 1 and 0.2
    checks.close(0.2 + 0.8 * (1 + math.cos(math.pi / 4)) / 2, lr(6))
    assert.equal(0.2, lr(12))
    assert.equal(0.2, lr(1000))
  end)

  it('linear falls in a line, to zero unless said otherwise', function()
    local lr = schedule.linear { lr = 2, total = 10 }
    checks.close({ 2, 1, 0, 0 }, { lr(0), lr(5), lr(10), lr(11) })
  end)

  it('constant stays after its warm-up', function()
    local lr = schedule.constant { lr = 3, warmup = 3 }
    checks.close({ 1, 2, 3, 3, 3 }, { lr(0), lr(1), lr(2), lr(3), lr(99) })
    assert.equal(3, schedule.constant { lr = 3 }(0))
  end)

  it('names what is missing or out of range', function()
    checks.raises('ValueError', 'schedule.cosine needs total', schedule.cosine, { lr = 1 })
    checks.raises('ValueError', 'warmup is 5 and total 3', schedule.linear,
      { lr = 1, warmup = 5, total = 3 })
    checks.raises('ValueError', 'lr is -1, expected a rate of 0 or more', schedule.constant,
      { lr = -1 })
    checks.raises('ValueError', 'final is nan', schedule.linear,
      { lr = 1, total = 2, final = 0 / 0 })
    local lr = schedule.cosine { lr = 1, total = 3 }
    checks.raises('TypeError', "schedule.cosine: 'step' is nil, expected a number", lr)
    checks.raises('ValueError', 'step is -1, expected 0 or more', lr, -1)
    checks.raises('ValueError', 'step is nan, expected 0 or more', lr, 0 / 0)
    checks.raises('ValueError', 'warmup is 0 and total nan', schedule.cosine,
      { lr = 1, total = 0 / 0 })
    checks.raises('ValueError', "did you mean 'warmup'?", schedule.linear,
      { lr = 1, warmpu = 5, total = 30 })
  end)
end)
