-- lua/moonshard/ops/init.lua: arguments, methods and errors of operators (tests/ops tests values)
local ms = require 'moonshard'
local ops = ms.ops
local unary = require 'moonshard.ops.unary'
local checks = require 'support.checks'

describe('operators', function()
  teardown(function()
    assert.equal(0, checks.live_handles())
  end)

  it('combine tensors and numbers on both sides', function()
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

  it('broadcast, and name both shapes when they cannot', function()
    local column, row = ms.tensor { { 1 }, { 2 } }, ms.tensor { 10, 20 }
    assert.same({ { 11, 21 }, { 12, 22 } }, (column + row):totable())
    local err = checks.raises('ValueError', '(2, 3)', ops.add, ms.zeros(2, 3), ms.zeros(4))
    assert.truthy(err.message:find('(4)', 1, true))
  end)

  it('refuse fractions beside integers', function()
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

  it('refuse other values than tensors', function()
    checks.raises('TypeError', "exp: 'x' is a string, expected a tensor", ops.exp, 'x')
    checks.raises('TypeError', "matmul: 'b' is nil, expected a tensor", ops.matmul,
      ms.zeros(1, 1))
    checks.raises('TypeError', 'cat: entry 2 is a number', ops.cat, { ms.zeros(1), 3 })
    checks.raises('TypeError', "dropout: 'site' is a number", ops.dropout, ms.zeros(1), 0.5, 3)
  end)

  it('count dimensions from 1 and from the end', function()
    local x = ms.tensor { { 1, 2, 3 }, { 4, 5, 6 } }
    assert.same({ { 1, 2, 3 }, { 5, 7, 9 } }, ops.cumsum(x, 1):totable())
    assert.same({ { 1, 3, 6 }, { 4, 9, 15 } }, x:cumsum(-1):totable())
    assert.same({ 5, 7, 9 }, x:sum(1):totable())
    assert.same({ { 6 }, { 15 } }, x:sum(-1, true):totable())
    assert.equal(21, x:sum({ 1, 2 }):item())
    assert.same({ 2, 5 }, x:mean(2):totable())
    local y = ms.tensor { { 0, math.log(3) }, { 0, 0 } }
    checks.close({ { 0.25, 0.75 }, { 0.5, 0.5 } }, y:softmax())
    checks.close({ { 0.5, 0.75 }, { 0.5, 0.25 } }, ops.softmax(y, 1))
    checks.close(y:softmax(1):log():totable(), y:log_softmax(-2))
    checks.close(y:softmax():log():totable(), y:log_softmax())
    for _, name in ipairs { 'sum', 'cumsum', 'softmax', 'log_softmax' } do
      checks.raises('IndexError', name .. ': dimension 3 is out of range', x[name], x, 3)
    end
  end)

  it('have isnan, isinf and isfinite', function()
    local x = ms.tensor { 1, 1 / 0, -1 / 0, 0 / 0 }
    assert.same({ false, false, false, true }, x:isnan():totable())
    assert.same({ false, true, true, false }, x:isinf():totable())
    assert.same({ true, false, false, false }, ops.isfinite(x):totable())
    assert.same({ true }, ms.tensor({ 3 }, { dtype = 'i64' }):isfinite():totable())
  end)

  it('have softplus with beta and threshold', function()
    local x = ms.tensor({ -1, 0.5, 30 }, { dtype = 'f64' })
    local function soft(v, beta) return math.log(1 + math.exp(beta * v)) / beta end
    checks.close({ soft(-1, 1), soft(0.5, 1), 30 }, ops.softplus(x), 1e-14)
    checks.close({ soft(-1, 2), soft(0.5, 2), 30 }, x:softplus(2), 1e-14)
    checks.close({ soft(-1, 2), 0.5, 30 }, x:softplus(2, 0.9), 1e-14)
  end)

  it('have maximum, minimum and clamp', function()
    local a = ms.tensor({ 1, 5, 2 }, { requires_grad = true })
    local b = ms.tensor({ 3, 5, -1 }, { requires_grad = true })
    assert.same({ 3, 5, 2 }, ops.maximum(a, b):totable())
    assert.same({ 1, 5, -1 }, a:minimum(b):totable())
    assert.same({ 2, 5, 2 }, a:clamp(2):totable())
    assert.same({ 1, 2, 2 }, a:clamp(nil, 2):totable())
    checks.raises('ValueError', "both 'min' and 'max' are nil", ops.clamp, a)
  end)

  it('round to a number of decimals', function()
    local x = ms.tensor({ 1.234, -0.125, 25 }, { requires_grad = true })
    for _, row in ipairs {
      { nil, { 1, 0, 25 } }, { 2, { 1.23, -0.12, 25 } }, { { decimals = 1 }, { 1.2, -0.1, 25 } },
      { -1, { 0, 0, 20 } }, { {}, { 1, 0, 25 } },
    } do
      checks.close(row[2], x:round(row[1]))
    end
    checks.close({ 100.5 }, ms.tensor({ 100.5 }, { dtype = 'f16' }):round(3)) -- not infinite
    x:round(2):sum():backward()
    assert.same({ 0, 0, 0 }, x:grad():totable())
    checks.raises('ValueError', "round: unknown option 'decimal', did you mean 'decimals'?",
      x.round, x, { decimal = 2 })
    checks.raises('TypeError', "round: 'decimals' is 1 and the tensor is i64, expected a floating",
      ops.round, ms.arange(3), 1)
  end)

  it('have each unary function, also as a method', function()
    local x = ms.tensor({ -0.7, 1, 2.6 }, { dtype = 'f64' })
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
    assert.same({ 2, 4, 16 }, (2 ^ x):totable())
    local base = ms.tensor({ { 0, 3 }, { -2, 2 } }, { requires_grad = true })
    local power = ms.tensor({ 0, 2 }, { requires_grad = true })
    local y = base ^ power
    assert.same({ { 1, 9 }, { 1, 4 } }, y:totable())
    y:sum():backward()
    assert.same({ { 0, 6 }, { 0, 4 } }, base:grad():totable())
    assert.is_true(power:grad():narrow(1, 1, 1):isnan():all()) -- the logarithm of -2
    checks.close(9 * math.log(3) + 4 * math.log(2), power:grad()[2]:item())
    checks.raises('TypeError', 'the exponent is a string', x.pow, x, 'two')
    checks.raises('ValueError', 'the exponent is inf', x.pow, x, math.huge)
  end)

  it('round, halves to the even number', function()
    local x = ms.tensor({ -2.5, -0.5, 0.5, 1.5, 2.5, 2.6 }, { requires_grad = true })
    assert.same({ -2, 0, 0, 2, 2, 3 }, x:round():totable())
    assert.same({ -3, -1, 0, 1, 2, 2 }, x:floor():totable())
    assert.same({ -2, 0, 1, 2, 3, 3 }, x:ceil():totable())
    assert.same({ -2, 0, 0, 1, 2, 2 }, x:trunc():totable())
    x:round():sum():backward()
    assert.is_true(x:grad():eq(0):all())
    assert.same({ 3 }, ms.tensor({ 3 }, { dtype = 'i64' }):floor():totable())
  end)

  it('have remainders with the sign of the divisor', function()
    local a = ms.tensor({ -5, 5, 5.5 }, { requires_grad = true })
    local b = ms.tensor({ 3, -3, 2 }, { requires_grad = true })
    local y = a % b
    assert.same({ 1, -1, 1.5 }, y:totable())
    y:sum():backward()
    assert.same({ 1, 1, 1 }, a:grad():totable())
    assert.same({ 2, 2, -2 }, b:grad():totable())
    assert.same({ 1, 2, 2.5 }, a:remainder(3):totable())
    assert.same({ 2, -1, 1 }, (5 % b):totable())
    assert.same({ 2.5 }, (ms.tensor({ 2.5 }):bf16() % 3):f32():totable())
    local n = ms.tensor({ -7, 7 }, { dtype = 'i64' })
    assert.same({ 2, 1 }, (n % 3):totable())
    assert.same({ -1, -2 }, (n % -3):totable())
    checks.raises('RuntimeError', 'division of integers by zero', function() return n % 0 end)
    checks.raises('RuntimeError', 'division of integers by zero', function() return n % (n * 0) end)
    checks.raises('ValueError', 'remainder: 1.5 does not fit in i64', ops.remainder, n, 1.5)
  end)

  it('keep summed dimensions with keepdim', function()
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

  it('refuse names in lists of dimensions', function()
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

  it('multiply vectors, matrices and batches', function()
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

  it('have losses that ignore targets', function()
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

  it('have the divergence of distributions', function()
    local x = ms.tensor { { 0.5, 0.5 }, { 0.25, 0.75 } }:log()
    local target = ms.tensor { { 1, 0 }, { 0.25, 0.75 } }
    local log2 = math.log(2)
    checks.close({ { log2, 0 }, { 0, 0 } }, ops.kl_div(x, target, { reduction = 'none' }))
    checks.close(log2 / 4, ops.kl_div(x, target):item())
    checks.close(log2 / 2, ops.kl_div(x, target, { reduction = 'batchmean' }):item())
    checks.close(log2, ops.kl_div(x:narrow(1, 1, 1), ms.tensor { { 0.5, 1 } }:log(),
      { log_target = true, reduction = 'sum' }):item())
    local p = ms.tensor({ { 0.5, 0.5 } }, { requires_grad = true })
    local logq = ms.tensor({ { -1, -2 } }, { requires_grad = true })
    ops.kl_div(logq, p, { reduction = 'sum' }):backward()
    checks.close({ { -0.5, -0.5 } }, logq:grad())
    checks.close({ { 2 - log2, 3 - log2 } }, p:grad()) -- log(p) + 1 - x
    checks.raises('ValueError', 'expected one of mean, batchmean, sum, none', ops.kl_div, x, x,
      { reduction = 'max' })
    checks.raises('ValueError', 'kl_div: x is (2, 2) and target (1, 2), expected one shape',
      ops.kl_div, x, p)
    checks.raises('TypeError', "kl_div: 'target' is nil", ops.kl_div, x)
    checks.raises('ValueError', "kl_div: 'reduction' is 'batchmean' and x has no dimensions",
      ops.kl_div, x:sum(), x:sum(), { reduction = 'batchmean' })
  end)

  it('have attention over all positions or the past', function()
    local q = ms.zeros(1, 1, 2, 1) -- equal scores: the mean of what is seen
    local v = ms.tensor { { { { 2 }, { 4 } } } }
    checks.close({ { { { 3 }, { 3 } } } }, ops.attention(q, q, v))
    checks.close({ { { { 2 }, { 3 } } } }, ops.attention(q, q, v, { causal = true }))
    local first = q:narrow(3, 1, 1) -- counted from the first key, whatever their numbers are
    checks.close({ { { { 2 } } } }, ops.attention(first, q, v, { causal = true }))
    checks.raises('ValueError', "'scale' is 0", ops.attention, q, q, v, { scale = 0 })
    local qkv = ms.tensor { { { 0, 0, 2 }, { 0, 0, 4 } } }
    checks.close({ { { 2 }, { 3 } } }, ops.attention_packed(qkv, 1, { causal = true }))
  end)

  -- Numbers of PyTorch 2.15.
  it('have scaled dot-product attention with masks, shared heads and dropout', function()
    local sdpa = ops.scaled_dot_product_attention
    local q = ((ms.arange(8):to('f32')) / 4 - 1):reshape(1, 2, 2, 2)
    local k = ((ms.arange(6):to('f32')) / 3 - 1):reshape(1, 1, 3, 2)
    local v = ms.tensor({ 1, 2, 4 }):reshape(1, 1, 3, 1)
    local function attend(opts)
      opts.enable_gqa = true
      return sdpa(q, k, v, opts):reshape(-1)
    end
    local inf = math.huge
    local added = ms.tensor({ { 0, -inf, 1 }, { -inf, 0.5, -inf } }, { requires_grad = true })
    checks.close({ 1.4833610, 0, 2.6759627, 0 },
      attend { attn_mask = ms.tensor({ { 1, 0, 1 }, { 0, 0, 0 } }):gt(0) }, 1e-6)
    local y = attend { attn_mask = added }
    checks.close({ 2.0290253, 2, 3.3244450, 2 }, y, 1e-6)
    y:sum():backward()
    checks.close({ { -1.1994909, 0, 1.1994909 }, { 0, 0, 0 } }, added:grad(), 1e-6)
    checks.close({ 1, 1.4125209, 1, 1.6431944 }, attend { is_causal = true }, 1e-6)
    checks.close({ 7 / 3, 7 / 3, 7 / 3, 7 / 3 }, attend { scale = 0 }, 1e-6)
    checks.close({ { 1.6222410 }, { 1.9936851 } }, sdpa(q[1][1], k[1][1], v[1][1]), 1e-6)

    local function heads(x, mask)
      return sdpa(x, x, x, { attn_mask = mask, dropout_p = 0.5, site = 'a' })
    end
    local x, mask = ms.randn({ 2, 3, 5, 2 }, { seed = 1 }), ms.randn({ 3, 5, 5 }, { seed = 2 })
    local function again(...)
      ms.manual_seed(4)
      return heads(...):reshape(-1):totable()
    end
    local dropped = again(x, mask)
    assert.not_same(dropped, heads(x, mask):reshape(-1):totable())
    assert.same(dropped, again(x, mask:unsqueeze(1)))
    local weights = ops.softmax(ops.matmul(x, x:transpose(3, 4)) / math.sqrt(2) + mask)
    checks.close(dropped, ops.matmul(ops.dropout(weights, 0.5, 'a', 0), x):reshape(-1), 1e-5)
    assert.same({ 1, 2, 3, 5, 2 }, heads(x:unsqueeze(1), mask):shape())
    checks.raises('RuntimeError', 'attn_mask is given and is_causal is true', sdpa, x, x, x,
      { attn_mask = mask, is_causal = true })
    checks.raises('ValueError', 'q has 2 heads and k 1', sdpa, q, k, v)
    checks.raises('ValueError', 'the mask has shape (3, 5, 5), expected one that broadcasts to '
      .. '(1, 2, 2, 3)', sdpa, q, k, v, { attn_mask = mask, enable_gqa = true })
  end)

  it('drop elements by site and call', function()
    local x = ms.ones(4, 64)
    local a = ops.dropout(x, 0.5, 'h.0.drop', 0)
    assert.equal(a:hash(), ops.dropout(x, 0.5, ops.site('h.0.drop'), 0):hash())
    assert.not_equal(a:hash(), ops.dropout(x, 0.5, 'h.1.drop', 0):hash())
    assert.not_equal(a:hash(), ops.dropout(x, 0.5, 'h.0.drop', 1):hash())
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

  it('norm sums powers over dimensions, with gradient 0 where it is 0', function()
    local x = ms.tensor({ { 3, 4 }, { 0, 0 } }, { requires_grad = true })
    local norms = x:norm(2, 2)
    checks.close({ 5, 0 }, norms)
    norms:sum():backward()
    checks.close({ { 0.6, 0.8 }, { 0, 0 } }, x:grad())
    checks.close(7, x:norm(1))
    checks.close(91 ^ (1 / 3), x:norm(3))
    checks.close({ { 3, 4 } }, x:norm(1, 1, true))
    checks.close({ 4, 0 }, x:norm(math.huge, 2))
    checks.close({ 3, 0 }, x:norm(-math.huge, 2))
    checks.close({ 2, 0 }, x:norm(0, 2))
    checks.raises('ValueError', "norm: 'p' is NaN, expected a number", x.norm, x, 0 / 0)
  end)

  it('convolve and pool with one number for all dimensions or one each', function()
    local x, w = ms.randn({ 2, 4, 9, 8 }, { seed = 1 }), ms.randn({ 6, 2, 3, 2 }, { seed = 2 })
    local y = ops.conv2d(x, w, nil, { stride = { 2, 1 }, padding = { 1, 0 }, groups = 2 })
    assert.same({ 2, 6, 5, 7 }, y:shape())
    assert.same({ 2, 6, 9, 8 }, ops.conv2d(x, w, nil, { padding = 'same', groups = 2 }):shape())
    assert.same({ 2, 6, 7, 7 }, ops.conv2d(x, w, nil, { padding = 'valid', groups = 2 }):shape())
    assert.equal(y[1]:hash(), ops.conv2d(x[1], w, nil,
      { stride = { 2, 1 }, padding = { 1, 0 }, groups = 2 }):hash())
    assert.same({ 4, 3, 4 }, ops.max_pool2d(x[1], { 3, 2 }):shape())
    assert.same({ 2, 4, 5, 4 }, ops.avg_pool2d(x, 2, { ceil_mode = true }):shape())
    assert.same({ 2, 4, 2, 3 }, ops.adaptive_avg_pool2d(x, { 2, 3 }):shape())
    assert.same({ 4, 8 }, ops.max_pool1d(ms.tensor { { 1, 4, 2, 8 } }, 2):reshape(-1):totable())
    checks.raises('ValueError', "conv2d: 'stride' has 3 numbers, expected one or 2", ops.conv2d, x,
      w, nil, { stride = { 1, 1, 1 } })
    checks.raises('ValueError', 'conv2d: x has 2 dimensions, expected 4 (N, C, ...) or 3 (C, ...)',
      ops.conv2d, x[1][1], w)
    checks.raises('ValueError', 'x (N, C, ...) and w (O, C / groups, ...)', ops.conv2d, x, w)
    checks.raises('ValueError', 'covers 12 positions of spatial dimension 1, expected 1 to 9',
      ops.conv2d, x, ms.zeros(1, 4, 12, 1))
    checks.raises('ValueError', 'padding 0 to half of the window', ops.max_pool2d, x, 2,
      { padding = 2 })
  end)

  it('convolve transposed', function()
    local x, w = ms.tensor { { { 1, 2 } } }, ms.tensor { { { 1, 10, 100 } } }
    local function row(opts)
      return ops.conv_transpose1d(x, w, ms.tensor { 0.5 }, opts):reshape(-1):totable()
    end
    assert.same({ 1.5, 12.5, 120.5, 200.5 }, row())
    assert.same({ 10.5, 102.5, 20.5 }, row { stride = 2, padding = 1 })
    assert.same({ 1.5, 0.5, 12.5, 0.5, 120.5, 0.5, 200.5, 0.5 },
      ops.conv_transpose1d(ms.tensor { { 1, 0, 2 } }, w, ms.tensor { 0.5 },
        { dilation = 2, output_padding = 1 }):reshape(-1):totable())
    checks.raises('ValueError', 'output_padding is 2, expected 0 or more, and less than stride 2 '
      .. 'or dilation 1', row, { stride = 2, output_padding = 2 })
    checks.raises('ValueError', 'give 0 positions of spatial dimension 1, expected 1 or more', row,
      { padding = 2 })
    checks.raises('ValueError', 'x (N, C, ...) and w (C, O / groups, ...)', ops.conv_transpose1d,
      x, ms.zeros(2, 1, 3))
    checks.raises('ValueError', 'bias has shape (2), expected (1)', ops.conv_transpose1d, x, w,
      ms.zeros(2))
  end)

  it('interpolate', function()
    local x = ms.tensor { { { 1, 3 } } }
    local function row(opts) return ops.interpolate(x, opts):reshape(-1):totable() end
    assert.same({ 1, 1, 1, 3, 3 }, row { size = 5 })
    assert.same({ 1, 1.5, 2.5, 3 }, row { scale_factor = 2, mode = 'linear' })
    assert.same({ 1, 2, 3 }, row { size = 3, mode = 'linear', align_corners = true })
    assert.same({ 2 }, row { size = 1, mode = 'linear' })
    local same = ops.interpolate(x, { size = 2, mode = 'linear' })
    assert.is_false(rawequal(x, same))
    assert.equal(x:hash(), same:hash())
    assert.same({ { { 7, 7 } } }, ops.interpolate(ms.tensor({ { { 7 } } }, { dtype = 'i64' }),
      { size = 2 }):totable())
    checks.raises('ValueError', "x has 3 dimensions, expected 4 in mode 'bilinear'", row,
      { size = 2, mode = 'bilinear' })
    checks.raises('ValueError', 'has size 2 and would have 0, expected 1 or more', row,
      { scale_factor = 0.3 })
    checks.raises('ValueError', "'scale_factor' has 2 numbers, expected one or 1", row,
      { scale_factor = { 2, 2 } })
  end)

  it('convolve images of more than one box as the sum over taps', function()
    local x = ms.randn({ 2, 32, 30, 20 }, { seed = 1, dtype = 'f64' }):requires_grad_()
    local w = ms.randn({ 8, 32, 3, 3 }, { seed = 2, dtype = 'f64' }):requires_grad_()
    local function taps()
      local sum = 0
      for i = 1, 3 do
        for j = 1, 3 do
          local part = x:narrow(3, i, 28):narrow(4, j, 18):permute(1, 3, 4, 2)
          sum = ops.linear(part, w:select(4, j):select(3, i)) + sum
        end
      end
      return sum:permute(1, 4, 2, 3)
    end
    local found = {}
    for k, fn in ipairs { function() return ops.conv2d(x, w) end, taps } do
      local y = fn()
      ;(y * y):sum():backward()
      found[k] = { y, x:grad(), w:grad() }
      x:set_grad(nil)
      w:set_grad(nil)
    end
    for i = 1, 3 do
      assert.is_true(ms.allclose(found[1][i], found[2][i], { atol = 1e-9 }))
    end
  end)

  it('reduce losses, with classes in the last dimension or in dimension 2', function()
    local x = ms.randn({ 2, 3, 4 }, { seed = 1 })
    local ids = ms.tensor({ { 0, 1, 2, 0 }, { 2, 2, 1, 0 } }, { dtype = 'i64' })
    local each = ops.cross_entropy(x, ids, { reduction = 'none' })
    assert.same({ 2, 4 }, each:shape())
    checks.close(each:mean():item(), ops.cross_entropy(x, ids), 1e-6)
    local sum = ops.nll_loss(x:log_softmax(2), ids, { reduction = 'sum' })
    checks.close(each:sum():item(), sum, 1e-5)
    local square = ms.randn({ 2, 3, 3 }, { seed = 1 })
    local few = ids:narrow(2, 1, 3)
    checks.close(ops.cross_entropy(square:transpose(2, 3), few):item(),
      ops.cross_entropy(square, few, { dim = 2 }), 1e-6)
    checks.raises('IndexError', 'nll_loss: target 3, number 2 of 2, is outside [0, 3)',
      ops.nll_loss, x[1]:t():narrow(1, 1, 2), ms.tensor({ 0, 3 }, { dtype = 'i64' }))
    checks.raises('ValueError', "expected the option 'dim'", ops.cross_entropy, x, x)
    checks.raises('ValueError', "'weight' is (4), expected (3)", ops.nll_loss, x, ids,
      { weight = ms.ones(4) })
    checks.raises('ValueError', "'delta' is 0, expected a finite number above 0", ops.huber_loss, x,
      x, { delta = 0 })
    checks.raises('ValueError', 'l1_loss: x is (2, 3, 4) and y (2, 4)', ops.l1_loss, x,
      x:select(2, 1))
  end)
end)
