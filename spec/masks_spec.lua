-- lua/moonshard/ops/masks.lua: masked_fill, tril, triu, document_mask
local ms = require 'moonshard'
local ops = ms.ops
local checks = require 'support.checks'

describe('masks', function()
  local x = ms.tensor { { 1, 2, 3 }, { 4, 5, 6 } }

  it('masked_fill has gradients for x and value', function()
    local mask = x:gt(3)
    assert.same({ { 1, 2, 3 }, { -1, -1, -1 } }, x:masked_fill(mask, -1):totable())
    assert.same({ { 9, 2, 9 }, { 9, 5, 9 } },
      ops.masked_fill(x, ms.tensor { true, false, true }, 9):totable())
    assert.same({ { 7, 7 }, { 7, 7 } },
      ms.tensor({ 1, 2 }):masked_fill(ms.ones(2, 2, { dtype = 'bool' }), 7):totable())
    assert.same({ 1, 0 }, ms.tensor({ 1, 2, dtype = 'i64' })
      :masked_fill(ms.tensor { false, true }, 0):totable())
    local leaf = ms.tensor({ 0 / 0, 2 }, { requires_grad = true })
    local value = ms.tensor(5, { requires_grad = true })
    local y = leaf:masked_fill(ms.tensor { true, false }, value)
    assert.same({ 5, 2 }, y:totable())
    ;(y * ms.tensor { 3, 4 }):sum():backward()
    assert.same({ 0, 4 }, leaf:grad():totable())
    assert.equal(3, value:grad():item())
  end)

  it('masked_fill refuses masks and values that do not fit', function()
    local mask = x:gt(3)
    checks.raises('TypeError', 'masked_fill: the mask is f32, expected bool', x.masked_fill, x, x,
      1)
    checks.raises('ValueError', 'masked_fill: the value has 1 dimensions', x.masked_fill, x, mask,
      ms.ones(3))
    checks.raises('ValueError', 'masked_fill: 1.5 does not fit in i64', ops.masked_fill,
      x:to('i64'), mask, 1.5)
    checks.raises('TypeError', "masked_fill: 'value' is a string", x.masked_fill, x, mask, 'x')
    checks.raises('TypeError', "masked_fill: 'mask' is nil", x.masked_fill, x)
  end)

  it('tril and triu keep a triangle', function()
    assert.same({ { 1, 0, 0 }, { 4, 5, 0 } }, x:tril():totable())
    assert.same({ { 1, 2, 0 }, { 4, 5, 6 } }, x:tril(1):totable())
    assert.same({ { 0, 0, 0 }, { 4, 0, 0 } }, ops.tril(x, -1):totable())
    assert.same({ { 1, 2, 3 }, { 0, 5, 6 } }, x:triu():totable())
    assert.same({ { 0, 0, 3 }, { 0, 0, 0 } }, x:triu(2):totable())
    assert.same({ { 1, 2, 3 }, { 4, 5, 6 } }, ops.triu(x, -7):totable())
    assert.same({ { { 1, 0 }, { 3, 4 } }, { { 5, 0 }, { 7, 8 } } },
      ms.arange(1, 9):reshape(2, 2, 2):tril():totable())
    assert.same({ 0, 3 }, ms.ones(0, 3):triu():shape())
    checks.raises('ValueError', 'tril: x has 1 dimensions, expected at least 2', ops.tril,
      ms.ones(2))
  end)

  it('document_mask shows each token its own document up to itself', function()
    local positions = ms.tensor({ { 0, 1, 0, 1, 2 } }, { dtype = 'i64' }) -- documents of 2 and 3
    local rows = {
      { 1, 0, 0, 0, 0 }, { 1, 1, 0, 0, 0 }, { 0, 0, 1, 0, 0 }, { 0, 0, 1, 1, 0 }, { 0, 0, 1, 1, 1 },
    }
    local function numbers(opts)
      return ops.document_mask(positions, opts):to('f32'):reshape(-1):totable()
    end
    local function flat(list)
      return ms.tensor(list):reshape(-1):totable()
    end
    assert.same(flat(rows), numbers())
    rows[5] = { 0, 0, 0, 1, 1 }
    assert.same(flat(rows), numbers { window = 2 })
    assert.same(flat { { 1, 1, 1, 0 } }, ops.document_mask(ms.tensor({ { 2, 0 } },
      { dtype = 'i64' }), { past = 2 }):narrow(3, 1, 1):to('f32'):reshape(-1):totable())
  end)
end)
