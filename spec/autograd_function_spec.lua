-- Functions with a backward of their own.
local ms = require 'moonshard'
local checks = require 'support.checks'

local Function = ms.autograd.Function

describe('a custom function', function()
  -- a * b and a + b * k
  local Both = Function.extend 'Both'

  function Both.forward(ctx, a, b, k)
    ctx:save_for_backward(a, b)
    ctx.k = k
    return a * b, a + b * k
  end

  function Both.backward(ctx, product, sum)
    local a, b = ctx:saved_tensors()
    assert.same({ true, true, false }, ctx.needs_input_grad)
    return product * b + sum, product * a + sum * ctx.k
  end

  it('has the gradients that its backward gives', function()
    local a, b = ms.tensor { 1, 2 }, ms.tensor { 3, 4 }
    a:requires_grad_(true)
    b:requires_grad_(true)
    local p, s = Both.apply(a * 1, b, 10)
    assert.same({ { 3, 8 }, { 31, 42 } }, { p:totable(), s:totable() })
    local y = p * 2 + s
    y:sum():backward()
    assert.same({ 7, 9 }, a:grad():totable())
    assert.same({ 12, 14 }, b:grad():totable())
    b:set_grad(nil)
    Both.apply(a, b, 10):sum():backward() -- the second result has a gradient of zeros
    assert.same({ 1, 2 }, b:grad():totable())
  end)

  it('is not recorded without operands that require grad', function()
    local p = Both.apply(ms.ones(2), ms.ones(2), 1)
    assert.is_false(p:requires_grad())
  end)

  it('runs in no scope of its own: results of a module outlive it', function()
    local Net = ms.nn.Module.extend 'Net'
    function Net:forward(x) return (select(2, Both.apply(x, x * 2, 1))) end
    local x = ms.ones(2):requires_grad_(true)
    Net()(x):sum():backward()
    assert.same({ 3, 3 }, x:grad():totable())
  end)

  it('keeps the places of what it saves', function()
    local Affine = Function.extend 'Affine'
    function Affine.forward(ctx, x, scale, shift)
      ctx:save_for_backward(shift, scale, nil)
      return x * scale + (shift or 0)
    end
    function Affine.backward(ctx, grad)
      local shift, scale = ctx:saved_tensors()
      assert.is_nil(shift)
      assert.equal(3, select('#', ctx:saved_tensors()))
      return scale * grad, grad
    end
    local x = ms.ones(2):requires_grad_(true)
    Affine.apply(x, ms.full({ 2 }, 3), nil):sum():backward()
    assert.same({ 3, 3 }, x:grad():totable())
  end)

  it('gets clear errors', function()
    local x = ms.ones(2):requires_grad_(true)
    local Bad = Function.extend 'Bad'
    function Bad.forward(ctx, t)
      ctx:save_for_backward(t)
      return t * 2
    end
    function Bad.backward() return ms.ones(3) end
    checks.raises('ValueError', 'input 1 is f32 of shape (3), expected f32 of shape (2)', function()
      Bad.apply(x):sum():backward()
    end)
    function Bad.backward(_, grad) return grad, grad end
    checks.raises('RuntimeError', 'BadBackward returned an incorrect number of gradients (expected '
      .. '1, got 2)', function() Bad.apply(x):sum():backward() end)
    function Bad.backward() end
    checks.raises('RuntimeError', '(expected 1, got 0)', function()
      Bad.apply(x):sum():backward()
    end)
    function Bad.backward(ctx) return ctx:saved_tensors() end
    local h = x * 1
    local y = Bad.apply(h)
    ms.no_grad(h.add_, h:detach(), 1)
    checks.raises('RuntimeError', 'saved tensor 1 of Bad was modified', y.backward, y:sum())
    function Bad.backward() error('mine', 0) end
    local ok, err = pcall(function() Bad.apply(x):sum():backward() end)
    assert.same({ false, 'mine' }, { ok, err })
  end)
end)
