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

  it('writes the same values into shards, before and after the first use', function()
    local function hash(model, used)
      ms.manual_seed(4)
      if used then
        model(ms.ones(1, 6))
      end
      ms.manual_seed(5)
      nn.init.kaiming_uniform_(model.weight)
      nn.init.normal_(model.bias)
      return model:hash()
    end
    local expected = hash(nn.Linear(6, 5))
    ms.dist.spawn(2, function()
      for _, strategy in ipairs { 'FULL_SHARD', 'NO_SHARD' } do
        for _, used in ipairs { false, true } do
          assert.equal(expected, hash(wrap(nn.Linear(6, 5),
            { sharding_strategy = strategy, use_orig_params = true }), used))
        end
      end
      local model = wrap(nn.Linear(6, 5), {})
      fsdp.summon_full_params(model, nil, function() hash(nn.Linear(6, 5)) end)
    end)
  end)
end)
