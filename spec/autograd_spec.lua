-- lua/moonshard/autograd/init.lua: gradients and hooks through Lua
local ms = require 'moonshard'
local checks = require 'support.checks'

local function leaf(values)
  return ms.tensor(values, { dtype = 'f64', requires_grad = true })
end

describe('autograd', function()
  teardown(function()
    assert.equal(0, checks.live_handles())
  end)

  it('differentiates an expression', function()
    local a, b = leaf { 1, 2 }, leaf { 3, 5 }
    local y = (a * b + a / b):sum()
    y:backward() -- dy/da = b + 1/b, dy/db = a - a/b^2
    checks.close({ 3 + 1 / 3, 5 + 1 / 5 }, a:grad(), 1e-14)
    checks.close({ 1 - 1 / 9, 2 - 2 / 25 }, b:grad(), 1e-14)
  end)

  it('accumulates gradients; set_grad replaces them', function()
    local a = leaf { 2 }
    assert.is_nil(a:grad())
    for _ = 1, 2 do
      (a * 3):sum():backward()
    end
    assert.equal(6, a:grad():item())
    a:set_grad(ms.tensor({ 1 }, { dtype = 'f64' }))
    assert.equal(1, a:grad():item())
    checks.raises('TypeError', 'is f32, expected f64', a.set_grad, a, ms.ones(1))
    a:set_grad(nil)
    assert.is_nil(a:grad())
    checks.raises('TypeError', 'is f32, expected f64', a.set_grad, a, ms.ones(1))
  end)

  it('runs several backwards over a retained graph', function()
    local a = leaf { 2, 3 }
    local y = a * a * a
    local seen = 0
    y:hook(function() seen = seen + 1 end)
    y:backward(ms.ones(2, { dtype = 'f64' }), { retain_graph = true })
    assert.same({ 12, 27 }, a:grad():totable())
    y:backward(ms.ones(2, { dtype = 'f64' }), { retain_graph = true })
    y:sum():backward { retain_graph = true }
    assert.same({ 36, 81 }, a:grad():totable())
    y:sum():backward()
    assert.same({ 48, 108 }, a:grad():totable())
    assert.equal(4, seen)
    checks.raises('RuntimeError', 'retain_graph = true', function() y:sum():backward() end)
  end)

  describe('grad', function()
    local grad = ms.autograd.grad

    it('returns gradients and accumulates none', function()
      local a, b = leaf { 2, 3 }, leaf { 5, 7 }
      local h = a * a
      local y = (h * b):sum()
      local ga, gh = unpack(grad(y, { a, h }, nil, { retain_graph = true }))
      assert.same({ 20, 42 }, ga:totable())
      assert.same({ 5, 7 }, gh:totable())
      assert.is_nil(a:grad())
      local ones = ms.ones(2, { dtype = 'f64' })
      local gb = grad({ y, h }, b, { false, ones }, { retain_graph = true })[1]
      assert.same({ 4, 9 }, gb:totable())
      y:backward()
      assert.same({ 20, 42 }, a:grad():totable())
      checks.raises('RuntimeError', 'second time', grad, y, a)
    end)

    it('refuses inputs that the outputs do not use', function()
      local a, b = leaf { 2 }, leaf { 5 }
      local y = a * 3
      checks.raises('RuntimeError', 'appears to not have been used in the graph: input 2', grad, y,
        { a, b }, nil, { retain_graph = true })
      local list = grad(y, { a, b }, nil, { allow_unused = true })
      assert.same({ 3 }, list[1]:totable())
      assert.is_false(list[2])
      checks.raises('RuntimeError', 'does not require grad: input 1', grad, a * 2, ms.ones(1))
    end)
  end)

  it('refuses unknown options of backward', function()
    local y = leaf { 2 } * 3
    checks.raises('NotImplementedError', "'create_graph' is not supported", y.backward, y,
      { create_graph = true })
    checks.raises('ValueError', "did you mean 'retain_graph'", y.backward, y,
      { retain_graphs = true })
    checks.raises('TypeError', "'retain_graph' is a number", y.backward, y, nil,
      { retain_graph = 1 })
    y:backward()
  end)

  it('records nothing inside no_grad', function()
    local a = leaf { 1 }
    local y, n = ms.no_grad(function(k)
      assert.is_false(ms.is_grad_enabled())
      assert.is_true(ms.enable_grad(ms.is_grad_enabled))
      return a * k, k
    end, 2)
    assert.is_false(y:requires_grad())
    assert.equal(2, n)
    assert.is_true(ms.is_grad_enabled())
  end)

  it('records again after an error inside no_grad', function()
    local thrown = {}
    local ok, err = pcall(ms.no_grad, function() error(thrown) end)
    assert.is_false(ok)
    assert.equal(thrown, err)
    assert.is_true(ms.is_grad_enabled())
  end)

  it('gives no gradient to a leaf that was frozen after its use', function()
    local a, b, c, d = leaf { 1, 2 }, leaf { 3, 4 }, leaf { 5, 6 }, leaf { 7, 8 }
    local ones = ms.ones(2, 2, { dtype = 'f64' })
    local y = (a * b + c:exp() + ms.ops.linear(d:reshape { 1, 2 }, ones)):sum()
    for _, t in ipairs { b, c, d } do
      t:requires_grad_(false)
    end
    y:backward()
    assert.same({ 3, 4 }, a:grad():totable())
    for _, t in ipairs { b, c, d } do
      assert.is_nil(t:grad())
    end
    y = (a * b):sum()
    a:requires_grad_(false)
    y:backward()
    assert.same({ 3, 4 }, a:grad():totable())
  end)

  describe('hooks', function()
    it('see the gradient and may replace it', function()
      local a, seen = leaf { 1, 2 }, nil
      local hook = a:hook(function(grad)
        seen = grad:totable()
        return grad * 10
      end)
      ;(a * a):sum():backward()
      assert.same({ 2, 4 }, seen)
      assert.same({ 20, 40 }, a:grad():totable())
      hook:remove()
      ;(a * a):sum():backward()
      assert.same({ 22, 44 }, a:grad():totable())
    end)

    it('are removed by their handle', function()
      local a, calls = leaf { 2 }, 0
      local function count() calls = calls + 1 end
      local hooks = { a:hook(count), a:accumulate_hook(count), a:hook(count) }
      hooks[1]:remove()
      hooks[1].remove()
      hooks[2]:remove()
      ;(a * 3):sum():backward()
      assert.equal(1, calls)
      checks.raises('KeyError', 'another tensor', a.remove_hook, leaf { 1 }, hooks[3])
      checks.raises('TypeError', "'hook' is a number", a.remove_hook, a, 3)
      a:remove_hook(hooks[3])
      a:remove_hook(hooks[3])
      ;(a * 3):sum():backward()
      assert.equal(1, calls)
    end)

    it('may remove themselves', function()
      local a, calls, once = leaf { 2 }, 0, nil
      once = a:hook(function()
        calls = calls + 1
        once:remove()
      end)
      local y = a * 3
      local of_result = y:hook(function() calls = calls + 10 end)
      y:sum():backward()
      of_result:remove()
      y:remove_hook(of_result)
      ;(a * 3):sum():backward()
      assert.equal(11, calls)
    end)

    it('that accumulate_hook registers run after a leaf has its gradient', function()
      local a, seen = leaf { 1 }, {}
      a:accumulate_hook(function(l) seen[#seen + 1] = l:grad():item() end)
      for _ = 1, 2 do
        (a * 3):sum():backward()
      end
      assert.same({ 3, 6 }, seen)
    end)

    it('end the backward with the object that they raise', function()
      local a, thrown = leaf { 1 }, { code = 5 }
      local hook = a:hook(function() error(thrown) end)
      local ok, err = pcall(function() (a * 2):sum():backward() end)
      assert.is_false(ok)
      assert.equal(thrown, err)
      assert.is_nil(a:grad())
      hook:remove()
      ;(a * 2):sum():backward() -- and the engine works again
      assert.equal(2, a:grad():item())
    end)

    it('must return a tensor of the same dtype or nil', function()
      local a = leaf { 1 }
      a:hook(function(grad) return grad + ms.zeros(3, { dtype = 'f32' }) end)
      checks.raises('TypeError', 'f64', function() (a * 2):sum():backward() end)
      a = leaf { 1 }
      a:hook(function() return 3 end)
      checks.raises('TypeError', 'returned a number, expected a tensor or nil',
        function() (a * 2):sum():backward() end)
    end)

    it('release tensors made inside', function()
      local a, kept_grad, kept = leaf { 1 }, nil, nil
      a:hook(function(grad)
        kept_grad = grad
        kept = ms.keep(grad * 4)
      end)
      ;(a * 2):sum():backward()
      checks.raises('RuntimeError', 'was released at the end of a hook', kept_grad.item, kept_grad)
      assert.equal(8, kept:item())
    end)

    it('are freed with their tensor', function()
      local alive = setmetatable({}, { __mode = 'v' })
      do
        local a = leaf { 1 }
        local big = {}
        alive[1] = big
        a:hook(function() return big.none end)
      end
      ms.collect()
      assert.is_nil(alive[1])
    end)
  end)

  -- Lua's collector does not see a cycle of a tensor and a hook that mentions it.
  describe('hooks free the tensors that they mention', function()
    local before

    before_each(function()
      ms.collect()
      before = checks.live_handles()
    end)

    after_each(function()
      ms.collect()
      assert.equal(before, checks.live_handles())
    end)

    it('when backward has used the graph', function()
      local a, seen = leaf { 3 }, nil
      local y = a * a
      y:hook(function(grad)
        seen = (grad * y:detach()):item()
      end)
      ;(y * 5):sum():backward()
      assert.equal(45, seen)
      checks.raises('RuntimeError', 'hook it before backward', y.hook, y, print)
    end)

    it('when they are removed', function()
      local model = ms.nn.Linear(2, 2)
      local y = model(ms.ones(1, 2))
      local hooks = {
        model.weight:hook(function() return model.weight:size(1) end),
        model.bias:accumulate_hook(function() return model end),
        y:hook(function() return y end),
      }
      for _, hook in ipairs(hooks) do
        hook:remove()
      end
    end)
  end)
end)
