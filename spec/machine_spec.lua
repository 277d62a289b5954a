-- lua/moonshard/base/machine.lua: facts about the machine
local ms = require 'moonshard'

describe('the machine', function()
  it('says in one line what decides the bits of results', function()
    local line = ms.numerics()
    assert.equal(line, ms.numerics())
    assert.truthy(line:find(ms.cpu_isa(), 1, true))
    assert.truthy(line:find('f32 ' .. ms.matmul_name('f32'), 1, true))
    assert.truthy(line:find('bf16 ' .. ms.matmul_name('bf16'), 1, true))
    assert.truthy(line:match('build %x%x%x%x%x%x%x%x'))
  end)

  it('needs room for products of bf16 only where it cannot multiply them', function()
    local in_f32 = ms.matmul_name('bf16'):match('^fp32') ~= nil
    assert.equal(0, ms.matmul_scratch('f32', 100, 200, 300))
    assert.equal(in_f32 and 4 * (100 * 300 + 300 * 200 + 100 * 200 + 200) or 0,
      ms.matmul_scratch('bf16', 100, 200, 300))
  end)

  it('says what it keeps for work to come', function()
    assert.is_true(ms.matmul_kept() <= math.min(256, ms.matmul_created()))
    local before = ms.memory()
    ms.scope(function()
      ms.zeros(1000, 1000)
    end)
    local after = ms.memory()
    assert.equal(before.live_total, after.live_total)
    assert.is_true(after.cached >= 4e6)
    assert.equal(before.reserved - before.cached, after.reserved - after.cached)
  end)
end)
