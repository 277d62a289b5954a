-- lua/moonshard/tensor/entries.lua: t[i], t[i] = x, and unknown names
local ms = require 'moonshard'
local checks = require 'support.checks'

describe('entries of a tensor', function()
  teardown(function()
    assert.equal(0, checks.live_handles())
  end)

  local x
  before_each(function() x = ms.tensor { { 1, 2, 3 }, { 4, 5, 6 } } end)
  after_each(function() x = nil end)

  local function get(t, i)
    return t[i]
  end

  local function set(t, i, value)
    t[i] = value
  end

  it('are read by position, from 1 or from the end', function()
    assert.same({ 4, 5, 6 }, x[2]:totable())
    assert.same({ 4, 5, 6 }, x[-1]:totable())
    assert.same({ 1, 2, 3 }, x[-2]:totable())
    assert.same({}, x[2][3]:shape())
    assert.equal(6, x[2][3]:item())
    assert.same({ 2, 5 }, x:t()[2]:totable())
    assert.same({ 3, 6 }, x:select(2, -1):totable())
  end)

  it('share memory with the tensor', function()
    local row = x[1]
    row:fill_(9)
    assert.same({ { 9, 9, 9 }, { 4, 5, 6 } }, x:totable())
    assert.equal(1, x:version())
  end)

  it('name the entry and the size when out of range', function()
    checks.raises('IndexError', 'entry 3 is out of range for dimension 1 of size 2', get, x, 3)
    checks.raises('IndexError', 'entry -3 is out of range for dimension 1 of size 2', get, x, -3)
    checks.raises('IndexError', 'entry 0 is out of range for dimension 1 of size 2 (they count '
      .. 'from 1)', get, x, 0)
    checks.raises('IndexError', 'entry 4 is out of range for dimension 1 of size 3', get, x[1], 4)
    checks.raises('IndexError', 'the tensor has no dimensions', get, x[1][1], 1)
    checks.raises('IndexError', 'entry 4 is out of range for dimension 2 of size 3', x.select, x,
      2, 4)
    checks.raises('TypeError', 'entry 1.5 is not an integer', get, x, 1.5)
    checks.raises('IndexError', 'entry 3 is out of range', set, x, 3, 0)
  end)

  it('are differentiable', function()
    local w = ms.tensor({ { 1, 2 }, { 3, 4 } }, { requires_grad = true })
    local y = w[1][2] * w[2]:sum() + w[-1][1]
    y:backward()
    assert.same({ { 0, 7 }, { 3, 2 } }, w:grad():totable())
  end)

  it('are read and assigned where a mask is true', function()
    assert.same({ 3, 4, 5, 6 }, x[x:gt(2)]:totable())
    assert.same({ { 4, 5, 6 } }, x[ms.tensor { false, true }]:totable())
    x[x:gt(4)] = 0
    assert.same({ { 1, 2, 3 }, { 4, 0, 0 } }, x:totable())
    x[x:eq(0)] = ms.tensor { 7, 8 }
    assert.same({ { 1, 2, 3 }, { 4, 7, 8 } }, x:totable())
    x:t()[ms.tensor { true, false, true }] = ms.tensor { 9, 5 }
    assert.same({ { 9, 2, 9 }, { 5, 7, 5 } }, x:totable())
    x[x:lt(0)] = 1
    checks.raises('IndexError', 'the mask has shape (3), expected the first sizes of the tensor, '
      .. '(2, 3)', set, x, ms.ones(3):gt(0), 1)
    checks.raises('TypeError', 't[mask]: the mask is f32, expected bool', set, x, x, 1)
    local positions = ms.arange(2)
    checks.raises('TypeError', 't[mask]: the mask is i64, expected bool; for positions write '
      .. 't:index_select(1, index)', get, x, positions)
    checks.raises('TypeError', 'for positions write t:copy_(t:index_copy(1, index, x))', set, x,
      positions, x)
    checks.raises('TypeError', 't[mask] = x: x is a string, expected a number or a tensor', set, x,
      x:gt(0), 'a')
    checks.raises('ValueError', 't[mask] = x: 1.5 does not fit in i64', set, positions,
      positions:ge(0), 1.5)
    checks.raises('ValueError', 'x has shape (3), expected one that broadcasts to (2)', set, x,
      x:gt(8), ms.ones(3))
    checks.raises('RuntimeError', 'requires grad', set, x:clone():requires_grad_(true), x:gt(0), 1)
  end)

  it('can be assigned', function()
    x[1] = 7
    assert.same({ { 7, 7, 7 }, { 4, 5, 6 } }, x:totable())
    x[2][-1] = 8.5
    assert.same({ 4, 5, 8.5 }, x[2]:totable())
    x[1] = x[2] * 2
    assert.same({ 8, 10, 17 }, x[1]:totable())
    x[2] = ms.tensor({ 3 }, { dtype = 'i64' }) -- broadcast and cast
    assert.same({ 3, 3, 3 }, x[2]:totable())
    local flags = ms.tensor { true, false }
    flags[2] = true
    assert.same({ true, true }, flags:totable())
  end)

  it('refuse values that require grad', function()
    local w, out = ms.tensor({ 1, 2, 3 }, { requires_grad = true }), ms.zeros(2, 3)
    local square = w * w
    local instead = 'build the tensor with ms.cat or ms.where, or write x:detach(), or inside '
      .. 'ms.no_grad'
    for _, write in ipairs {
      function() out[1] = square end,
      function() out[1] = w end,
      function() out:copy_(square) end,
      function() out:add_(square, 2) end,
      function() out:narrow(2, 1, 2):copy_(square:narrow(1, 1, 2)) end,
    } do
      local version = out:version()
      checks.raises('RuntimeError', instead, write)
      assert.equal(version, out:version())
      ms.no_grad(write)
    end
    assert.same({ 1, 4, 27 }, out[1]:totable()) -- [3]: its square by copy_, twice that by add_
  end)

  it('of tensors that require grad are written inside no_grad only', function()
    local w = ms.tensor({ 1, 2 }, { requires_grad = true })
    for _, write in ipairs {
      { 't[1] = x', function(t) t[1] = 5 end },
      { 'fill_', function(t) t:fill_(5) end },
      { 'fill_', function(t) t:zero_() end },
      { 'copy_', function(t) t:copy_(ms.ones(2)) end },
      { 'add_', function(t) t:add_(1) end },
      { 'add_', function(t) t:add_(ms.ones(2)) end },
    } do
      local what, fn = unpack(write)
      local version = w:version()
      checks.raises('RuntimeError', what .. ': the tensor requires grad, and writing into it is '
        .. 'not differentiable; write inside ms.no_grad(function() ... end), or to t:detach()', fn,
        w)
      assert.equal(version, w:version())
      ms.no_grad(fn, w)
      fn(w:detach())
      assert.equal(version + 2, w:version())
    end
  end)

  it('that backward needs may not change', function()
    local w = ms.ones(2, { requires_grad = true })
    local y = (w * x:narrow(2, 1, 2)[1]):sum()
    x[1] = 0
    checks.raises('RuntimeError', 'was modified by an in-place operation', y.backward, y)
  end)

  it('refuse other values', function()
    checks.raises('TypeError', "t[1] = x: x is a string, expected a number or a tensor", set, x, 1,
      'one')
    checks.raises('TypeError', 'x is nil', set, x, 1, nil)
    checks.raises('ValueError', 'does not broadcast', set, x, 1, ms.ones(2))
    checks.raises('KeyError', "a tensor has no field 'name'; t[i] = x writes entry i", set, x,
      'name', 1)
  end)

  it('do not hide methods', function()
    assert.equal(21, x:sum():item())
    checks.raises('KeyError', "a tensor has no 'shpae', did you mean 'shape'?", get, x,
      'shpae')
    local expected = "t[i]: 'i' is a %s, expected an integer (of one entry), a bool tensor or the"
    checks.raises('TypeError', expected:format('boolean'), get, x, true)
    checks.raises('TypeError', expected:format('table'), get, x, { 1, 2 })
  end)

  it('say what to write for fields that are assigned elsewhere', function()
    checks.raises('KeyError', "no field 'requires_grad'; write t:requires_grad_(on)", set, x,
      'requires_grad', false)
    checks.raises('KeyError', "no field 'grad'; write t:set_grad(x)", set, x, 'grad', nil)
  end)

  it('can be iterated with ipairs', function()
    local sums = {}
    for i, row in ipairs(x) do
      sums[i] = row:sum():item()
    end
    assert.same({ x[1]:sum():item(), x[2]:sum():item() }, sums)
    checks.raises('TypeError', 'the tensor has no dimensions', ipairs, x:sum())
    checks.raises('TypeError', 'ipairs(t) gives its entries', pairs, x)
  end)

  it('belong to the scope that made them', function()
    local kept
    ms.scope(function()
      kept = x[1]
    end)
    checks.raises('RuntimeError', 'released at the end of', kept.sum, kept)
    x[1] = 3 -- outside any scope: the view it writes through is given up at once
    assert.equal(1, checks.live_handles())
  end)
end)
