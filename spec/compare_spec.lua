-- lua/moonshard/ops/compare.lua: comparisons, where, all and any (tests/ops tests values)
local ms = require 'moonshard'
local checks = require 'support.checks'

describe('comparisons', function()
  teardown(function()
    assert.equal(0, checks.live_handles())
  end)

  it('give bools for tensors and numbers', function()
    local a, b = ms.tensor { 1, 2, 3 }, ms.tensor { 3, 2, 1 }
    assert.same({ false, true, false }, a:eq(b):totable())
    assert.same({ true, false, true }, a:ne(b):totable())
    assert.same({ true, false, false }, a:lt(b):totable())
    assert.same({ true, true, false }, a:le(b):totable())
    assert.same({ false, false, true }, a:gt(b):totable())
    assert.same({ false, true, true }, a:ge(b):totable())
    assert.equal('bool', a:eq(b):dtype())
    assert.same({ false, true, false }, a:eq(2):totable())
    assert.same({ false, false, true }, ms.ops.gt(a, 2.5):totable())
    assert.same({ true, false }, ms.tensor({ true, false }):eq(true):totable())
    assert.same({ true, false }, ms.arange(2):lt(0.5):totable())
    assert.same({ { false, true }, { true, false } },
      ms.tensor({ { 1 }, { 2 } }):ne(ms.tensor { 1, 2 }):totable())
  end)

  it('are not recorded', function()
    local w = ms.ones(2, { requires_grad = true })
    assert.is_false(w:gt(0):requires_grad())
    assert.is_true(w:gt(0):is_leaf())
  end)

  it('are methods; Lua operators are refused', function()
    local a, b = ms.ones(2), ms.ones(2)
    checks.raises('TypeError', 'use a:lt(b) or b:gt(a)', function() return a < b end)
    checks.raises('TypeError', 'use a:lt(b) or b:gt(a)', function() return a > 1 end)
    checks.raises('TypeError', 'use a:le(b) or b:ge(a)', function() return a <= b end)
    checks.raises('TypeError', 'use a:le(b) or b:ge(a)', function() return 0 >= a end)
    assert.is_true(a == a)
    assert.is_false(a == b)
    assert.is_false(a == 1)
  end)

  it('where() selects, with gradients', function()
    local x = ms.tensor({ -1, 2, -3 }, { requires_grad = true })
    assert.same({ 0, 2, 0 }, ms.where(x:gt(0), x, 0):totable())
    assert.same({ -1, 9, -3 }, ms.where(x:gt(0), 9, x):totable())
    assert.same({ 7, 2, 7 }, x:where(x:gt(0), 7):totable())
    assert.same({ 2, 1 }, ms.where(ms.tensor { false, true }, 1, 2):totable())
    local ids = ms.where(ms.tensor { true, false }, ms.arange(2), -1)
    assert.same({ 0, -1 }, ids:totable())
    assert.equal('i64', ids:dtype())
    ms.where(x:gt(0), x * 2, x * 5):sum():backward()
    assert.same({ 5, 2, 5 }, x:grad():totable())
    checks.raises('TypeError', 'where: cond is f32, expected bool', ms.where, x, x, x)
    checks.raises('TypeError', "where: 'cond' is a boolean, expected a tensor", ms.where, true, x,
      x)
  end)

  it('logical functions take what is not 0 as true', function()
    local a, b = ms.tensor { 0, 1, 2, 0 }, ms.tensor { 0, 0, 0 / 0, -1 }
    assert.same({ false, false, true, false }, a:logical_and(b):totable())
    assert.same({ false, true, true, true }, a:logical_or(b):totable())
    assert.same({ false, true, false, true }, a:logical_xor(b):totable())
    assert.same({ true, true, false, false }, b:logical_not():totable())
  end)

  it('all() and any() return booleans', function()
    local x = ms.tensor { 1, 2 }
    assert.is_true(ms.all(x:gt(0)))
    assert.is_false(x:gt(1):all())
    assert.is_true(ms.any(x:gt(1)))
    assert.is_false(x:gt(2):any())
    checks.raises('TypeError', 'all: the tensor is f32, expected bool', ms.all, x)
  end)

  it('equal() and allclose() compare tensors', function()
    local x = ms.tensor { 1, 2 }
    assert.is_true(ms.equal(x, x:clone()))
    assert.is_false(ms.equal(x, x:f64()))
    assert.is_false(ms.equal(x, x:reshape(2, 1)))
    assert.is_false(x:equal(ms.tensor { 1, 3 }))
    assert.is_true(ms.allclose(x, x + 1e-6))
    assert.is_false(ms.allclose(x, x + 1e-3))
    assert.is_true(ms.allclose(x, x + 1e-3, 0, 1e-2))
    assert.is_true(x:allclose(x * 1.01, 0.1))
    checks.raises('TypeError', 'dtypes are f32 and f64', ms.allclose, x, x:f64())
  end)

  it('allclose() takes tolerances by name', function()
    local x = ms.tensor { 1, 2 }
    assert.is_true(ms.allclose(x, x + 1e-3, { rtol = 0, atol = 1e-2 }))
    assert.is_false(ms.allclose(x, x + 1e-1, { rtol = 0, atol = 1e-2 }))
    assert.is_true(x:allclose(x * 1.01, { rtol = 0.1 }))
    assert.is_false(x:allclose(x * 1.01, { atol = 1e-3 }))
    assert.is_true(x:allclose(x * 1.000001, {}))
    checks.raises('ValueError', "allclose: unknown option 'rtoll', did you mean 'rtol'?",
      ms.allclose, x, x, { rtoll = 1 })
    checks.raises('TypeError', "allclose: 'atol' is a string, expected a number", ms.allclose, x, x,
      { atol = 'x' })
    checks.raises('TypeError', "allclose: 'atol' is a number behind the options", ms.allclose, x, x,
      { rtol = 1 }, 1)
  end)
end)
