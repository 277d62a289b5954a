-- Frozen parameters in a unit with trainable ones: memory, and requires_grad that changes.

local ms = require 'moonshard'
local nn, fsdp = ms.nn, ms.fsdp
local checks = require 'support.checks'
local wrap = require 'support.wrap'

local function layers()
  ms.manual_seed(3)
  return nn.Sequential { nn.Linear(7, 9), nn.Linear(9, 5), nn.Linear(5, 3) }:materialize()
end

local function wrapped(strategy)
  return wrap(layers(), {
    auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Linear },
    sharding_strategy = strategy, use_orig_params = true,
  })
end

local function backward(model, k)
  model(ms.full({ 2, 7 }, k)):sum():backward()
end

-- Which parameters train in each backward. Gradients add up unless they are dropped before it.
local STEPS = {
  { train = 'bias' },
  { train = 'bias' },
  { train = 'weight' }, -- the layout grows while .grad shows values of the biases
  { train = '' },       -- all
  { train = '2.', drop = '' },
  { train = 'bias' },
  { train = 'weight', drop = 'bias' },
}

local function prepare(model, step)
  for name, p in model:named_parameters() do
    p:requires_grad_(name:find(step.train, 1, true) ~= nil)
    if step.drop and name:find(step.drop, 1, true) then
      p:set_grad(nil)
    end
  end
end

local function gradients(model)
  local out = {}
  for name, p in model:named_parameters() do
    local g = p:grad()
    out[name] = g and g:totable() or 'none'
  end
  return out
end

local function expected_gradients()
  local plain, out = layers(), {}
  for i, step in ipairs(STEPS) do
    prepare(plain, step)
    backward(plain, i)
    out[i] = gradients(plain)
  end
  return out
end

describe('frozen parameters', function()
  for _, strategy in ipairs { 'FULL_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD' } do
    it('take no memory for gradients, with ' .. strategy, function()
      ms.dist.spawn(2, function()
        local model = wrapped(strategy)
        local trained = 0
        for name, p in model:named_parameters() do
          p:requires_grad_(name:find('bias', 1, true) ~= nil)
          trained = trained + (p:requires_grad() and p:numel() or 0)
        end
        backward(model, 1)
        assert(model[1].bias:grad() or model[1].bias:numel() == 0)
        assert.equal(4 * trained, ms.memory().live.gradient)
        assert.equal(4 * trained, model:plan().gradients)
      end)
    end)

    -- Gradients of equal ranks average to those of one; a world of 2^n divides exactly.
    it('may change between backwards, with ' .. strategy, function()
      ms.dist.spawn(2, function(rank)
        local expected = expected_gradients()
        local model = wrapped(strategy)
        for i, step in ipairs(STEPS) do
          prepare(model, step)
          backward(model, i)
          fsdp.summon_full_params(model, { with_grads = true }, function()
            assert.same(expected[i], gradients(model), ('rank %d, step %d'):format(rank, i))
          end)
        end
      end)
    end)

    it('have no gradient slots where a unit has nothing else, until it trains, with ' .. strategy,
      function()
        ms.dist.spawn(2, function()
          local model, plain = wrapped(strategy), layers()
          local all = model:plan { dry_run = true }.gradient_slots
          local function train(step, k)
            for _, m in ipairs { model, plain } do
              prepare(m, step)
              backward(m, k)
            end
            assert.equal(model:plan().arena, ms.memory().live.arena)
          end
          train({ train = '2.' }, 1)
          assert.is_true(model:plan().gradient_slots < all)
          train({ train = '' }, 2)
          assert.equal(all, model:plan().gradient_slots)
          local expected = gradients(plain)
          fsdp.summon_full_params(model, { with_grads = true }, function()
            assert.same(expected, gradients(model))
          end)
          collectgarbage()
        end)
      end)

    it('of one rank get the gradients of the others, with ' .. strategy, function()
      ms.dist.spawn(2, function(rank)
        local model = wrapped(strategy)
        prepare(model, { train = 'bias' })
        backward(model, 1)
        prepare(model, { train = rank == 0 and '' or 'bias' }) -- weights train on rank 0
        backward(model, 2)
        local plain = layers()
        backward(plain, 2)
        local expected = {}
        for name, p in plain:named_parameters() do
          expected[name] = name:find('weight', 1, true) and (p:grad() / 2):totable()
        end
        fsdp.summon_full_params(model, { with_grads = true }, function()
          for name, p in model:named_parameters() do
            assert.same(expected[name] or p:grad():totable(), p:grad():totable(), name)
          end
        end)
      end)
    end)
  end

  it('must not become trainable inside a forward', function()
    ms.dist.spawn(2, function()
      local model = wrapped('FULL_SHARD')
      prepare(model, { train = '2.' })
      backward(model, 1)
      model.module[1]:register_forward_pre_hook(function(m) m:requires_grad_(true) end)
      checks.raises('RuntimeError', 'frozen so far, became trainable during a forward', backward,
        model, 1)
    end)
  end)

  it('leave alone a dropped gradient that the script keeps when the layout grows', function()
    ms.dist.spawn(2, function()
      local model = wrapped('FULL_SHARD')
      prepare(model, { train = 'bias' })
      backward(model, 1)
      local bias = model[3].bias
      local kept = bias:grad()
      local values = kept and kept:totable()
      bias:set_grad(nil)
      prepare(model, { train = '' })
      backward(model, 2)
      assert.same(values, kept and kept:totable())
    end)
  end)

  it('in a unit with trainable ones give one warning a model', function()
    local function block()
      local made = layers()
      made[1]:requires_grad_(false)
      made[2]:requires_grad_(false)
      made[3].weight:requires_grad_(false)
      return made
    end
    ms.dist.spawn(2, function()
      local mixed = {}
      for _, warning in ipairs(ms.capture_warnings(fsdp.FSDP, nn.Sequential(block(), block()), {
        auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Sequential }, use_orig_params = true,
      })) do
        mixed[#mixed + 1] = warning.message:match 'requires_grad=True: .*'
      end
      assert.same({ "requires_grad=True: ['0.2.bias']. The following parameters have requires_grad="
        .. "False: ['0.0.weight', '0.0.bias', '0.1.weight', '0.1.bias'] and 1 more." }, mixed)
    end)
  end)
end)
