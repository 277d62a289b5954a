-- lua/moonshard/ops/positions.lua: positions from 1, errors, gradients. Expected values are
-- PyTorch's (tests/ops tests values of the operators below).
local ms = require 'moonshard'
local checks = require 'support.checks'

local ops = ms.ops
local nan, inf = 0 / 0, math.huge

local function ids(values)
  return ms.tensor(values, { dtype = 'i64' })
end

describe('positions', function()
  teardown(function()
    assert.equal(0, checks.live_handles())
  end)

  it('gather and index_select read them, and their gradients add', function()
    local x = ms.tensor({ { 1, 2, 3 }, { 4, 5, 6 } }, { requires_grad = true })
    assert.same({ { 3, 3 }, { 4, 5 } }, x:gather(2, ids { { 3, 3 }, { 1, 2 } }):totable())
    local y = x:index_select(2, ids { 3, 1, 3 })
    assert.same({ { 3, 1, 3 }, { 6, 4, 6 } }, y:totable())
    y:sum():backward()
    assert.same({ { 1, 0, 2 }, { 1, 0, 2 } }, x:grad():totable())
    assert.same({ { 4, 5, 6 } }, x:index_select(1, ids(2)):totable())
    checks.raises('IndexError', 'gather: index 0, number 2 of 2, is outside [1, 3]', x.gather, x, 2,
      ids { { 1, 0 } })
    checks.raises('ValueError', 'gather: index has shape (3, 1), x has (2, 3)', x.gather, x, 2,
      ms.ones(3, 1, { dtype = 'i64' }))
    checks.raises('TypeError', 'gather: index is f32, expected i64', x.gather, x, 1, x)
    checks.raises('ValueError', 'index_select: the index has 2 dimensions', x.index_select, x, 1,
      ids { { 1 } })
  end)

  it('scatter and scatter_add write to them', function()
    local x, src = ms.zeros(2, 3), ms.tensor({ { 1, 2, 4 } }, { requires_grad = true })
    local y = x:scatter(1, ids { { 1, 2, 1 } }, src)
    assert.same({ { 1, 0, 4 }, { 0, 2, 0 } }, y:totable())
    local weighted = y * ms.tensor { { 1, 2, 3 }, { 4, 5, 6 } }
    weighted:sum():backward()
    assert.same({ { 1, 5, 3 } }, src:grad():totable())
    assert.same({ { 7, 0, 0 }, { 0, 0, 7 } }, x:scatter(2, ids { { 1 }, { 3 } }, 7):totable())
    assert.same({ { 3, 0, 4 }, { 0, 0, 0 } },
      x:scatter_add(2, ids { { 1, 1, 3 } }, src:detach()):totable())
    x:scatter_add_(2, ids { { 1, 1, 3 } }, src:detach())
    assert.same({ { 3, 0, 4 }, { 0, 0, 0 } }, x:totable())
    checks.raises('IndexError', 'scatter: index 4, number 1 of 1, is outside [1, 3]', x.scatter, x,
      2, ids { { 4 } }, 1)
    checks.raises('ValueError', 'scatter: index has shape (1, 3), src has (1, 2)', x.scatter, x, 1,
      ids { { 1, 1, 1 } }, ms.zeros(1, 2))
  end)

  it('sort is stable, with NaN as the largest number', function()
    local x = ms.tensor { 3, nan, 1, 3, -inf, 0, -0.0 }
    local values, indices = x:sort()
    assert.same({ -inf, 0, 0, 1, 3, 3 }, values:narrow(1, 1, 6):totable())
    assert.same({ 5, 6, 7, 3, 1, 4, 2 }, indices:totable())
    assert.same({ 2, 1, 4, 3, 6, 7, 5 }, x:argsort(1, true):totable())
    assert.same({ 2, 1, 4, 3, 6, 7, 5 }, x:argsort({ descending = true }):totable())
    local y = ms.tensor({ { 3, 1 }, { 2, 5 } }, { requires_grad = true })
    values, indices = y:sort(1)
    assert.same({ { 2, 1 }, { 3, 5 } }, values:totable())
    assert.same({ { 2, 1 }, { 1, 2 } }, indices:totable())
    local weighted = values * ms.tensor { { 1, 2 }, { 3, 4 } }
    weighted:sum():backward()
    assert.same({ { 3, 2 }, { 1, 4 } }, y:grad():totable())
  end)

  it('topk takes the largest or the smallest', function()
    local x = ms.tensor { { 1, 5, 3 }, { 4, 2, 6 } }
    local values, indices = x:topk(2)
    assert.same({ { 5, 3 }, { 6, 4 } }, values:totable())
    assert.same({ { 2, 3 }, { 3, 1 } }, indices:totable())
    assert.same({ { 1, 2, 3 } }, (x:topk(1, 1, { largest = false })):totable())
    local long = ms.randn(5000)
    assert.is_true((long:topk(70)):equal((long:sort({ descending = true })):narrow(1, 1, 70)))
    checks.raises('ValueError', "topk: 'k' is 4, expected at most the size of dimension 2, 3",
      x.topk, x, 4)
  end)

  it('nonzero and one_hot', function()
    assert.same({ { 1, 2 }, { 2, 1 } }, ms.tensor({ { 0, 1 }, { nan, 0 } }):nonzero():totable())
    assert.same({ 0, 2 }, ms.zeros(2, 3):nonzero():shape())
    assert.same({ { 1, 0, 0 }, { 0, 0, 1 } }, ops.one_hot(ids { 0, 2 }):totable())
    assert.same({ { { 0, 1, 0, 0 } } }, ops.one_hot(ids { { 1 } }, 4):totable())
    checks.raises('IndexError', 'one_hot: class 3 is outside [0, 2]', ops.one_hot, ids { 0, 3 }, 3)
  end)

  it('index_add and index_copy write slices', function()
    local x, src = ms.ones(3, 2), ms.tensor({ { 1, 2 }, { 3, 4 } }, { requires_grad = true })
    assert.same({ { 5, 7 }, { 1, 1 }, { 1, 1 } }, x:index_add(1, ids { 1, 1 }, src):totable())
    assert.same({ { 1, 1 }, { 7, 9 }, { 3, 5 } },
      x:index_add(1, ids { 3, 2 }, src, { alpha = 2 }):totable())
    x:index_add(1, ids { 3, 2 }, src, { alpha = 2 }):sum():backward()
    assert.same({ { 2, 2 }, { 2, 2 } }, src:grad():totable())
    assert.same({ { 2, 1 }, { 4, 3 } },
      ms.zeros(2, 2):index_copy(2, ids { 2, 1 }, src:detach()):totable())
    x:index_add_(2, ids { 2 }, ms.ones(3, 1))
    assert.same({ { 1, 2 }, { 1, 2 }, { 1, 2 } }, x:totable())
    checks.raises('ValueError', 'index_add: src has shape (2, 2), expected (1, 2)', x.index_add, x,
      1, ids { 1 }, src)
    for _, name in ipairs { 'index_add', 'index_copy', 'index_select' } do
      checks.raises('TypeError', name .. ': index is f32, expected i64', x[name], x, 1,
        ms.ones(2), src)
      checks.raises('IndexError', name .. ': index 4, number 2 of 2, is outside [1, 3], the '
        .. 'entries of dimension 1', x[name], x, 1, ids { 1, 4 }, src)
    end
    checks.raises('TypeError', 'index_copy: x is f32 and src is i64, expected one dtype',
      x.index_copy, x, 2, ids { 1 }, ids { { 1 }, { 2 }, { 3 } })
  end)

  it('diag makes a matrix of a row and back', function()
    local row = ms.tensor({ 1, 2 }, { requires_grad = true })
    assert.same({ { 1, 0 }, { 0, 2 } }, row:diag():totable())
    assert.same({ { 0, 0, 0 }, { 1, 0, 0 }, { 0, 2, 0 } }, row:diag(-1):totable())
    local matrix = ms.tensor({ { 1, 2, 3 }, { 4, 5, 6 } }, { requires_grad = true })
    assert.same({ 1, 5 }, matrix:diag():totable())
    assert.same({ 3 }, matrix:diag(2):totable())
    assert.same({ 4 }, matrix:diag(-1):totable())
    assert.same({ 0 }, matrix:diag(7):shape())
    local weighted = row:diag(1) * ms.arange(9):f32():reshape(3, 3)
    weighted:sum():backward()
    matrix:diag(1):sum():backward()
    assert.same({ 1, 5 }, row:grad():totable())
    assert.same({ { 0, 1, 0 }, { 0, 0, 1 } }, matrix:grad():totable())
  end)

  it('masked_select, repeat_interleave and their gradients', function()
    local x = ms.tensor({ { 1, 2, 3 }, { 4, 5, 6 } }, { requires_grad = true })
    assert.same({ 1, 3, 4, 6 }, x:masked_select(ms.tensor { true, false, true }):totable())
    assert.same({ 1, 2, 3, 1, 2, 3 }, x[1]:masked_select(ms.ones(2, 1):gt(0)):totable())
    assert.same({ 0 }, x:masked_select(x:lt(0)):shape())
    assert.same({ { 1, 1, 2, 2, 3, 3 }, { 4, 4, 5, 5, 6, 6 } }, x:repeat_interleave(2, 2):totable())
    assert.same({ 1, 1, 2, 2 }, x[1]:narrow(1, 1, 2):repeat_interleave(2):totable())
    assert.same({ { 4, 5, 6 }, { 4, 5, 6 } }, x:repeat_interleave(ids { 0, 2 }, 1):totable())
    ;(x:masked_select(x:gt(4)):sum() + x:repeat_interleave({ 1, 3 }, 1):sum()):backward()
    assert.same({ { 1, 1, 1 }, { 3, 4, 4 } }, x:grad():totable())
    checks.raises('ValueError', 'shapes (2, 3) and (2) do not broadcast', x.masked_select, x,
      ms.ones(2):gt(0))
    checks.raises('ValueError', 'repeat_interleave: 3 numbers, expected one for each of 2 entries',
      x.repeat_interleave, x, { 1, 2, 3 }, 1)
  end)

  it('unique and bincount count equal elements', function()
    local x = ms.tensor { { 3, 1 }, { 2, 3 }, { 3, -1 } }
    local values, inverse, counts = x:unique { return_inverse = true, return_counts = true }
    assert.same({ -1, 1, 2, 3 }, values:totable())
    assert.same({ { 4, 2 }, { 3, 4 }, { 4, 1 } }, inverse:totable())
    assert.same({ 1, 1, 1, 3 }, counts:totable())
    assert.same({ false, true }, x:gt(2):unique():totable())
    local none, no_counts = ms.zeros(0):unique { return_counts = true }
    assert.same({ { 0 }, { 0 } }, { none:shape(), no_counts:shape() })
    assert.same({ 1, 0, 2 }, ids({ 2, 0, 2 }):bincount():totable())
    assert.same({ 1, 0, 2, 0 }, ids({ 2, 0, 2 }):bincount({ minlength = 4 }):totable())
    assert.same({ 0.5, 0, 3 },
      ids({ 2, 0, 2 }):bincount({ weights = ms.tensor { 1, 0.5, 2 } }):totable())
    assert.same({ 0 }, ids({}):bincount():shape())
    checks.raises('ValueError', 'bincount: x contains -1', ops.bincount, ids { 1, -1 })
    checks.raises('ValueError', 'bincount: x is f32 (3, 2), expected integers', ops.bincount, x)
  end)

  it('pad takes pairs from the last dimension on', function()
    local x = ms.tensor { { 1, 2, 3 }, { 4, 5, 6 } }
    assert.same({ { 9, 1, 2 }, { 9, 4, 5 }, { 9, 9, 9 } },
      ops.pad(x, { 1, -1, 0, 1 }, { value = 9 }):totable())
    assert.same({ { 3, 2, 1, 2, 3, 2 }, { 6, 5, 4, 5, 6, 5 } },
      ops.pad(x, { 2, 1 }, { mode = 'reflect' }):totable())
    assert.same({ { 1, 1, 2, 3, 3 }, { 4, 4, 5, 6, 6 }, { 4, 4, 5, 6, 6 } },
      ops.pad(x, { 1, 1, 0, 1 }, { mode = 'replicate' }):totable())
    assert.same({ { 3, 1, 2, 3, 1, 2 }, { 6, 4, 5, 6, 4, 5 } },
      ops.pad(x, { 1, 2 }, { mode = 'circular' }):totable())
    checks.raises('ValueError', "expected at most 2 in mode 'reflect'", ops.pad, x, { 3, 0 },
      { mode = 'reflect' })
    checks.raises('ValueError', 'pad: 3 numbers for 2 dimensions', ops.pad, x, { 1, 1, 1 })
  end)

  it('roll moves entries around the end', function()
    local x = ms.tensor { { 1, 2, 3 }, { 4, 5, 6 } }
    assert.same({ { 6, 1, 2 }, { 3, 4, 5 } }, x:roll(1):totable())
    assert.same({ { 2, 3, 1 }, { 5, 6, 4 } }, x:roll(-1, 2):totable())
    assert.same({ { 6, 4, 5 }, { 3, 1, 2 } }, x:roll({ 1, 1 }, { 1, 2 }):totable())
  end)
end)
