-- model:plan { dry_run = true } equals the plan after the first use and changes nothing.
local ffi = require 'ffi'
local ms = require 'moonshard'
local json = require 'moonshard.base.json'
local runs = require 'support.runs'

local nn, fsdp = ms.nn, ms.fsdp

ffi.cdef 'int setenv(const char *name, const char *value, int overwrite);'

local function wrapped(group)
  return fsdp.FSDP(nn.Sequential { nn.Linear(30, 40), nn.Linear(40, 50) }, {
    process_group = group, auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Linear },
  })
end

local function without_asking(plan)
  plan.same_numerics = nil
  return json.encode(plan)
end

-- On two devices with memories of their own.
local function on_cards(fn)
  return runs.reports(2, function(rank)
    ffi.C.setenv('MS_DEVICE', 'fake', 1)
    ffi.C.setenv('MS_FAKE_CARDS', 'each', 1)
    return fn(rank)
  end)
end

describe('a dry run', function()
  for name, group_of in pairs {
    ['a fake group'] = function(rank) return ms.dist.fake { rank = rank, world = 2 } end,
    ['all ranks'] = function() return nil end,
  } do -- order does not matter: each is a test
    it(('plans the slots of devices before they are opened, for %s'):format(name), function()
      local before = on_cards(function(rank)
        local model = wrapped(group_of(rank))
        local dry = without_asking(model:plan { dry_run = true })
        assert(dry == without_asking(model:plan()))
        return dry
      end)
      local after = on_cards(function(rank)
        ms.zeros(1)
        return without_asking(wrapped(group_of(rank)):plan { dry_run = true })
      end)
      assert.same(before, after)
    end)
  end
end)

-- Three units: an instance made first, one beside it, and the root.
local function nested()
  ms.manual_seed(3)
  local kept = { sharding_strategy = 'SHARD_GRAD_OP' }
  local inner = fsdp.FSDP(nn.Sequential { nn.Linear(6, 6) }, kept)
  return inner, function()
    local model = nn.Sequential {
      inner, fsdp.FSDP(nn.Linear(6, 7)), nn.LayerNorm(7), nn.Linear(7, 3, { bias = false }),
    }
    return fsdp.FSDP(model)
  end
end

local function trained(model)
  for _ = 1, 2 do
    model(ms.ones(2, 6)):sum():backward()
    ms.optim.SGD(model:parameters(), { lr = 0.1 }):step()
    model:zero_grad()
  end
  return model:hash()
end

describe('a dry run', function()
  it('does not change an instance that a larger model wraps later', function()
    local reports, cause = runs.reports(2, function()
      local _, wrap_another = nested()
      local expected = trained(wrap_another())
      local inner, wrap = nested()
      local alone = inner:plan { dry_run = true }
      local model = wrap()
      local whole = model:plan { dry_run = true }
      assert(alone.masters < whole.masters)
      assert(without_asking(inner:plan { dry_run = true }) == without_asking(whole))
      assert(model:plan { dry_run = true }.masters == model:plan().masters)
      return trained(model) == expected and 'same' or 'other'
    end)
    assert.is_nil(cause)
    assert.same({ [0] = 'same', 'same' }, reports)
  end)

  it('makes no units and takes no memory', function()
    local group = ms.dist.fake { world = 2 }
    local plain = nn.Sequential { nn.Linear(4, 4), nn.Linear(4, 4) }:materialize()
    plain(ms.ones(1, 4)):sum():backward()
    local model = fsdp.FSDP(plain, { process_group = group })
    local memory = ms.memory()
    local plan = model:plan { dry_run = true }
    assert.same(memory.live, ms.memory().live)
    assert.same({ 4, 4 }, plain[1].weight:shape())
    assert.is_not_nil(plain[1].weight:grad())
    model.head = nn.Linear(4, 4)
    plain[1].weight:requires_grad_(false)
    local larger = model:plan { dry_run = true }
    assert.equal(plan.masters + (4 * 4 + 4) / 2 * 4, larger.masters)
    assert.truthy(larger.per_state < larger.masters)
    assert.equal(larger.masters, model:plan().masters)
  end)

  it('counts a tied parameter once', function()
    local function tied()
      local first = nn.Linear(5, 5)
      local model = nn.Sequential { first, nn.ReLU(), nn.Linear(5, 5) }
      model[3].weight = first.weight
      return fsdp.FSDP(model, {
        process_group = ms.dist.fake { world = 3 },
        auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Linear },
      })
    end
    local model = tied()
    local dry = model:plan { dry_run = true }
    assert.equal(2, dry.param_homes + dry.param_ring - 1)
    assert.equal(without_asking(dry), without_asking(model:plan()))
  end)
end)
