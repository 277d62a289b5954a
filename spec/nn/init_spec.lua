-- Functions of nn.init that overwrite tensors.
local ms = require 'moonshard'
local nn, fsdp = ms.nn, ms.fsdp
local checks = require 'support.checks'
local wrap = require 'support.wrap'

-- name, arguments, bounds or nil, deviation: of a weight of 300 outputs and 200 inputs
local CASES = {
  { 'uniform_', { -1, 3 }, 3, 4 / math.sqrt(12) },
  { 'normal_', { 0, 0.02 }, nil, 0.02 },
  { 'xavier_uniform_', { 2 }, 2 * math.sqrt(6 / 500), 2 * math.sqrt(2 / 500) },
  { 'xavier_normal_', {}, nil, math.sqrt(2 / 500) },
  { 'kaiming_uniform_', { { a = math.sqrt(5) } }, math.sqrt(1 / 200), math.sqrt(1 / 600) },
  -- A normal distribution cut at two deviations has the deviation 0.8796257, half of one
  -- sqrt(1 - 2 / pi).
  { 'trunc_normal_', { 0, 0.5, -1, 1 }, 1, 0.5 * 0.8796257 },
  { 'trunc_normal_', { 1, 2, 1, 31 }, 31, 2 * math.sqrt(1 - 2 / math.pi) },
  { 'kaiming_normal_', { { mode = 'fan_out', nonlinearity = 'relu' } }, nil, math.sqrt(2 / 300) },
}

describe('nn.init', function()
  for _, case in ipairs(CASES) do
    local name, args, bound, deviation = unpack(case, 1, 4)
    it(name .. ' draws from its distribution', function()
      local weight = nn.Linear(200, 300).weight
      assert.equal(weight, nn.init[name](weight, unpack(args)))
      local centred = weight:detach() - weight:detach():mean()
      checks.close(deviation, centred:square():mean():item() ^ 0.5, 0.02 * deviation)
      assert.is_true(not bound or ms.all(weight:detach():abs():le(bound)))
    end)
  end

  it('fills with constants and gives gains', function()
    local bias = nn.Linear(3, 4).bias
    assert.same({ 1, 1, 1, 1 }, nn.init.ones_(bias):totable())
    assert.same({ 2, 2, 2, 2 }, nn.init.constant_(bias, 2):totable())
    assert.same({ 0, 0, 0, 0 }, nn.init.zeros_(bias):totable())
    checks.close(math.sqrt(2 / 1.04), nn.init.calculate_gain('leaky_relu', 0.2))
    checks.raises('ValueError', 'two dimensions or more', nn.init.xavier_normal_, bias)
  end)

  it('makes rows or columns orthonormal, and ones on the diagonal', function()
    for _, shape in ipairs { { 40, 70 }, { 70, 40 }, { 3, 4, 5 } } do
      local x = nn.init.orthogonal_(ms.zeros(shape, { dtype = 'f64' }), 2):reshape(shape[1], -1)
      x = x:size(1) > x:size(2) and x:t() or x
      local one = nn.init.eye_(ms.zeros(x:size(1), x:size(1)))
      checks.close((one * 4):totable(), ms.ops.matmul(x, x:t()), 1e-13)
    end
    assert.same({ { 1, 0, 0 }, { 0, 1, 0 } }, nn.init.eye_(ms.ones(2, 3)):totable())
    checks.raises('ValueError', '3 dimensions, expected 2', nn.init.eye_, ms.ones(2, 2, 2))
    checks.raises('ValueError', "'high' is 1, expected more than 2 ('low')", nn.init.trunc_normal_,
      ms.ones(2), 0, 1, 2, 1)
  end)

  it('writes the same values into shards, before and after the first use', function()
    local function fill(model, name)
      ms.manual_seed(5)
      nn.init[name](model.weight)
      nn.init.normal_(model.bias)
    end
    local function hash(model, used, name, summons)
      ms.manual_seed(4)
      if used then
        model(ms.ones(1, 6))
      end
      if summons then
        fsdp.summon_full_params(model, nil, fill, model, name)
      else
        fill(model, name)
      end
      return model:hash()
    end
    local names = { 'kaiming_uniform_', 'trunc_normal_', 'orthogonal_', 'eye_' }
    local expected = {}
    for _, name in ipairs(names) do
      expected[name] = hash(nn.Linear(6, 5), false, name)
    end
    ms.dist.spawn(2, function()
      for _, name in ipairs(names) do
        for _, strategy in ipairs { 'FULL_SHARD', 'NO_SHARD' } do
          for _, used in ipairs { false, true } do
            for _, summons in ipairs { false, true } do
              assert.equal(expected[name], hash(wrap(nn.Linear(6, 5),
                { sharding_strategy = strategy, use_orig_params = true }), used, name, summons))
            end
          end
        end
      end
      local model = wrap(nn.Linear(6, 5), {})
      fsdp.summon_full_params(model, nil, function() hash(nn.Linear(6, 5), false, 'eye_') end)
    end)
  end)
end)
