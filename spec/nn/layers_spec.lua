-- lua/moonshard/nn: initial values, dropout masks and containers. spec/nn/table.lua has the rest.
local ms = require 'moonshard'
local nn = ms.nn
local checks = require 'support.checks'
local samples = require 'support.samples'

local function largest(t)
  return math.max(unpack(t:abs():reshape(-1):totable()))
end

describe('nn', function()
  teardown(function()
    assert.equal(0, checks.live_handles())
  end)

  it('Linear has initial values up to 1 / sqrt(in_features)', function()
    ms.manual_seed(0)
    local layer = nn.Linear(64, 100):materialize()
    local most = largest(layer.weight)
    assert.is_true(most <= 1 / 8 and most > 0.99 / 8)
    assert.is_true(largest(layer.bias) <= 1 / 8)
  end)

  it('Embedding has initial values from N(0, 1)', function()
    ms.manual_seed(0)
    local w = nn.Embedding(500, 40):materialize().weight
    local mean, square = w:mean():item(), (w * w):mean():item()
    assert.is_true(math.abs(mean) < 0.04, 'mean ' .. mean) -- five deviations of 20,000 draws
    assert.is_true(math.abs(square - 1) < 0.06, 'variance ' .. square)
  end)

  describe('Dropout', function()
    it('zeroes about p of the elements and scales the rest while it trains', function()
      local drop = nn.Dropout(0.25)
      local y = drop(ms.ones(8, 1000))
      local kept = (y * 0.75):sum():item()
      assert.is_true(math.abs(kept - 6000) < 200, 'kept ' .. kept) -- five deviations: 194
      drop:eval()
      checks.close({ { 1, 1 } }, drop(ms.ones(1, 2)))
    end)

    it('draws masks by sample, call and path, however samples are split into batches', function()
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

    it('repeats its masks after manual_seed and draws new ones in every forward', function()
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
      assert.same({ first, second }, { masks(3) }) -- the position of a loader is forgotten
    end)

    it('draws other masks in every module', function()
      local a, b, x = nn.Dropout(0.5), nn.Dropout(0.5), ms.ones(4, 50)
      assert.not_equal(a(x):hash(), b(x):hash())
    end)

    it('draws the same masks when its forward is called directly', function()
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

    it('continues its masks when it becomes part of a model', function()
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
      assert.equal(second(false), second(true))
    end)
  end)

  it('Embedding has a row of padding that is 0 initially', function()
    local function rows(opts)
      ms.manual_seed(3)
      return nn.Embedding(3, 2, opts):materialize().weight:totable()
    end
    local plain = rows()
    assert.same({ plain[1], { 0, 0 }, plain[3] }, rows { padding_idx = 1 })
    assert.same({ plain[1], plain[2], { 0, 0 } }, rows { padding_idx = -1 })
    assert.same({ { 5, 5 }, { 0, 0 }, { 5, 5 } },
      rows { padding_idx = 1, init = nn.init.constant(5) })
  end)

  it('Embedding.from_pretrained takes the memory of a tensor', function()
    local weight, ids = ms.tensor { { 1, 2 }, { 3, 4 } }, ms.tensor({ 1, 0 }, { dtype = 'i64' })
    local frozen = nn.Embedding.from_pretrained(weight)
    assert.same({ { 3, 4 }, { 1, 2 } }, frozen(ids):totable())
    assert.is_false(frozen.weight:requires_grad())
    assert.same({ 'weight' }, { unpack(frozen:state_dict()) })
    local learned = nn.Embedding.from_pretrained(ms.tensor { { 1, 2 }, { 3, 4 } },
      { freeze = false, padding_idx = 1 })
    learned(ids):sum():backward()
    assert.same({ { 1, 1 }, { 0, 0 } }, learned.weight:grad():totable())
    assert.same({ { 1, 2 }, { 3, 4 } }, learned.weight:totable())
    checks.raises('ValueError', "'weight' has 1 dimensions, expected 2",
      nn.Embedding.from_pretrained, ms.zeros(2))
  end)

  it('LSTM and GRU go on from a state', function()
    local x = ms.randn({ 5, 2, 3 }, { seed = 1 })
    for _, name in ipairs { 'LSTM', 'GRU' } do
      local net = nn[name](3, 4)
      local whole, last = net(x)
      local first, state = net(x:narrow(1, 1, 2))
      local rest, final = net(x:narrow(1, 3, 3), state)
      checks.close(whole:totable(), ms.cat { first, rest })
      local function cell(t) return name == 'LSTM' and t[2] or t end
      checks.close(cell(last):totable(), cell(final))
      local bound = largest(net.weight_hh_l0:detach())
      assert.is_true(bound > 0.3 and bound <= 1 / 2) -- 1 / sqrt(4)
    end
    local net = nn.LSTM(3, 4)
    checks.raises('TypeError', "'state' is a tensor, expected a table { h, c }", net, x,
      ms.zeros(1, 2, 4))
    checks.raises('ValueError', "'state[2]' is (1, 2, 3), expected (1, 2, 4)", net, x,
      { ms.zeros(1, 2, 4), ms.zeros(1, 2, 3) })
    checks.raises('ValueError', 'x is (0, 2, 3), expected a sequence of 1 or more in dimension 1',
      net, ms.zeros(0, 2, 3))
    checks.raises('ValueError', 'expected input_size = 3 in the last dimension', net,
      ms.zeros(1, 2, 4))
    local warnings = ms.capture_warnings(function() nn.GRU(3, 4, { dropout = 0.1 }) end)
    assert.truthy(warnings[1].message:find('dropout 0.1 has no effect with one layer', 1, true))
  end)

  it('ConvTranspose refuses sizes that no output_padding gives', function()
    local up, x = nn.ConvTranspose2d(1, 1, 3, { stride = 2 }), ms.ones(1, 1, 2, 2)
    assert.same({ 1, 1, 6, 5 }, up(x, { 6, 5 }):shape())
    checks.raises('ValueError', "'output_size' is 7 in spatial dimension 1, expected 5 to 6", up, x,
      { 7, 5 })
  end)

  it('Sequential and ModuleList take modules or one array of them', function()
    assert.equal(2, nn.Sequential(nn.ReLU(), nn.Tanh()):len())
    local list, names = nn.ModuleList { nn.ReLU(), nn.Tanh() }, {}
    for i, m in ipairs(list) do
      names[i] = m._name
    end
    assert.same({ 'nn.ReLU', 'nn.Tanh' }, names)
    assert.equal(3, list:append(nn.GELU()):len())
  end)

  it('ModuleDict keeps the order of insertion', function()
    local dict = nn.ModuleDict { b = nn.ReLU(), a = nn.Tanh() }
    assert.same({ 'a', 'b' }, { unpack(dict:keys()) })
    dict.c = nn.GELU()
    dict:update { { 'a', nn.SiLU() }, { '0', nn.Sigmoid() } }
    local names = {}
    for name, module in dict:items() do
      names[#names + 1] = name .. ' ' .. module._name
    end
    assert.same({ 'a nn.SiLU', 'b nn.ReLU', 'c nn.GELU', '0 nn.Sigmoid' }, names)
    dict.b = nil
    assert.same({ 3, 3 }, { dict:len(), #dict:values() })
    checks.raises('TypeError', "'modules[1]' is a nn.ReLU, expected a pair", dict.update, dict,
      { nn.ReLU() })
  end)

  it('ParameterList takes tensors and shapes', function()
    local weight = ms.ones(2)
    local list = nn.ParameterList { weight }
    list:append({ 3 }, nn.init.ones())
    assert.equal(2, list:len())
    assert.is_true(list[1]:is_parameter())
    local other = nn.ParameterList { ms.zeros(4) }
    list[2] = other[1]
    assert.same({ 4 }, list:named_parameters()[2].tensor:shape())
    assert.is_nil(list[3])
  end)

  describe('init', function()
    it('has rules for initial values of parameters', function()
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

    it('fills a tensor from a named stream', function()
      local a = nn.init.apply_(ms.zeros(10), nn.init.normal(), 'stream')
      local b = nn.init.apply_(ms.zeros(10), nn.init.normal(), 'stream')
      assert.equal(a:hash(), b:hash())
      checks.raises('ValueError', 'a normal rule needs the name', nn.init.apply_, a,
        nn.init.normal())
    end)
  end)
end)
