-- lua/moonshard/ops/shapes.lua: views and copies with other shapes
local ms = require 'moonshard'
local ops = ms.ops
local checks = require 'support.checks'

local function lists(tensors)
  local out = {}
  for i, t in ipairs(tensors) do
    out[i] = t:totable()
  end
  return out
end

-- Do x and `of` share memory?
local function is_view(x, of)
  return x:version() == of:version() and (function()
    of:add_(1)
    local same = x:version() == of:version()
    of:add_(-1)
    return same
  end)()
end

describe('shapes', function()
  local x = ms.tensor { { 1, 2, 3 }, { 4, 5, 6 } }

  it('unsqueeze and squeeze are views', function()
    assert.same({ 1, 2, 3 }, x:unsqueeze(1):shape())
    assert.same({ 2, 3, 1 }, x:unsqueeze(-1):shape())
    assert.same({ 2, 3, 1 }, x:unsqueeze(3):shape())
    assert.same({ 1 }, ms.tensor(3):unsqueeze(1):shape())
    assert.same({ { { 1, 4 } }, { { 2, 5 } }, { { 3, 6 } } }, x:t():unsqueeze(2):totable())
    local wide = ms.ones(1, 2, 1, 3)
    assert.same({ 2, 3 }, wide:squeeze():shape())
    assert.same({ 2, 1, 3 }, wide:squeeze(1):shape())
    assert.same({ 1, 2, 1, 3 }, wide:squeeze(2):shape())
    assert.same({ 1, 2, 3 }, wide:squeeze({ 2, -2 }):shape())
    for _, view in ipairs { x:unsqueeze(2), x:t():unsqueeze(2), wide:squeeze() } do
      assert.is_true(is_view(view, view:dim() == 2 and wide or x))
    end
    checks.raises('IndexError', 'unsqueeze: dimension 4 is out of range for 3', x.unsqueeze, x, 4)
    checks.raises('IndexError', 'squeeze: dimension 3 is out of range', x.squeeze, x, 3)
  end)

  it('flatten and view_as merge dimensions', function()
    assert.same({ 1, 2, 3, 4, 5, 6 }, x:flatten():totable())
    assert.same({ 2, 12, 5 }, ms.ones(2, 3, 4, 5):flatten(2, 3):shape())
    assert.same({ 2, 60 }, ms.ones(2, 3, 4, 5):flatten(2):shape())
    assert.same({ 1, 4, 2, 5, 3, 6 }, x:t():flatten():totable()) -- a copy
    assert.same({ 3 }, ms.tensor(3):flatten():totable())
    assert.same({ { 1, 2 }, { 3, 4 }, { 5, 6 } }, x:view_as(ms.ones(3, 2)):totable())
    checks.raises('ValueError', 'flatten: dimension 2 comes after dimension 1', x.flatten, x, 2, 1)
    checks.raises('RuntimeError', 'view: strides', x.view_as, x:t(), ms.ones(6))
  end)

  it('movedim moves dimensions', function()
    local y = ms.ones(2, 3, 4, 5)
    assert.same({ 3, 4, 2, 5 }, y:movedim(1, 3):shape())
    assert.same({ 5, 2, 3, 4 }, y:movedim(-1, 1):shape())
    assert.same({ 4, 5, 2, 3 }, y:movedim({ 3, 4 }, { 1, 2 }):shape())
    assert.same({ 3, 2, 5, 4 }, y:movedim({ 1, 4 }, { 2, 3 }):shape())
    checks.raises('ValueError', 'movedim: 2 dimensions move to 1 places', y.movedim, y, { 1, 2 }, 1)
    checks.raises('ValueError', 'movedim: dimension 1 is given twice', y.movedim, y, { 1, 1 },
      { 1, 2 })
  end)

  it('expand is a view whose gradient is a sum', function()
    local row = ms.tensor({ { 1, 2 } }, { requires_grad = true })
    local y = row:expand(3, -1)
    assert.same({ { 1, 2 }, { 1, 2 }, { 1, 2 } }, y:totable())
    assert.same({ 0, 1 }, y:stride())
    assert.same({ 4, 3, 2 }, row:expand { 4, 3, -1 }:shape())
    assert.same({ 3, 2 }, row:expand_as(ms.ones(3, 2)):shape())
    ;(y * ms.tensor { { 1, 0 }, { 2, 1 }, { 4, 3 } }):sum():backward()
    assert.same({ { 7, 4 } }, row:grad():totable())
    checks.raises('ValueError', 'expand: shape (1, 2) does not expand to (1, 3)', row.expand, row,
      1, 3)
    checks.raises('ValueError', 'expand: shape (1, 2) does not expand to (-1, 1, 2)', row.expand,
      row, -1, 1, 2)
    checks.raises('RuntimeError', 'it is expanded along dimension', function()
      row:detach():expand(3, 2):fill_(1)
    end)
  end)

  it('tile, repeat and flip are copies', function()
    assert.same({ { 1, 2, 3, 1, 2, 3 }, { 4, 5, 6, 4, 5, 6 } }, x:tile(2):totable())
    assert.same({ { 1, 1 }, { 1, 1 }, { 2, 2 }, { 2, 2 } },
      ms.tensor { { 1 }, { 2 } }:unsqueeze(2):tile(1, 2, 2):flatten(1, 2):totable())
    assert.same({ 2, 4, 9 }, ops.tile(x, 2, 2, 3):shape())
    assert.same({ 4, 3 }, x['repeat'](x, 2, 1):shape())
    assert.same({ 0, 3 }, x:tile(0, 1):shape())
    local same = x:tile(1, 1)
    assert.same(x:totable(), same:totable())
    assert.is_false(is_view(same, x))
    assert.same({ { 3, 2, 1 }, { 6, 5, 4 } }, x:flip(2):totable())
    assert.same({ { 6, 5, 4 }, { 3, 2, 1 } }, x:flip({ 1, -1 }):totable())
    checks.raises('ValueError', 'repeat: 1 numbers for 2 dimensions', x['repeat'], x, 2)
    checks.raises('ValueError', 'flip: dimension 1 is given twice', x.flip, x, 1, 1)
    local leaf = ms.tensor({ 1, 2 }, { requires_grad = true })
    ;(leaf:tile(2, 2) * ms.tensor { { 1, 2, 3, 4 }, { 5, 6, 7, 8 } }):sum():backward()
    assert.same({ 16, 20 }, leaf:grad():totable())
  end)

  it('split, chunk and unbind are views', function()
    assert.same({ { { 1, 2 }, { 4, 5 } }, { { 3 }, { 6 } } }, lists(x:split(2, 2)))
    assert.same({ { { 1 }, { 4 } }, { { 2, 3 }, { 5, 6 } } }, lists(x:split({ 1, 2 }, -1)))
    assert.same({ { { 1, 2, 3 } }, { { 4, 5, 6 } } }, lists(x:split(1)))
    assert.same({ { 1, 2, 3 }, { 4, 5, 6 } }, lists(x:unbind()))
    assert.same({ { 1, 4 }, { 2, 5 }, { 3, 6 } }, lists(x:unbind(2)))
    local lengths = {}
    for i, part in ipairs(ms.arange(7):chunk(4)) do
      lengths[i] = part:numel()
    end
    assert.same({ 2, 2, 2, 1 }, lengths)
    assert.equal(3, #ms.arange(5):chunk(4)) -- of two, two and one
    assert.equal(3, #ms.ones(0, 2):chunk(3))
    assert.equal(1, #ms.ones(0, 2):split(3))
    assert.is_true(is_view(x:split(1)[2], x))
    checks.raises('ValueError', 'split: sizes (1, 1) sum to 2, expected the size of the dimension, '
      .. '3', x.split, x, { 1, 1 }, 2)
    checks.raises('ValueError', 'split: pieces of size 0 never make up', x.split, x, 0)
    local leaf = ms.tensor({ 1, 2, 3 }, { requires_grad = true })
    local parts = leaf:split(2)
    ;(parts[1]:sum() * 2 + parts[2]:sum() * 5):backward()
    assert.same({ 2, 2, 5 }, leaf:grad():totable())
  end)

  it('stack adds a dimension', function()
    local a, b = ms.tensor { 1, 2 }, ms.tensor { 3, 4 }
    assert.same({ { 1, 2 }, { 3, 4 } }, ms.stack({ a, b }):totable())
    assert.same({ { 1, 3 }, { 2, 4 } }, ops.stack({ a, b }, 2):totable())
    assert.same({ { 1, 3 }, { 2, 4 } }, ops.stack({ a, b }, -1):totable())
    checks.raises('ValueError', 'stack: entry 2 has shape (3), expected that of the first, (2)',
      ms.stack, { a, ms.ones(3) })
    checks.raises('ValueError', 'stack: the list is empty', ms.stack, {})
    checks.raises('IndexError', 'stack: dimension 3 is out of range', ms.stack, { a, b }, 3)
  end)
end)
