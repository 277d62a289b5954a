-- lua/moonshard/ops.lua: operators through Lua (their numbers are tested in C; here the plumbing)
local ms = require 'moonshard'
local ops = ms.ops
local unary = require 'moonshard.internal.unary'
local checks = require 'support.checks'

describe('operators', function()
  teardown(function()
    assert.equal(0, checks.live_handles())
  end)

  it('combine tensors and numbers from both sides', function()
    local x = ms.tensor { 1, 2, 4 }
    assert.same({ 2, 3, 5 }, (x + 1):totable())
    assert.same({ 2, 3, 5 }, (1 + x):totable())
    assert.same({ 0, 1, 3 }, (x - 1):totable())
    assert.same({ 9, 8, 6 }, (10 - x):totable())
    assert.same({ 3, 6, 12 }, (3 * x):totable())
    assert.same({ 0.5, 1, 2 }, (x / 2):totable())
    assert.same({ 4, 2, 1 }, (4 / x):totable())
    assert.same({ -1, -2, -4 }, (-x):totable())
    assert.same({ 2, 4, 8 }, (x + x):totable())
    assert.same({ 0, 0, 0 }, (x - x):totable())
    assert.same({ 1, 4, 16 }, (x * x):totable())
    assert.same({ 1, 1, 1 }, (x / x):totable())
  end)

  it('keep the sign of zeros in products and negations, not in sums', function()
    local zero, below = ms.tensor { 0 }, ms.tensor { -1 } * 0
    assert.equal(-math.huge, 1 / (-zero):item())
    assert.equal(-math.huge, 1 / below:item())
    assert.equal(-math.huge, 1 / (3 * below):item())
    assert.equal(-math.huge, 1 / (zero * -2):item())
    assert.equal(math.huge, 1 / (below + 0):item())
    assert.equal(-math.huge, 1 / (below - 0):item())
  end)

  it('sum along a dimension', function()
    local x = ms.tensor { { 1, 2, 3 }, { 4, 5, 6 } }
    assert.same({ { 1, 2, 3 }, { 5, 7, 9 } }, ops.cumsum(x, 1):totable())
    assert.same({ { 1, 3, 6 }, { 4, 9, 15 } }, x:cumsum(-1):totable())
    assert.equal('i64', x:gt(2):cumsum(2):dtype())
    checks.raises('IndexError', 'cumsum', ops.cumsum, x, 3)
    checks.raises('TypeError', 'cumsum', ops.cumsum, x)
  end)

  it('divide by a number, instead of multiplying by its reciprocal', function()
    local x = ms.tensor({ 5 }, { dtype = 'f64' })
    assert.equal(5 / 49, (x / 49):item())
    assert.not_equal(5 * (1 / 49), (x / 49):item())
  end)

  it('broadcast, and name both shapes when they cannot', function()
    local column, row = ms.tensor { { 1 }, { 2 } }, ms.tensor { 10, 20 }
    assert.same({ { 11, 21 }, { 12, 22 } }, (column + row):totable())
    local err = checks.raises('ValueError', '(2, 3)', ops.add, ms.zeros(2, 3), ms.zeros(4))
    assert.truthy(err.message:find('(4)', 1, true))
  end)

  it('name both dtypes when they differ', function()
    local a, b = ms.zeros(2), ms.zeros(2, { dtype = 'f64' })
    local err = checks.raises('TypeError', 'f32', ops.mul, a, b)
    assert.truthy(err.message:find('f64', 1, true))
  end)

  it('refuse fractions beside integers under the name of what was called', function()
    local ids = ms.arange(3)
    local fraction = 'the tensor is i64 and the number 1.5, expected a whole one; '
      .. "t:to('f32') takes fractions"
    checks.raises('TypeError', 'add: ' .. fraction, function() return ids + 1.5 end)
    checks.raises('TypeError', 'add: ' .. fraction, function() return 1.5 + ids end)
    checks.raises('TypeError', 'sub: ' .. fraction, function() return ids - 1.5 end)
    checks.raises('TypeError', 'sub: ' .. fraction, function() return 1.5 - ids end)
    checks.raises('TypeError', 'mul: ' .. fraction, function() return ids * 1.5 end)
    checks.raises('TypeError', 'div: the tensor is i64', function() return ids / 1.5 end)
    checks.raises('TypeError', 'div: the tensor is i64', function() return 2 / ids end)
    checks.raises('TypeError', 'affine: ' .. fraction, ops.affine, ids, 1, 1.5)
    checks.raises('TypeError', 'add_: ' .. fraction, ids.add_, ids, 1.5)
    checks.raises('TypeError', 'mean: the tensor is i64', ids.mean, ids)
    checks.raises('ValueError', 'where: 1.5 does not fit in i64', ops.where, ids:gt(0), ids, 1.5)
    for _, op in ipairs { 'matmul', 'linear' } do
      checks.raises('NotImplementedError', op .. ' is not implemented for dtype i64', ops[op],
        ms.ones(2, 2, { dtype = 'i64' }), ms.ones(2, 2, { dtype = 'i64' }))
    end
    checks.raises('NotImplementedError', 'mul is not implemented for dtype u8', function()
      return ids:u8() * 3
    end)
    assert.same({ 4, 1, -2 }, (4 - ids * 3):totable())
    assert.same({ 0.5, 2, 3.5 }, (ids:to('f32') * 1.5 + 0.5):totable())
  end)

  it('refuse what is no tensor and name the parameter', function()
    checks.raises('TypeError', "exp: 'x' is a string, expected a tensor", ops.exp, 'x')
    checks.raises('TypeError', "matmul: 'b' is nil, expected a tensor", ops.matmul,
      ms.zeros(1, 1))
    checks.raises('TypeError', 'cat: entry 2 is a number', ops.cat, { ms.zeros(1), 3 })
    checks.raises('TypeError', "dropout: 'site' is a number", ops.dropout, ms.zeros(1), 0.5, 3)
  end)

  it('name themselves, whatever they ask of the tensor first', function()
    for name, given in pairs {
      log_softmax = { 3, 1 }, sum = { 3, 1 }, mean = { 'x', 1 }, permute = { 3, 1 },
      transpose = { 3, 1, 2 }, narrow = { 3, 1, 1, 1 }, select = { 3, 1, 1 },
    } do
      checks.raises('TypeError', ("%s: 'x' is a "):format(name), ops[name], unpack(given))
    end
    for _, name in ipairs { 'add', 'sub', 'mul', 'div' } do
      checks.raises('TypeError', name .. ": 'a' is a number, expected a tensor", ops[name], 3, 1)
      checks.raises('TypeError', name .. ": 'a' is a string", ops[name], 'x', 1)
      checks.raises('TypeError', name .. ": 'b' is a string", ops[name], ms.zeros(1), 'x')
    end
  end)

  it('apply functions to every element', function()
    local x = ms.tensor({ 0.5, 1, 2 }, { dtype = 'f64' })
    checks.close({ math.exp(0.5), math.exp(1), math.exp(2) }, x:exp(), 1e-14)
    checks.close({ math.log(0.5), 0, math.log(2) }, x:log(), 1e-14)
    checks.close({ math.sqrt(0.5), 1, math.sqrt(2) }, x:sqrt(), 1e-14)
    checks.close({ math.tanh(0.5), math.tanh(1), math.tanh(2) }, x:tanh(), 1e-14)
    checks.close({ 2, 1, 0.5 }, x:reciprocal(), 1e-14)
    assert.same({ 0, 3 }, ms.tensor({ -1, 3 }):relu():totable())
  end)

  it('take the logarithm of 1 + exp(x) up to a threshold', function()
    local x = ms.tensor({ -1, 0.5, 30 }, { dtype = 'f64' })
    local function soft(v, beta) return math.log(1 + math.exp(beta * v)) / beta end
    checks.close({ soft(-1, 1), soft(0.5, 1), 30 }, ops.softplus(x), 1e-14)
    checks.close({ soft(-1, 2), soft(0.5, 2), 30 }, x:softplus(2), 1e-14)
    checks.close({ soft(-1, 2), 0.5, 30 }, x:softplus(2, 0.9), 1e-14)
  end)

  it('take the larger and the smaller of two, and bound', function()
    local a = ms.tensor({ 1, 5, 2 }, { requires_grad = true })
    local b = ms.tensor({ 3, 5, -1 }, { requires_grad = true })
    assert.same({ 3, 5, 2 }, ops.maximum(a, b):totable())
    assert.same({ 1, 5, -1 }, a:minimum(b):totable())
    ops.maximum(a, b):sum():backward() -- equal ones share
    assert.same({ { 0, 0.5, 1 }, { 1, 0.5, 0 } }, { a:grad():totable(), b:grad():totable() })
    assert.same({ 2, 5, 2 }, a:clamp(2):totable())
    assert.same({ 1, 2, 2 }, a:clamp(nil, 2):totable())
    a:set_grad(nil)
    a:clamp(1, 2):sum():backward() -- on a bound is inside
    assert.same({ 1, 0, 1 }, a:grad():totable())
    local nan = a:detach():clamp(0 / 0)
    assert.same({ true, true, true }, nan:isnan():totable())
    assert.same({ 1, 2, 2 }, ops.clamp(ms.tensor({ 1, 5, 2 }, { dtype = 'i32' }), nil, 2):totable())
    checks.raises('ValueError', "both 'min' and 'max' are nil", ops.clamp, a)
    checks.raises('TypeError', 'clamp', ops.clamp, ms.tensor({ 1 }, { dtype = 'i64' }), 0.5)
    checks.raises('TypeError', 'maximum: a is f32 and b is i64', ops.maximum, a,
      ms.tensor({ 1 }, { dtype = 'i64' }))
  end)

  it('tell what is no number', function()
    local x = ms.tensor { 1, 1 / 0, -1 / 0, 0 / 0 }
    assert.same({ false, false, false, true }, x:isnan():totable())
    assert.same({ false, true, true, false }, x:isinf():totable())
    assert.same({ true, false, false, false }, ops.isfinite(x):totable())
    assert.same({ true }, ms.tensor({ 3 }, { dtype = 'i64' }):isfinite():totable())
  end)

  it('take a softmax over any dimension', function()
    local x = ms.tensor({ { 0, math.log(3) }, { 0, 0 } }, { dtype = 'f64' })
    checks.close({ { 0.25, 0.75 }, { 0.5, 0.5 } }, x:softmax(), 1e-15)
    checks.close({ { 0.5, 0.75 }, { 0.5, 0.25 } }, ops.softmax(x, 1), 1e-15)
    assert.same({ true, true }, ms.tensor({ -1 / 0, -1 / 0 }):softmax():isnan():totable())
    checks.raises('IndexError', 'softmax: dimension 3 is out of range', x.softmax, x, 3)
    checks.raises('ValueError', 'softmax: x has shape (), expected (..., C)', ops.softmax,
      ms.tensor(1))
  end)

  it('keep integers where the result is whole', function()
    local x = ms.tensor({ -3, 0, 7 }, { dtype = 'i64' })
    assert.same({ 3, 0, 7 }, x:abs():totable())
    assert.same({ -1, 0, 1 }, x:sign():totable())
    assert.same({ 9, 0, 49 }, x:square():totable())
    assert.same({ 3, 0, -7 }, x:neg():totable())
    checks.raises('NotImplementedError', 'sin is not implemented for dtype i64', x.sin, x)
  end)

  it('know each function of one tensor by its name, as a method too', function()
    local x = ms.tensor({ -0.5, 1, 2.5 }, { dtype = 'f64' })
    local named = {}
    for _, name in ipairs(unary.functions) do
      local y = ops[name](x)
      assert.equal(y:hash(), x[name](x):hash())
      assert.is_nil(named[y:hash()], name .. ' is ' .. tostring(named[y:hash()]))
      named[y:hash()] = name
      assert.same({ 'f64', { 3 } }, { y:dtype(), y:shape() })
      assert.is_true(ops[name](x:clone():requires_grad_()):requires_grad())
    end
  end)

  it('raise to a power', function()
    local x = ms.tensor({ 1, 2, 4 }, { dtype = 'f64' })
    assert.same({ 1, 4, 16 }, (x ^ 2):totable())
    assert.same({ 1, 8, 64 }, x:pow(3):totable())
    assert.same({ 1, 0.5, 0.25 }, (x ^ -1):totable())
    checks.close({ 1, math.sqrt(2), 2 }, x ^ 0.5, 1e-15)
    checks.close({ 1, 2 ^ 2.5, 32 }, ops.pow(x, 2.5), 1e-14)
    assert.same({ -8, 9 }, { (ms.tensor(-2) ^ 3):item(), (ms.tensor(-3) ^ 2):item() })
    local leaf = ms.tensor({ 0, 3 }, { requires_grad = true })
    ;(leaf ^ 2):sum():backward()
    assert.same({ 0, 6 }, leaf:grad():totable())
    checks.raises('NotImplementedError', 'the exponent is a tensor', ops.pow, x, x)
    checks.raises('NotImplementedError', 'the exponent is a tensor', function() return 2 ^ x end)
    checks.raises('TypeError', 'the exponent is a string', x.pow, x, 'two')
    checks.raises('ValueError', 'the exponent is inf', x.pow, x, math.huge)
  end)

  it('tell both forms of gelu apart', function()
    local x = ms.tensor({ 1 }, { dtype = 'f64' })
    checks.close(0.8413447460685429, x:gelu():item(), 1e-12) -- Phi(1)
    local inner = math.sqrt(2 / math.pi) * 1.044715
    checks.close(0.5 * (1 + math.tanh(inner)), x:gelu('tanh'):item(), 1e-12)
  end)

  it('keep dimensions that are summed over when told so', function()
    local x = ms.tensor { { 1, 2 }, { 3, 4 } }
    assert.same({ { 4, 6 } }, x:sum(1, true):totable())
    assert.same({ { 4, 6 } }, x:sum(1, { keepdim = true }):totable())
    assert.same({ { 1.5 }, { 3.5 } }, x:mean(2, { keepdim = true }):totable())
    assert.same({ 3, 7 }, x:sum(2, { keepdim = false }):totable())
    checks.raises('ValueError', "sum: unknown option 'keepdims', did you mean 'keepdim'?", x.sum, x,
      1, { keepdims = true })
    checks.raises('TypeError', "mean: 'keepdim' is a number, expected true or false", x.mean, x, 1,
      { keepdim = 1 })
  end)

  it('refuse names where arguments stand by place', function()
    local x = ms.ones(2, 3)
    for text, call in pairs {
      ["sum: 'dimensions' has a field 'dim', expected a plain list"] = function()
        x:sum { dim = 1 }
      end,
      ["mean: 'dimensions' has a field 'keepdim'"] = function() x:mean { 1, keepdim = true } end,
      ["reshape: 'list' has a field 'shape'"] = function() x:reshape { shape = { 3, 2 } } end,
      ["permute: 'list' has a field 'dims'"] = function() x:permute { 2, 1, dims = 2 } end,
      ["cat: 'list' has a field 'dim'"] = function() ms.cat { x, x, dim = 2 } end,
    } do
      checks.raises('TypeError', text, call)
    end
  end)

  it('sum and average over the dimensions given', function()
    local x = ms.tensor { { 1, 2, 3 }, { 4, 5, 6 } }
    assert.equal(21, x:sum():item())
    assert.same({ 5, 7, 9 }, x:sum(1):totable())
    assert.same({ { 6 }, { 15 } }, x:sum(-1, true):totable())
    assert.equal(21, x:sum({ 1, 2 }):item())
    assert.same({ 2, 5 }, x:mean(2):totable())
    checks.raises('ValueError', 'dimension 2 is given twice', x.sum, x, { 2, 2 })
  end)

  it('multiply matrices and apply layers', function()
    local x, w = ms.tensor { { 1, 2 } }, ms.tensor { { 3, 4 }, { 5, 6 }, { 7, 8 } }
    assert.same({ { 11, 17, 23 } }, x:matmul(w:t()):totable())
    assert.same({ { 11, 17, 23 } }, ops.linear(x, w):totable())
    assert.same({ { 12, 18, 24 } }, ops.linear(x, w, ms.ones(3)):totable())
    checks.close(ops.gelu(ops.linear(x, w, ms.ones(3))):totable(),
      ops.linear_gelu(x, w, ms.ones(3)))
    checks.close({ { -1, 1 } }, ops.layer_norm(ms.tensor { { 1, 3 } }, nil, nil, 0))
    checks.close({ math.log(0.25), math.log(0.75) },
      ops.log_softmax(ms.tensor { math.log(1), math.log(3) }))
  end)

  it('take the logarithm of a softmax over any dimension', function()
    local function log(t)
      return ms.tensor(t):log()
    end
    local x = log { { 1, 2 }, { 3, 6 } }
    local columns = { { math.log(0.25), math.log(0.25) }, { math.log(0.75), math.log(0.75) } }
    checks.close(columns, x:log_softmax(1))
    checks.close(columns, ops.log_softmax(x, -2))
    checks.close(x:log_softmax():totable(), x:log_softmax(-1))
    checks.close(x:log_softmax():totable(), x:log_softmax(2))
    checks.raises('IndexError', 'log_softmax: dimension 3 is out of range', x.log_softmax, x, 3)
    checks.raises('ValueError', 'log_softmax: x has shape (), expected (..., C)', ops.log_softmax,
      ms.tensor(3))
    x:requires_grad_()
    x:log_softmax(1)[1]:sum():backward() -- of the first row: 1 - p there, -p in the second
    checks.close({ { 0.75, 0.75 }, { -0.75, -0.75 } }, x:grad())
  end)

  it('name what keeps two matrices from being multiplied', function()
    for problem, shapes in pairs {
      ['(2, 3) and (4, 5), expected (..., m, k) and (..., k, n): k is 3 and 4'] =
        { { 2, 3 }, { 4, 5 } },
      ['(2, 3) and (2), expected (..., m, k) and (..., k, n): k is 3 and 2'] = { { 2, 3 }, { 2 } },
      ['() and (3), expected (..., m, k) and (..., k, n): a number has no dimension to sum over'] =
        { {}, { 3 } },
      ['(2, 2, 3) and (4, 3, 2), expected (..., m, k) and (..., k, n): leading dimensions do not '
        .. 'broadcast'] = { { 2, 2, 3 }, { 4, 3, 2 } },
    } do
      checks.raises('ValueError', 'matmul: shapes are ' .. problem, ms.matmul, ms.ones(shapes[1]),
        ms.ones(shapes[2]))
    end
  end)

  it('multiply vectors, matrices and batches by names that say which', function()
    local m, v = ms.tensor { { 1, 2 }, { 3, 4 } }, ms.tensor { 5, 6 }
    assert.same({ { 7, 10 }, { 15, 22 } }, m:mm(m):totable())
    assert.same({ 17, 39 }, ops.mv(m, v):totable())
    assert.same({ 23, 34 }, v:matmul(m):totable())
    assert.equal(61, v:dot(v):item())
    assert.same({ { 25, 30 }, { 30, 36 } }, v:outer(v):totable())
    local batch = ms.stack { m, m + 1 }
    assert.same({ { { 7, 10 }, { 15, 22 } }, { { 16, 21 }, { 28, 37 } } },
      batch:bmm(batch):totable())
    assert.same(ms.stack({ m:mm(m), (m + 1):mm(m) }):totable(), batch:matmul(m):totable())
    assert.same({ { 17, 39 }, { 28, 50 } }, batch:matmul(v):totable())
    assert.same({ { 12, 16 }, { 20, 28 } }, v:addmm(m, m):totable())
    assert.same({ { 24, 32 }, { 40, 56 } }, v:addmm(m, m, { beta = 2, alpha = 2 }):totable())
    assert.same({ { 7, 10 }, { 15, 22 } }, (v * (0 / 0)):addmm(m, m, { beta = 0 }):totable())
    assert.same({ 2, 2, 2 }, v:baddbmm(batch, batch):shape())
    assert.same({ { 12, 16 }, { 20, 28 } }, v:baddbmm(batch, batch)[1]:totable())
    checks.raises('ValueError', "mm: 'b' has 1 dimensions, expected 2", m.mm, m, v)
    checks.raises('ValueError', 'bmm: batches are 2 and 1', batch.bmm, batch, batch:narrow(1, 1, 1))
    checks.raises('ValueError', 'expand: shape (3)', ms.ones(3).addmm, ms.ones(3), m, m)
    checks.raises('ValueError', "addmm: unknown option 'gamma'", v.addmm, v, m, m, { gamma = 1 })
  end)

  it('look up rows with ids from 0 and name the first id outside', function()
    local table = ms.tensor { { 1, 2 }, { 3, 4 } }
    local ids = ms.tensor({ 1, 0, 1 }, { dtype = 'i64' })
    assert.same({ { 3, 4 }, { 1, 2 }, { 3, 4 } }, ops.embedding(table, ids):totable())
    checks.raises('IndexError', 'id 2', function() -- of the call; on a device, of who reads
      ops.embedding(table, ms.tensor({ 2 }, { dtype = 'i64' })):totable()
    end)
  end)

  it('measure losses, with targets that do not count', function()
    local logits = ms.zeros(3, 4)
    local targets = ms.tensor({ 0, -100, 3 }, { dtype = 'i64' })
    checks.close(math.log(4), ops.cross_entropy(logits, targets):item())
    checks.close(2 * math.log(4), ops.cross_entropy(logits, targets, { reduction = 'sum' }):item())
    checks.close(math.log(4), ops.cross_entropy(logits, ms.tensor({ 1, 7, 7 }, { dtype = 'i64' }),
      { ignore_index = 7 }):item())
    checks.close(2.5, ops.mse_loss(ms.tensor { 1, 2 }, ms.tensor { 2, 4 }):item())
    checks.raises('ValueError', "'reduction' is 'max', expected one of mean, sum", ops.mse_loss,
      logits, logits,
      { reduction = 'max' })
    checks.raises('ValueError', "did you mean 'reduction'?", ops.cross_entropy, logits, targets,
      { reductoin = 'sum' })
  end)

  it('attend over all positions, or over the past only', function()
    local q = ms.zeros(1, 1, 2, 1) -- equal scores: the mean of what is seen
    local v = ms.tensor { { { { 2 }, { 4 } } } }
    checks.close({ { { { 3 }, { 3 } } } }, ops.attention(q, q, v))
    checks.close({ { { { 2 }, { 3 } } } }, ops.attention(q, q, v, { causal = true }))
    local first = q:narrow(3, 1, 1) -- counted from the first key, whatever their numbers are
    checks.close({ { { { 2 } } } }, ops.attention(first, q, v, { causal = true }))
    checks.raises('ValueError', "'scale' is 0", ops.attention, q, q, v, { scale = 0 })
    for _, scale in ipairs { 0 / 0, math.huge, -math.huge } do
      checks.raises('ValueError', 'expected a finite number', ops.attention, q, q, v,
        { scale = scale })
    end
    local qkv = ms.tensor { { { 0, 0, 2 }, { 0, 0, 4 } } }
    checks.close({ { { 2 }, { 3 } } }, ops.attention_packed(qkv, 1, { causal = true }))
  end)

  it('drop elements by site and call, the same ones every time', function()
    local x = ms.ones(4, 64)
    local a = ops.dropout(x, 0.5, 'h.0.drop', 0)
    assert.equal(a:hash(), ops.dropout(x, 0.5, ops.site('h.0.drop'), 0):hash())
    assert.not_equal(a:hash(), ops.dropout(x, 0.5, 'h.1.drop', 0):hash())
    assert.not_equal(a:hash(), ops.dropout(x, 0.5, 'h.0.drop', 1):hash())
    checks.raises('ValueError', 'dropout: call is -1, expected 0 or more', ops.dropout, x, 0.5,
      'h.0.drop', -1)
    local kept = 0
    for _, row in ipairs(a:totable()) do
      for _, value in ipairs(row) do
        assert.is_true(value == 0 or value == 2)
        kept = kept + value / 2
      end
    end
    assert.is_true(kept > 88 and kept < 168) -- 128 expected, 8 is one deviation
  end)

  it('join along a dimension', function()
    local a, b = ms.tensor { { 1 }, { 2 } }, ms.tensor { { 3 }, { 4 } }
    assert.same({ { 1 }, { 2 }, { 3 }, { 4 } }, ops.cat({ a, b }):totable())
    assert.same({ { 1, 3 }, { 2, 4 } }, ms.cat({ a, b }, 2):totable())
    local many = {}
    for i = 1, 60 do
      many[i] = a
    end
    assert.same({ 120, 1 }, ops.cat(many, 1):shape())
    checks.raises('ValueError', 'the list is empty', ops.cat, {})
  end)

  it('keeps a NaN beside masked entries in rows of any length', function()
    for _, at in ipairs { 1, 1024, 1025, 2048 } do
      for _, rest in ipairs { 0, -1 / 0 } do
        local row = {}
        for i = 1, 2048 do
          row[i] = (at - 1024.5) * (i - 1024.5) > 0 and -1 / 0 or rest
        end
        row[at] = 0 / 0
        for _, dtype in ipairs { 'f32', 'f64', 'bf16', 'f16' } do
          local x = ms.tensor({ row }, { dtype = dtype })
          assert.equal(2048, x:softmax():isnan():sum():item())
          assert.equal(2048, x:log_softmax():isnan():sum():item())
          local loss = ms.ops.cross_entropy(x, ms.tensor({ 1 }, { dtype = 'i64' }))
          assert.is_true(loss:item() ~= loss:item())
        end
      end
    end
  end)

  it('wraps in differences with the least integer, as in sums', function()
    local x = ms.tensor({ 0, 1 }, { dtype = 'i64' })
    assert.equal(tostring(x + -2 ^ 63), tostring(x - -2 ^ 63))
  end)

  it('names unary minus in its errors', function()
    local ok, e = pcall(function() return -ms.tensor({ 1 }, { dtype = 'u8' }) end)
    assert.is_false(ok)
    assert.truthy(tostring(e):find('neg is not implemented for dtype u8', 1, true), tostring(e))
  end)

end)
