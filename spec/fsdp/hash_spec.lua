-- model:hash() depends on values and names, not on wrapping.
local ms = require 'moonshard'
local nn, fsdp = ms.nn, ms.fsdp
local checks = require 'support.checks'
local runs = require 'support.runs'
local wrap = require 'support.wrap'

local function model()
  ms.manual_seed(1)
  return nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))
end

describe('the hash of a model', function()
  it('is that of the unsharded model for every strategy, policy and world size', function()
    local plain = runs.alone(function() return model():hash() end)
    assert.truthy(plain:match('^%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x$'))
    for world = 1, 3 do
      ms.dist.spawn(world, function()
        for _, strategy in ipairs { 'FULL_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD' } do
          for _, policy in ipairs { false, fsdp.always_wrap_policy } do
            local wrapped = wrap(model(), {
              sharding_strategy = strategy, auto_wrap_policy = policy or nil,
            })
            assert.equal(plain, wrapped:hash())
          end
        end
      end)
    end
  end)

  it('is refused for the module that FSDP wraps', function()
    ms.dist.spawn(2, function()
      local m = model()
      local wrapped = fsdp.FSDP(m)
      local hash = wrapped:hash()
      checks.raises('RuntimeError', 'hash: 0.weight is sharded', m.hash, m)
      assert.equal(hash, wrapped:hash())
    end)
  end)

  it('includes ignored parameters', function()
    local plain = runs.alone(function() return model():hash() end)
    for world = 1, 2 do
      ms.dist.spawn(world, function(rank)
        local inner = model()
        local wrapped = fsdp.FSDP(inner, { ignored_modules = { inner[2] } })
        assert.equal(plain, wrapped:hash())
        ms.no_grad(inner[2][1].bias.fill_, inner[2][1].bias, 1 + rank)
        local changed = wrapped:hash()
        assert.not_equal(plain, changed)
        ms.dist.same('hash', changed)
        ms.dist.barrier()
      end)
    end
  end)
end)

-- Last in this file: a process that has opened its device cannot fork ranks.
describe('the hash of a plain model', function()
  it('depends on values and names', function()
    local m = model()
    local before = m:hash()
    ms.no_grad(m[1].bias.fill_, m[1].bias, 0.25)
    assert.not_equal(before, m:hash())
    local swapped = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)):materialize()
    local function filled(a, b)
      return ms.no_grad(function()
        swapped[1].weight:fill_(a)
        swapped[2].weight:fill_(b)
        return swapped:hash()
      end)
    end
    assert.not_equal(filled(1, 2), filled(2, 1))
  end)
end)
