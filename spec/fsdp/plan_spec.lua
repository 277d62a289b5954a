-- model:plan() predicts what ms.memory() counts in training

local ms = require 'moonshard'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim
local checks = require 'support.checks'
local wrap = require 'support.wrap'

local PRECISIONS = {
  {},
  { param_dtype = 'bf16', reduce_dtype = 'f32' },
  { param_dtype = 'bf16' },
  { param_dtype = 'bf16', keep_low_precision_grads = true },
}

-- Units of unequal sizes; the root has none.
local function layers()
  return nn.Sequential {
    nn.Linear(70, 90), nn.ReLU(), nn.Linear(90, 50), nn.ReLU(), nn.Linear(50, 33),
  }
end

local FREEZE = {
  nothing = function() end,
  ['a unit'] = function(net)
    for p in net[3]:parameters() do
      p:requires_grad_(false)
    end
  end,
  ['a part of every unit'] = function(net)
    for p in net:parameters() do
      p:requires_grad_(#p:shape() == 1)
    end
  end,
}

local function wrapped(net, strategy, precision)
  local model = wrap(net, {
    auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Linear },
    sharding_strategy = strategy, mixed_precision = precision, use_orig_params = true,
  })
  return model
end

local function step(model, opt, micro_batches)
  local function micro_batch()
    model(ms.ones(2, 70)):sum():backward()
  end
  for _ = 1, micro_batches - 1 do
    model:no_sync(ms.scope, micro_batch)
  end
  ms.scope(micro_batch)
  opt:step()
  opt:zero_grad()
end

local function compare(strategy, precision, micro_batches, freeze)
  collectgarbage() -- the model of the last time
  collectgarbage()
  local net = layers()
  freeze(net)
  local model = wrapped(net, strategy, precision)
  local opt = optim.AdamW(model:parameters(), { lr = 0.1 })
  local plan = model:plan { micro_batches = micro_batches }
  ms.reset_peak_memory()
  step(model, opt, micro_batches)
  step(model, opt, micro_batches)
  local memory = ms.memory()
  assert.same({
    gradient = plan.gradients, parameter = plan.masters, optimizer = 2 * plan.per_state,
    arena = plan.arena, arena_at_most = plan.arena,
  }, {
    gradient = memory.peak.gradient, parameter = memory.live.parameter,
    optimizer = memory.live.optimizer, arena = memory.live.arena,
    arena_at_most = memory.peak.arena,
  })
end

local function compare_all(freeze, list)
  for _, strategy in ipairs { 'FULL_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD' } do
    for _, precision in ipairs(PRECISIONS) do
      for _, micro_batches in ipairs(list) do
        compare(strategy, precision, micro_batches, freeze)
      end
    end
  end
end

describe('model:plan()', function()
  for world = 2, 3 do
    for frozen, freeze in pairs(FREEZE) do -- order does not matter: each is a test
      it(('predicts the memory of %d ranks with %s frozen'):format(world, frozen), function()
        ms.dist.spawn(world, function()
          compare_all(freeze, frozen == 'nothing' and { 1, 3, 8 } or { 1, 3 })
        end)
      end)
    end
  end

  it('is the same for a dry run, without memory and other ranks', function()
    ms.dist.spawn(2, function(rank)
      local model = wrapped(layers(), 'FULL_SHARD', PRECISIONS[2])
      ms.reset_peak_memory()
      local dry = rank == 0 and model:plan { micro_batches = 3, dry_run = true } -- by one of two
      assert(ms.memory().peak_total == 0)
      local plan = model:plan { micro_batches = 3 }
      assert(plan.same_numerics)
      for name, value in pairs(dry or {}) do -- order does not matter: each is compared
        assert(value == plan[name] or name == 'same_numerics', name)
      end
      assert(not dry or not dry.same_numerics)
      step(model, optim.SGD(model:parameters(), { lr = 0.1 }), 3)
    end)
  end)

  it('counts the bytes that collectives move', function()
    local model = wrapped(layers(), 'FULL_SHARD', PRECISIONS[2])
    assert.equal(0, model:plan().gathered)
    model = fsdp.FSDP(layers(), {
      process_group = ms.dist.fake { world = 3 }, mixed_precision = PRECISIONS[2],
    })
    local unit = model:units()[1]
    local plan = model:plan { dry_run = true }
    assert.equal(2 * 2 * unit.shard_numel, plan.gathered) -- the root's alone: once a step, in bf16
    assert.equal(2 * 4 * unit.shard_numel, plan.reduced)
    assert.same({ 0, 1, 0, 1 },
      { plan.param_ring, plan.param_homes, plan.gradient_ring, plan.gradient_homes })
    assert.equal(2 * plan.gathered, model:plan { dry_run = true, micro_batches = 2 }.gathered)
  end)

  it('has as many slots used in turn as parameter_slots, at most one per unit', function()
    for given, expected in ipairs { 1, 2, 3, 3 } do
      local equal = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
      local model = fsdp.FSDP(equal, {
        process_group = ms.dist.fake { world = 3 }, parameter_slots = given,
        auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Linear },
      })
      assert.equal(expected, model:plan { dry_run = true }.param_ring)
    end
  end)

  it('gives a large unit slots of its own where that takes fewer bytes', function()
    for _, case in ipairs { -- numbers of small and large units, ring and home slots
      { small = 1, large = 1, ring = 1, homes = 1 },
      { small = 20, large = 1, ring = 2, homes = 1 },
      { small = 20, large = 2, ring = 2, homes = 0 }, -- those of the ring serve both
      { small = 20, large = 6, ring = 2, homes = 0 },
    } do
      local model = nn.Sequential()
      for i = 1, case.small + case.large do
        model:append(i <= case.small and nn.Linear(2, 2) or nn.Linear(64, 64))
      end
      local plan = fsdp.FSDP(model, {
        process_group = ms.dist.fake { world = 3 }, parameter_slots = 2,
        auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Linear },
      }):plan { dry_run = true }
      assert.same({ case.ring, case.homes, case.ring, case.homes },
        { plan.param_ring, plan.param_homes, plan.gradient_ring, plan.gradient_homes })
    end
  end)

  it('counts one micro-batch unless told otherwise, and refuses what is no number of them',
    function()
      local model = wrapped(layers(), 'NO_SHARD')
      assert.same(model:plan { micro_batches = 1 }, model:plan())
      checks.raises('ValueError', "plan: unknown option 'micro_batch', did you mean "
        .. "'micro_batches'?", model.plan, model, { micro_batch = 2 })
      checks.raises('TypeError', "plan: 'micro_batches' is 1.5, expected a whole number",
        model.plan, model, { micro_batches = 1.5 })
      checks.raises('TypeError', "plan: 'micro_batches' is a string, expected a whole number",
        model.plan, model, { micro_batches = '2' })
      checks.raises('ValueError', "plan: 'micro_batches' is 0, expected 1 or more", model.plan,
        model, { micro_batches = 0 })
      checks.raises('TypeError', "plan: 'dry_run' is a number, expected true or false", model.plan,
        model, { dry_run = 1 })
      checks.raises('ValueError', 'a plan for 2199023255552 micro-batches, expected 1 to 2^40',
        model.plan, model, { micro_batches = 2 ^ 41 })
    end)
end)
