-- lua/moonshard/nn: what each layer computes, declares and begins with
local ms = require 'moonshard'
local nn = ms.nn
local checks = require 'support.checks'
local samples = require 'support.samples'

local function fill(module, values)
  for _, p in ipairs(module:materialize():named_parameters()) do
    ms.no_grad(p.tensor.copy_, p.tensor, ms.tensor(values[p.name]))
  end
  return module
end

local function largest(t)
  local most = 0
  local function visit(v)
    if type(v) == 'table' then
      for _, x in ipairs(v) do
        visit(x)
      end
    else
      most = math.max(most, math.abs(v))
    end
  end
  visit(t:totable())
  return most
end

describe('nn', function()
  teardown(function()
    assert.equal(0, checks.live_handles())
  end)

  describe('Linear', function()
    it('computes x W^T + b over the last dimension', function()
      local layer = fill(nn.Linear(2, 3), {
        weight = { { 1, 2 }, { 3, 4 }, { 5, 6 } }, bias = { 0.5, 0, -1 },
      })
      checks.close({ { 3.5, 7, 10 } }, layer(ms.ones(1, 2)))
    end)

    it('begins within 1 / sqrt(in), and uses that range', function()
      ms.manual_seed(0)
      local layer = nn.Linear(64, 100):materialize()
      local most = largest(layer.weight)
      assert.is_true(most <= 1 / 8 and most > 0.99 / 8)
      assert.is_true(largest(layer.bias) <= 1 / 8)
    end)

    it('has no bias when asked for none', function()
      local layer = nn.Linear(3, 2, { bias = false })
      assert.is_nil(layer.bias)
      assert.equal(1, #layer:parameters())
    end)

    it('takes a dtype', function()
      local layer = nn.Linear(2, 2, { dtype = 'f64' })
      assert.equal('f64', layer(ms.ones(1, 2, { dtype = 'f64' })):dtype())
      checks.raises('TypeError', 'no dtype is called f33', nn.Linear, 2, 2, { dtype = 'f33' })
    end)
  end)

  it('LinearGELU is Linear, then GELU', function()
    for _, form in ipairs { 'none', 'tanh' } do
      ms.manual_seed(3)
      local fused = nn.Sequential(nn.LinearGELU(8, 5, { approximate = form }))
      local pair = nn.Sequential(nn.Linear(8, 5), nn.GELU { approximate = form })
      pair:materialize()
      fused:load_state_dict(pair:state_dict())
      local x = ms.randn(4, 8)
      assert.equal(pair(x):hash(), fused(x):hash())
    end
    assert.is_false(ms.is(nn.LinearGELU(1, 1), nn.Linear))
  end)

  it('GELU has both forms', function()
    -- x Phi(x) at 1: 0.8413447461; tanh form: 0.8411919906
    checks.close({ 0.8413447461 }, nn.GELU()(ms.ones(1)))
    checks.close({ 0.8411919906 }, nn.GELU { approximate = 'tanh' }(ms.ones(1)))
    checks.raises('ValueError', "nn.GELU: 'approximate' is 'tan', expected one of none, tanh",
      nn.GELU, { approximate = 'tan' })
  end)

  it('ReLU and Tanh work elementwise', function()
    checks.close({ 0, 2 }, nn.ReLU()(ms.tensor { -1, 2 }))
    checks.close({ 0.7615941560 }, nn.Tanh()(ms.ones(1)))
  end)

  it('Embedding looks rows up, from 0', function()
    local table_ = fill(nn.Embedding(3, 2), { weight = { { 1, 2 }, { 3, 4 }, { 5, 6 } } })
    checks.close({ { 5, 6 }, { 1, 2 } }, table_(ms.tensor({ 2, 0 }, { dtype = 'i64' })))
    checks.raises('IndexError', 'id 3', function() -- of the call; on a device, of who reads
      table_(ms.tensor({ 3 }, { dtype = 'i64' })):totable()
    end)
  end)

  it('Embedding begins as N(0, 1)', function()
    ms.manual_seed(0)
    local w = nn.Embedding(500, 40):materialize().weight
    local mean, square = w:mean():item(), (w * w):mean():item()
    assert.is_true(math.abs(mean) < 0.04, 'mean ' .. mean) -- five deviations of 20,000 draws
    assert.is_true(math.abs(square - 1) < 0.06, 'variance ' .. square)
  end)

  it('LayerNorm normalises, scales and shifts', function()
    -- mean 2, biased variance 1, eps 3: (x - 2) / 2
    local norm = fill(nn.LayerNorm(2, { eps = 3 }), { weight = { 2, 4 }, bias = { 1, 0 } })
    checks.close({ { 0, 2 } }, norm(ms.tensor { { 1, 3 } }))
    assert.equal(1, #nn.LayerNorm(4, { bias = false }):parameters())
    assert.equal(0, #nn.LayerNorm(4, { elementwise_affine = false }):parameters())
  end)

  describe('Dropout', function()
    it('zeroes about p of the elements and scales the rest, in training only', function()
      local drop = nn.Dropout(0.25)
      local y = drop(ms.ones(8, 1000))
      local kept = (y * 0.75):sum():item()
      assert.is_true(math.abs(kept - 6000) < 200, 'kept ' .. kept) -- five deviations: 194
      drop:eval()
      checks.close({ { 1, 1 } }, drop(ms.ones(1, 2)))
    end)

    it('draws by sample, call and path: not by how samples are dealt', function()
      local model = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5))
      local function mask(first, rows, i)
        samples.begin(first)
        return model[i](ms.ones(rows, 50))
      end
      local both = mask(0, 2, 1)
      assert.equal(both:narrow(1, 2, 1):hash(), mask(1, 1, 1):hash())
      assert.not_equal(both:narrow(1, 1, 1):hash(), both:narrow(1, 2, 1):hash())
      assert.not_equal(both:hash(), mask(0, 2, 2):hash())
      samples.begin(0)
      local once, again = model[1](ms.ones(2, 50)), model[1](ms.ones(2, 50))
      assert.equal(both:hash(), once:hash())
      assert.not_equal(once:hash(), again:hash())
    end)

    it('begins anew with a seed, and draws other masks in every forward before', function()
      local drop, x = nn.Dropout(0.5), ms.ones(4, 50)
      local function masks(seed)
        ms.manual_seed(seed)
        return drop(x):hash(), drop(x):hash()
      end
      local first, second = masks(3)
      assert.not_equal(first, second)
      assert.same({ first, second }, { masks(3) })
      assert.not_equal(first, (masks(4)))
      samples.begin(12)
      drop(x)
      assert.same({ first, second }, { masks(3) }) -- where a loader stood is forgotten
    end)

    it('draws other masks in every module made outside a tree', function()
      local a, b, x = nn.Dropout(0.5), nn.Dropout(0.5), ms.ones(4, 50)
      assert.not_equal(a(x):hash(), b(x):hash())
    end)

    it('is its own outermost module when only its forward is called', function()
      local x = ms.ones(4, 50)
      ms.manual_seed(3)
      local drop = nn.Dropout(0.5)
      local expected = { drop(x):hash(), drop(x):hash() }
      ms.manual_seed(3)
      local alone = nn.Dropout(0.5)
      local first, state = alone:forward(x):hash(), ms.get_rng_state()
      assert.same(expected, { first, alone:forward(x):hash() })
      ms.set_rng_state(state)
      assert.equal(expected[2], alone(x):hash())
    end)

    it('goes on where it was when it becomes part of a model', function()
      local x = ms.ones(4, 50)
      local function second(run)
        ms.manual_seed(3)
        local drop = nn.Dropout(0.5)
        if run then
          drop(x)
        end
        local model = nn.Sequential(nn.Sequential(), drop)
        return not run and model(x) and model(x):hash() or model(x):hash()
      end
      assert.equal(second(false), second(true)) -- under the path it has in the end
    end)

    it('refuses what is no probability', function()
      checks.raises('ValueError',
        'dropout probability has to be between 0 and 1, but got 1.5', nn.Dropout, 1.5)
    end)
  end)

  describe('Sequential and ModuleList', function()
    it('take modules or one array of them', function()
      assert.equal(2, nn.Sequential(nn.ReLU(), nn.Tanh()):len())
      local list = nn.ModuleList { nn.ReLU(), nn.Tanh() }
      local seen = {}
      for i, m in ipairs(list) do
        seen[i] = m._name
      end
      assert.same({ 'nn.ReLU', 'nn.Tanh' }, seen)
      assert.equal(3, list:append(nn.GELU()):len())
    end)

    it('Sequential chains', function()
      checks.close({ math.tanh(1), 0 }, nn.Sequential(nn.ReLU(), nn.Tanh())(ms.tensor { 1, -1 }))
    end)
  end)

  describe('CausalSelfAttention', function()
    -- Plain loops over heads and positions, softmax written out.
    local function oracle(qkv, heads, width)
      local out, d = {}, width / heads
      for t = 1, #qkv do
        out[t] = {}
        for h = 0, heads - 1 do
          local scores, total = {}, 0
          for s = 1, t do
            local dot = 0
            for c = 1, d do
              dot = dot + qkv[t][h * d + c] * qkv[s][width + h * d + c]
            end
            scores[s] = math.exp(dot / math.sqrt(d))
            total = total + scores[s]
          end
          for c = 1, d do
            local sum = 0
            for s = 1, t do
              sum = sum + scores[s] / total * qkv[s][2 * width + h * d + c]
            end
            out[t][h * d + c] = sum
          end
        end
      end
      return out
    end

    it('is attention over the packed projection, projected back', function()
      local layer = nn.CausalSelfAttention(4, 2):materialize()
      local x = ms.randn(1, 5, 4)
      local qkv = layer.qkv(x):totable()[1]
      local expected = layer.proj(ms.tensor { oracle(qkv, 2, 4) })
      checks.close(expected:totable(), layer(x), 1e-5)
    end)

    it('does not see what comes later', function()
      local layer = nn.CausalSelfAttention(4, 1)
      local x = ms.randn(1, 6, 4)
      local early = layer(x):narrow(2, 1, 3)
      local y = x:clone()
      y:narrow(2, 4, 3):fill_(9)
      assert.equal(early:hash(), layer(y):narrow(2, 1, 3):hash())
    end)

    it('needs heads that divide the width', function()
      checks.raises('ValueError', 'width 6 is no multiple of 4 heads', nn.CausalSelfAttention, 6,
        4)
    end)
  end)

  it('TransformerBlock adds both branches to the residual', function()
    local block = nn.TransformerBlock(4, 2)
    local x = ms.randn(2, 3, 4)
    local middle = x + block.attn(block.ln_1(x))
    local expected = middle + block.mlp.out(block.mlp.fc(block.ln_2(middle)))
    checks.close(expected:totable(), block(x), 1e-6)
  end)

  it('check their arguments where they are given', function()
    for _, case in ipairs {
      { 'TypeError', 'nn.Linear takes its arguments one by one: write nn.Linear(2, 3)',
        nn.Linear, { 2, 3 } },
      { 'TypeError', 'write nn.Linear(2, 3, { ... })', nn.Linear, { 2, 3, bias = false } },
      { 'TypeError', 'write nn.Embedding(5, 4)', nn.Embedding, { 5, 4 } },
      { 'TypeError', 'write nn.LayerNorm(4)', nn.LayerNorm, { 4 } },
      { 'TypeError', 'write nn.Dropout(0.5)', nn.Dropout, { 0.5 } },
      { 'TypeError', 'write nn.TransformerBlock(8, 2)', nn.TransformerBlock, { 8, 2 } },
      { 'TypeError', "nn.Linear: 'out_features' is nil, expected a whole number", nn.Linear, 3 },
      { 'TypeError', "'in_features' is 1.5, expected a whole number", nn.Linear, 1.5, 2 },
      { 'ValueError', "'in_features' is -1, expected 0 or more", nn.Linear, -1, 2 },
      { 'TypeError', "'bias' is a string, expected true or false", nn.Linear, 2, 2,
        { bias = 'no' } },
      { 'TypeError', "'init' is a number, expected a rule of nn.init", nn.Linear, 2, 2,
        { init = 0 } },
      { 'TypeError', "'dtype' is a boolean, expected a dtype", nn.Linear, 2, 2, { dtype = false } },
      { 'ValueError', "'dtype' is i64, expected a floating dtype", nn.Linear, 2, 2,
        { dtype = 'i64' } },
      { 'TypeError', 'options are a boolean, expected a table', nn.Linear, 2, 2, false },
      { 'TypeError', "'eps' is a string, expected a number", nn.LayerNorm, 2, { eps = '1' } },
      { 'ValueError', "'eps' is -1, expected a finite number", nn.LayerNorm, 2, { eps = -1 } },
      { 'ValueError', "'eps' is nan, expected a finite number", nn.LayerNorm, 2, { eps = 0 / 0 } },
      { 'TypeError', "nn.Dropout: 'p' is a boolean, expected a number", nn.Dropout, false },
      { 'ValueError', "'approximate' is a boolean, expected one of none, tanh", nn.GELU,
        { approximate = false } },
      { 'ValueError', "'reduction' is 'men', expected one of mean, sum; did you mean 'mean'?",
        nn.MSELoss, { reduction = 'men' } },
      { 'TypeError', "nn.Dropout: 'p' is a string, expected a number", nn.Dropout, '0.5' },
      { 'TypeError', 'nn.ReLU takes no arguments, got a boolean', nn.ReLU, true },
      { 'TypeError', "nn.Sequential takes an array of modules, got the key 'fc'", nn.Sequential,
        { fc = nn.ReLU() } },
      { 'TypeError', "child '1' of nn.Sequential is nil, expected a module", nn.Sequential,
        nn.ReLU(), nil, nn.ReLU() },
      { 'TypeError', "child '0' of nn.Sequential is the class nn.ReLU, expected a module",
        nn.Sequential, nn.ReLU },
    } do
      checks.raises(case[1], case[2], case[3], unpack(case, 4, table.maxn(case)))
    end
  end)

  it('losses match their definitions', function()
    local x, y = ms.tensor { 1, 2 }, ms.tensor { 3, 5 }
    checks.close(6.5, nn.MSELoss()(x, y):item())
    checks.close(13, nn.MSELoss { reduction = 'sum' }(x, y):item())
    local logits = ms.tensor { { math.log(1), math.log(3) }, { 0, 0 } }
    local targets = ms.tensor({ 1, 7 }, { dtype = 'i64' })
    checks.close(math.log(4 / 3), nn.CrossEntropyLoss { ignore_index = 7 }(logits, targets):item())
  end)

  describe('init', function()
    it('makes rules a parameter can begin with', function()
      local function first(rule)
        local m = nn.Module()
        m:param('w', { 1000 }, rule)
        return m:materialize().w
      end
      checks.close(3, first(nn.init.constant(3)):mean():item())
      checks.close(1, first(nn.init.ones()):mean():item())
      assert.is_true(largest(first(nn.init.xavier_uniform(2, 4))) <= 1)
      assert.is_true(math.abs(first(nn.init.normal(5, 0.1)):mean():item() - 5) < 0.02)
      checks.close(5, first(nn.init.normal(5, 0))[1]:item())
      checks.raises('ValueError', "init.normal: 'deviation' is -1, expected 0 or more",
        nn.init.normal, 0, -1)
      checks.raises('ValueError', "init.normal: 'deviation' is nan", nn.init.normal, 0, 0 / 0)
      checks.raises('ValueError', "init.uniform: 'high' is -1, expected 1 ('low') or more",
        nn.init.uniform, 1, -1)
    end)

    it('overwrites a tensor by a named stream', function()
      local a = nn.init.apply_(ms.zeros(10), nn.init.normal(), 'stream')
      local b = nn.init.apply_(ms.zeros(10), nn.init.normal(), 'stream')
      assert.equal(a:hash(), b:hash())
      checks.raises('ValueError', 'a normal rule needs the name', nn.init.apply_, a,
        nn.init.normal())
    end)
  end)
end)
