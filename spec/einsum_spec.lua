-- lua/moonshard/ops/einsum.lua
local ms = require 'moonshard'
local checks = require 'support.checks'

local einsum = ms.ops.einsum

describe('einsum', function()
  teardown(function()
    assert.equal(0, checks.live_handles())
  end)

  local a, b, square
  before_each(function()
    a = ms.tensor { { 1, 2, 3 }, { 4, 5, 6 } }
    b = ms.tensor { { 1, 0, 2 }, { 0, 1, 1 } }
    square = ms.tensor { { 1, 2 }, { 3, 4 } }
  end)
  after_each(function()
    a, b, square = nil, nil, nil
  end)

  it('multiplies, sums and permutes by subscripts', function()
    assert.same({ { 7, 5 }, { 16, 11 } }, einsum('ij,kj->ik', a, b):totable())
    assert.same({ { 7, 5 }, { 16, 11 } }, einsum('ij, kj', { a, b }):totable())
    assert.equal(18, einsum('ij,ij->', a, b):item())
    assert.same({ { 1, 4 }, { 2, 5 }, { 3, 6 } }, einsum('ba', a):totable())
    assert.same({ { 7, 10 }, { 15, 22 } }, einsum('ij,jk->ik', square, square):totable())
    assert.same({ { 7, 5 }, { 16, 11 } }, einsum('ij,kj->ik', a:i64(), b:i64()):totable())
    assert.same({ 78, 186 }, einsum('ij,kj,k->i', a, a, ms.tensor { 1, 2 }):totable())
  end)

  it('takes diagonals, batches and further dimensions', function()
    assert.equal(5, einsum('ii', square):item())
    assert.same({ 1, 4 }, einsum('ii->i', square):totable())
    local batch = ms.stack { square, square * 2 }
    assert.same({ { { 7, 10 }, { 15, 22 } }, { { 28, 40 }, { 60, 88 } } },
      einsum('bij,bjk->bik', batch, batch):totable())
    assert.same({ { { 7, 10 }, { 15, 22 } }, { { 14, 20 }, { 30, 44 } } },
      einsum('...ij,...jk->...ik', batch, square):totable())
    assert.same({ 3, 7 }, einsum('...j->...', square):totable())
  end)

  it('has gradients', function()
    square:requires_grad_()
    einsum('ij,jk->', square, ms.tensor { { 1, 2 }, { 3, 4 } }):backward()
    assert.same({ { 3, 7 }, { 3, 7 } }, square:grad():totable())
  end)

  it('names what does not fit', function()
    checks.raises('ValueError', "einsum: 'ij,jk': dimension 'j' has sizes 3 and 2", einsum, 'ij,jk',
      a, b)
    checks.raises('ValueError', "'ijk' for 2 dimensions", einsum, 'ijk', a)
    checks.raises('ValueError', '1 subscripts for 2 tensors', einsum, 'ij', a, b)
    checks.raises('ValueError', "'k' in the result is in no operand", einsum, 'ij->k', a)
    checks.raises('TypeError', "einsum: 'operand 1' is nil", einsum, 'ij')
  end)

  it('inner sums over the last dimensions', function()
    assert.same({ { 7, 5 }, { 16, 11 } }, a:inner(b):totable())
    assert.equal(14, ms.ops.inner(a[1], a[1]):item())
    checks.raises('ValueError', 'inner: last dimensions are 3 and 2', ms.ops.inner, a, square)
  end)
end)
