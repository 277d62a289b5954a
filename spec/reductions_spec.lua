-- lua/moonshard/ops/reductions.lua: two results, shared gradients, booleans. Expected values
-- are PyTorch's (tests/ops tests values of the operators below).
local ms = require 'moonshard'
local checks = require 'support.checks'

local nan, inf = 0 / 0, math.huge

local function leaf(values)
  return ms.tensor(values, { dtype = 'f64', requires_grad = true })
end

describe('reductions', function()
  teardown(function()
    assert.equal(0, checks.live_handles())
  end)

  it('max and min give values and positions along a dimension', function()
    local x = leaf { { 1, 3, 3 }, { 2, 2, 2 } }
    local values, indices = x:max(2)
    assert.same({ 3, 2 }, values:totable())
    assert.same({ 2, 1 }, indices:totable())
    assert.equal('i64', indices:dtype())
    values:sum():backward()
    assert.same({ { 0, 1, 0 }, { 1, 0, 0 } }, x:grad():totable())
    values, indices = x:min(1, { keepdim = true })
    assert.same({ { 1, 2, 2 } }, values:totable())
    assert.same({ { 1, 2, 2 } }, indices:totable())
    assert.equal(2, select(2, ms.tensor({ 1, nan, 2, nan }):max(1)):item())
    assert.equal(1, select('#', x:max()))
    checks.raises('IndexError', 'a reduced dimension of shape (2, 0) has size 0', x.max,
      ms.zeros(2, 0), 2)
    checks.raises('IndexError', 'max: dimension 3 is out of range', x.max, x, 3)
  end)

  it('max, amax and amin share the gradient among equal elements', function()
    local x = leaf { { 1, 3, 3 }, { 2, 2, 2 } }
    x:max():backward()
    assert.same({ { 0, 0.5, 0.5 }, { 0, 0, 0 } }, x:grad():totable())
    x:set_grad(nil)
    x:amin(2):sum():backward()
    checks.close({ { 1, 0, 0 }, { 1 / 3, 1 / 3, 1 / 3 } }, x:grad())
    assert.same({ 2, 3, 3 }, x:amax(1):totable())
    assert.equal(1, x:amin({ 1, 2 }):item())
  end)

  it('argmax counts from 1, without a dimension in row-major order', function()
    local x = ms.tensor { { 1, 5, 3 }, { 4, 2, 6 } }
    assert.equal(6, x:argmax():item())
    assert.equal(1, x:argmin():item())
    assert.same({ 2, 3 }, x:argmax(2):totable())
    assert.same({ { 1, 2, 1 } }, x:argmin(1, true):totable())
  end)

  it('prod has a gradient beside zeros', function()
    local x = leaf { { 1, 0, 2 }, { 0, 3, 0 }, { 1, 2, 3 } }
    x:prod(2):sum():backward()
    assert.same({ { 0, 2, 0 }, { 0, 0, 0 }, { 6, 3, 2 } }, x:grad():totable())
    assert.equal(6, ms.tensor({ 1, 2, 3 }, { dtype = 'i64' }):prod():item())
  end)

  it('any and all are booleans, and tensors over dimensions', function()
    local x = ms.tensor { { 0, 1 }, { 0, nan } }
    assert.same({ false, true }, x:any(1):totable())
    assert.same({ { false }, { false } }, x:all(2, true):totable())
    assert.is_true(x:gt(0):any())
    assert.is_false(x:gt(0):all())
    assert.same({ true, true }, ms.zeros(2, 0):all(2):totable())
    assert.same({ false, false }, ms.zeros(2, 0):any(2):totable())
  end)

  it('var and std take a correction', function()
    local x = leaf { { 1, 1, 1 }, { 1, 2, 6 } }
    checks.close({ 0, 7 }, x:var(2))
    checks.close({ 0, 14 / 3 }, x:var(2, { correction = 0 }))
    checks.close({ { 4 } }, x:var(nil, { keepdim = true }))
    x:std(2):sum():backward()
    checks.close({ { 0, 0, 0 }, { -0.37796447, -0.18898224, 0.56694671 } }, x:grad())
    assert.is_true(ms.ones(1):var():isnan():all())
    checks.raises('TypeError', 'var: the tensor is i64', ms.ops.var, ms.arange(3))
  end)

  it('logsumexp does not overflow', function()
    local x = leaf { { 1000, 1000 }, { -inf, -inf }, { 1, 2 } }
    checks.close({ 1000.69314718056, -inf, 2.3132616875182 }, x:logsumexp(2), 1e-12)
    assert.same({ 3, 1 }, x:logsumexp(2, true):shape())
    checks.close(300.69, ms.full({ 2 }, 300, { dtype = 'bf16' }):logsumexp(1), 4e-3)
  end)

  it('normalize and cosine_similarity divide by norms', function()
    local x = leaf { { 3, 4 }, { 0, 0 } }
    checks.close({ { 0.6, 0.8 }, { 0, 0 } }, ms.ops.normalize(x))
    checks.close({ { 1, 1 }, { 0, 0 } }, ms.ops.normalize(x, { p = 1, dim = 1 }))
    checks.close({ { 0.75, 1 }, { 0, 0 } }, ms.ops.normalize(x, { p = inf, dim = -1 }))
    local y = ms.ops.cosine_similarity(x, ms.tensor({ 4, 3 }, { dtype = x:dtype() }))
    checks.close({ 0.96, 0 }, y)
    y[1]:backward()
    checks.close({ { 0.8 / 5 - 0.96 * 0.6 / 5, 0.6 / 5 - 0.96 * 0.8 / 5 }, { 0, 0 } }, x:grad())
  end)
end)
