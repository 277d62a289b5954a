-- lua/moonshard/{tensor,create,format,dims}.lua: making, viewing and printing tensors
local ms = require 'moonshard'
local checks = require 'support.checks'

describe('a tensor', function()
  teardown(function()
    assert.equal(0, checks.live_handles())
  end)

  describe('when made', function()
    it('holds the values of a nested table in row-major order', function()
      local x = ms.tensor { { 1, 2, 3 }, { 4, 5, 6 } }
      assert.same({ 2, 3 }, x:shape())
      assert.same({ { 1, 2, 3 }, { 4, 5, 6 } }, x:totable())
      assert.equal('f32', x:dtype())
      assert.equal(6, x:numel())
      assert.same({ 3, 1 }, x:stride())
    end)

    it('is bool for booleans and has no dimensions for a number', function()
      assert.same({ true, false }, ms.tensor({ true, false }):totable())
      assert.same({ false, false }, ms.full({ 2 }, true):fill_(false):totable())
      local x = ms.tensor(2.5)
      assert.same({}, x:shape())
      assert.equal(2.5, x:totable())
      assert.equal(2.5, x:item())
    end)

    it('refuses a ragged table and names the row', function()
      checks.raises('ValueError', 'entry [2] has 1 entries, expected 2', ms.tensor,
        { { 1, 2 }, { 3 } })
      checks.raises('TypeError', 'entry [2] is a string', ms.tensor, { 1, 'two' })
    end)

    it('takes sizes one by one or as a list, options last', function()
      assert.same({ 2, 3 }, ms.zeros(2, 3):shape())
      assert.same({ 2, 3 }, ms.zeros({ 2, 3 }):shape())
      assert.equal('f64', ms.ones(2, { dtype = 'f64' }):dtype())
      assert.equal('bf16', ms.ones({ 2 }, { dtype = ms.bf16 }):dtype())
      assert.same({}, ms.zeros({ dtype = 'i64' }):shape())
      assert.same({ 7, 7 }, ms.full({ 2 }, 7):totable())
    end)

    it('takes options in the list of sizes or after it', function()
      for _, make in ipairs { ms.zeros, ms.ones, ms.empty, ms.rand, ms.randn } do
        for _, t in ipairs {
          make(2, 3, { dtype = 'f64' }), make({ 2, 3 }, { dtype = 'f64' }),
          make { 2, 3, dtype = 'f64' },
        } do
          assert.same({ 2, 3 }, t:shape())
          assert.equal('f64', t:dtype())
        end
        checks.raises('ValueError', "unknown option 'dtpe', did you mean 'dtype'?", make,
          { 2, 3, dtpe = 'f64' })
        checks.raises('TypeError', 'size nil of dimension 1 is not an integer', make, nil)
      end
      assert.equal('f64', ms.tensor({ 1, 2, dtype = 'f64' }):dtype())
      assert.equal('f64', ms.full({ 2, dtype = 'f64' }, 1):dtype())
      checks.raises('TypeError', 'requires_grad of a i64 tensor', ms.zeros, 2,
        { dtype = 'i64', requires_grad = true })
    end)

    it('refuses numbers that its dtype does not hold', function()
      checks.raises('ValueError',
        'tensor: entry [2,1]: 300 does not fit in u8, expected whole numbers from 0 to 255',
        ms.tensor, { { 1, 2 }, { 300, 4 } }, { dtype = 'u8' })
      checks.raises('ValueError', 'tensor: entry [1]: -1 does not fit in u8', ms.tensor,
        { -1, dtype = 'u8' })
      checks.raises('ValueError', 'entry [2]: 1.5 does not fit in i64', ms.tensor,
        { 1, 1.5, dtype = 'i64' })
      checks.raises('ValueError', 'tensor: nan does not fit in i64', ms.tensor, 0 / 0,
        { dtype = 'i64' })
      checks.raises('ValueError', 'full: 256 does not fit in u8', ms.full, { 2 }, 256,
        { dtype = 'u8' })
      checks.raises('ValueError', 'arange: the last number: 256 does not fit in u8', ms.arange, 0,
        257, 1, { dtype = 'u8' })
      checks.raises('ValueError', 'arange: the step: 0.5 does not fit in i64', ms.arange, 0, 2, 0.5,
        { dtype = 'i64' })
      assert.same({ true, false }, ms.tensor({ 2, 0 }, { dtype = 'bool' }):totable())
    end)

    it('refuses lists with holes', function()
      checks.raises('ValueError', 'tensor: the table has nil among its entries, expected none',
        ms.tensor, { 1, nil, 3, nil })
      checks.raises('ValueError', 'tensor: entry [2] has nil among its entries', ms.tensor,
        { { 1, 2 }, { nil, 4 } })
    end)

    it('counts with arange from 0, or from a start below a stop', function()
      assert.same({ 0, 1, 2 }, ms.arange(3):totable())
      assert.equal('i64', ms.arange(3):dtype())
      assert.same({ 2, 4 }, ms.arange(2, 6, 2):totable())
      assert.same({ 1, 0.5 }, ms.arange(1, 0, -0.5):totable())
      assert.same({ 0 }, ms.arange(0):shape())
      assert.same({ 0 }, ms.arange(5, 5, -1):shape())
      for numbers, told in pairs {
        [{ 5, 1 }] = '5 to 1 by 1', [{ -3 }] = '0 to -3 by 1', [{ 1, 5, -1 }] = '1 to 5 by -1',
        [{ 1, 0.5 }] = '1 to 0.5 by 1',
      } do
        checks.raises('ValueError', ('arange: from %s leads away, expected a step of the '
          .. 'other sign'):format(told), ms.arange, unpack(numbers))
      end
    end)

    it('comes from linspace, eye and other tensors', function()
      assert.same({ -1, -0.5, 0, 0.5, 1 }, ms.linspace(-1, 1, 5):totable())
      assert.same({ 0, 3 }, ms.linspace(0, 3.5, 2, { dtype = 'i64' }):totable())
      assert.same({ { 1, 0, 0 }, { 0, 1, 0 } }, ms.eye(2, 3):totable())
      assert.equal('f64', ms.eye(2, { dtype = 'f64' }):dtype())
      local x = ms.zeros(2, 3, { dtype = 'i64' })
      for name, value in pairs { zeros_like = 0, ones_like = 1 } do
        assert.same({ { value, value, value }, { value, value, value } }, ms[name](x):totable())
        assert.equal('i64', ms[name](x):dtype())
      end
      assert.same({ 4, 4 }, ms.full_like(ms.ones(2), 4):totable())
      assert.same({ 2, 3 }, ms.empty_like(x, { dtype = 'f32' }):shape())
      assert.same({ 2, 3 }, ms.rand_like(x, { dtype = 'f32' }):shape())
      assert.is_true(ms.randn_like(ms.ones(4), { seed = 3 }):equal(ms.randn(4, { seed = 3 })))
    end)

    it('is drawn with randperm, randint and multinomial', function()
      ms.manual_seed(7)
      assert.same(ms.arange(1, 101):totable(), (ms.randperm(100):sort()):totable())
      local whole = ms.randint(-2, 3, { 1000 })
      assert.equal(-2, whole:min():item())
      assert.equal(2, whole:max():item())
      assert.same({ 2, 3 }, ms.randint(5, { 2, 3 }):shape())
      local probs = ms.tensor { { 1, 0, 3 }, { 0, 2, 0 } }
      local drawn = ms.multinomial(probs, 2000, { replacement = true })
      assert.is_false(drawn[1]:eq(2):any())
      local share = drawn[1]:eq(3):sum():item() / 2000
      assert.is_true(math.abs(share - 0.75) < 0.05)
      assert.is_true(drawn[2]:eq(2):all())
      assert.same({ 1, 3 }, (ms.multinomial(probs[1], 2):sort()):totable())
      checks.raises('ValueError', '1 probabilities are above 0, expected finite numbers of 0 or '
        .. 'more, at least 2', ms.multinomial, probs, 2)
      checks.raises('ValueError', 'a probability is negative', ms.multinomial, -probs, 1)
    end)

    it('is random by seed', function()
      local a, b = ms.randn(64, { seed = 1 }), ms.randn(64, { seed = 1 })
      assert.equal(a:hash(), b:hash())
      assert.not_equal(a:hash(), ms.randn(64, { seed = 2 }):hash())
      assert.not_equal(ms.randn(64):hash(), ms.randn(64):hash())
      ms.manual_seed(5)
      local c = ms.rand(64)
      ms.manual_seed(5)
      assert.equal(c:hash(), ms.rand(64):hash())
      ms.manual_seed(0)
      for _, x in ipairs(c:totable()) do
        assert.is_true(x >= 0 and x < 1)
      end
    end)
  end)

  describe('when printed', function()
    it('shows whole numbers without digits and others with four', function()
      assert.equal("tensor([1., 2.], dtype='f32', shape=(2))", tostring(ms.tensor { 1, 2 }))
      assert.equal("tensor([0.2500, 1.0000], dtype='f64', shape=(2))",
        tostring(ms.tensor({ 0.25, 1 }, { dtype = 'f64' })))
      assert.equal("tensor([0, 1], dtype='i64', shape=(2))", tostring(ms.arange(2)))
      assert.equal("tensor(3., dtype='f32')", tostring(ms.tensor(3)))
    end)

    it('shows every digit of 64-bit integers', function()
      local largest = ms.tensor(1e30):to('i64') -- 2^63 - 1, whose nearest double is 2^63
      assert.equal("tensor(9223372036854775807, dtype='i64')", tostring(largest))
      local x = ms.tensor({ { 2 ^ 53, 0 }, { -2 ^ 53, -1 / 0 } }, { dtype = 'f64' }):to('i64') + 1
      assert.equal('tensor([[    9007199254740993,                    1],\n        '
        .. "[   -9007199254740991, -9223372036854775807]], dtype='i64', shape=(2, 2))", tostring(x))
      assert.equal("tensor([ 9007199254740993, -9007199254740991], dtype='i64', shape=(2))",
        tostring(x:t()[1]))
      assert.equal("tensor(-9007199254740991, dtype='i64')", tostring(x[2][1]))
      assert.equal("tensor([], dtype='i64', shape=(0))", tostring(ms.zeros(0, { dtype = 'i64' })))
      assert.equal("tensor([255,   0], dtype='u8', shape=(2))",
        tostring(ms.tensor({ 255, 0 }, { dtype = 'u8' })))
    end)

    it('aligns columns and starts each row on a line', function()
      assert.equal("tensor([[ 1., -2.],\n        [30.,  4.]], dtype='f32', shape=(2, 2))",
        tostring(ms.tensor { { 1, -2 }, { 30, 4 } }))
    end)

    it('uses exponents for a wide range, and names nan and inf', function()
      assert.equal("tensor([1.0000e+00, 1.0000e-05], dtype='f64', shape=(2))",
        tostring(ms.tensor({ 1, 1e-5 }, { dtype = 'f64' })))
      assert.equal("tensor([ nan,  inf, -inf], dtype='f32', shape=(3))",
        tostring(ms.tensor { 0 / 0, 1 / 0, -1 / 0 }))
    end)

    it('leaves out the middle of more than 1000 elements', function()
      assert.equal("tensor([   0,    1,    2, ..., 1998, 1999, 2000], dtype='i64', shape=(2001))",
        tostring(ms.arange(2001)))
      assert.is_nil(tostring(ms.arange(1000)):find('...', 1, true))
      assert.equal('tensor([[   1,    2,    3, ...,  598,  599,  600],\n        [ 601,  602,  603, '
        .. "..., 1198, 1199, 1200]], dtype='i64', shape=(2, 600))",
        tostring((ms.arange(1200) + 1):reshape(2, 600)))
    end)

    it('reads only the elements that it shows', function()
      local x = ms.zeros(1000, 1000)
      collectgarbage()
      collectgarbage 'stop'
      local before = collectgarbage 'count'
      tostring(x)
      local kib = collectgarbage 'count' - before
      collectgarbage 'restart'
      assert.is_true(kib < 1024, kib .. ' KiB of Lua memory')
    end)

    it('shows requires_grad, empty and released tensors', function()
      assert.equal("tensor([1.], dtype='f32', shape=(1), requires_grad=true)",
        tostring(ms.ones(1, { requires_grad = true })))
      assert.equal("tensor([], dtype='f32', shape=(0))", tostring(ms.zeros(0)))
      local x = ms.ones(1)
      x:release()
      assert.equal('tensor(released)', tostring(x))
    end)
  end)

  describe('when viewed', function()
    local x
    before_each(function() x = ms.tensor { { 1, 2, 3 }, { 4, 5, 6 } } end)
    after_each(function() x = nil end)

    it('counts dimensions and positions from 1, and from the end', function()
      assert.equal(2, x:size(1))
      assert.equal(3, x:size(-1))
      assert.same({ { 2, 3 }, { 5, 6 } }, x:narrow(2, 2, 2):totable())
      assert.same({ { 4, 5, 6 } }, x:narrow(-2, 2, 1):totable())
      assert.same({ 3, 6 }, x:select(2, 3):totable())
      assert.same({ { 1, 4 }, { 2, 5 }, { 3, 6 } }, x:t():totable())
      assert.same({ 3, 2 }, x:permute(2, 1):shape())
      assert.same({ 3, 2 }, x:transpose(1, -1):shape())
    end)

    it('refuses dimensions out of range', function()
      checks.raises('IndexError', 'dimension 0 is out of range for 2 dimensions (they count from'
        .. ' 1)', x.size, x, 0)
      checks.raises('IndexError', 'dimension 3 is out of range', x.sum, x, 3)
      checks.raises('IndexError', '2 entries from 3 exceed dimension 2 of size 3', x.narrow, x, 2,
        3, 2)
      checks.raises('IndexError', 'entry 0 is out of range', x.select, x, 1, 0)
      checks.raises('ValueError', '1 dimensions given, expected 2', x.permute, x, 1)
    end)

    it('shares memory in views and not in clones', function()
      local row, copy = x:narrow(1, 1, 1), x:clone()
      row:fill_(9)
      assert.same({ { 9, 9, 9 }, { 4, 5, 6 } }, x:totable())
      assert.same({ { 1, 2, 3 }, { 4, 5, 6 } }, copy:totable())
      assert.equal(1, x:version())
    end)

    it('reshapes with one size left open', function()
      assert.same({ 3, 2 }, x:reshape(3, -1):shape())
      assert.same({ 1, 2, 3, 4, 5, 6 }, x:view(-1):totable())
      assert.same({ 1, 4, 2, 5, 3, 6 }, x:t():reshape(6):totable())
    end)

    it('refuses a view that would need a copy', function()
      checks.raises('RuntimeError', 'strides (1, 3) do not allow this shape without a copy',
        x.view, x:t(), 6)
      assert.is_false(x:t():is_contiguous())
      assert.is_true(x:t():contiguous():is_contiguous())
    end)

    it('casts by name', function()
      assert.equal('f64', x:to('f64'):dtype())
      assert.equal('bf16', x:bf16():dtype())
      assert.same({ { 1, 2, 3 }, { 4, 5, 6 } }, x:i64():totable())
    end)
  end)

  describe('when written in place', function()
    it('adds scaled, copies with broadcasting and fills', function()
      local x = ms.zeros(2, 2)
      assert.equal(x, x:add_(ms.tensor { 1, 2 }, 3))
      assert.same({ { 3, 6 }, { 3, 6 } }, x:totable())
      assert.same({ { 4, 7 }, { 4, 7 } }, x:add_(1):totable())
      assert.same({ { 5, 6 }, { 5, 6 } }, x:copy_(ms.tensor { 5, 6 }):totable())
      assert.same({ { 0, 0 }, { 0, 0 } }, x:zero_():totable())
      assert.same({ { 2, 1 }, { 2, 1 } }, x:add_(1):mul_(3):sub_(1):div_(ms.tensor { 1, 2 })
        :totable())
      checks.raises('ValueError', 'shape (3, 2, 2) does not broadcast to (2, 2)', x.mul_, x,
        ms.ones(3, 2, 2))
    end)

    it('clamps, fills where a mask is, and draws', function()
      local x = ms.tensor { -3, 2, 7 }
      local version = x:version()
      assert.same({ 0, 2, 5 }, x:clamp_(0, 5):totable())
      assert.same({ 0, 9, 9 }, x:masked_fill_(x:gt(1), 9):totable())
      assert.is_true(x:uniform_(2, 3):ge(2):all())
      assert.is_true(x:normal_(100, 0.1):gt(90):all())
      assert.equal(version + 4, x:version())
      x:requires_grad_()
      for _, name in ipairs { 'clamp_', 'normal_', 'uniform_' } do
        checks.raises('RuntimeError', name .. ': the tensor requires grad', x[name], x, 0)
      end
    end)

    it('refuses numbers that its dtype does not hold', function()
      local bytes, ids = ms.zeros(2, { dtype = 'u8' }), ms.zeros(2, { dtype = 'i64' })
      checks.raises('ValueError', 'fill_: 300 does not fit in u8', bytes.fill_, bytes, 300)
      checks.raises('ValueError', 'fill_: 1.5 does not fit in i64', ids.fill_, ids, 1.5)
      checks.raises('ValueError', 't[2] = x: -1 does not fit in u8', function() bytes[2] = -1 end)
      bytes[2] = true
      assert.same({ 0, 1 }, bytes:totable())
      assert.same({ 0, 0 }, ids:totable())
    end)
  end)

  it('names the method in place of an operator', function()
    local x = ms.ones(2)
    checks.raises('TypeError', 't:size(1) or t:numel()', function() return #x end)
    checks.raises('TypeError', 'use tostring(t)', function() return 'x' .. x end)
    checks.raises('TypeError', 't[i] for an entry', function() return x(1) end)
    checks.raises('TypeError', 't:shape() gives all sizes', x.size, x)
  end)

  it('hashes values, not strides', function()
    local x = ms.tensor { { 1, 2 }, { 3, 4 } }
    assert.equal(x:hash(), ms.tensor({ { 1, 3 }, { 2, 4 } }):t():hash())
    assert.equal(16, #x:hash())
    assert.not_equal(x:hash(), x:t():hash())
  end)
end)
