-- What `.grad` of sharded parameters shows and when: reduced shards, what no_sync accumulates,
-- values set from outside; and gradients past frozen parameters.
local ms = require 'moonshard'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim
local checks = require 'support.checks'

local STRATEGIES = { 'FULL_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD' }

-- A pass whose gradient for the weight (1, 7) is k * (rank + 1) in every element.
local function pass(model, rank, k)
  model(ms.full({ 1, 7 }, k * (rank + 1))):sum():backward()
end

local function linear(strategy, precision)
  ms.manual_seed(1)
  local model
  ms.capture_warnings(function() -- NO_SHARD's
    model = fsdp.FSDP(nn.Linear(7, 1, { bias = false }), {
      sharding_strategy = strategy, mixed_precision = precision,
    })
  end)
  return model
end

describe('gradients of sharded parameters', function()
  for _, strategy in ipairs(STRATEGIES) do
    it('show what no_sync accumulates, then the reduced sum, with ' .. strategy, function()
      ms.dist.spawn(2, function(rank)
        local model = linear(strategy)
        local function shape_of_reduced()
          return strategy == 'NO_SHARD' and { 1, 7 } or { rank == 0 and 4 or 3 }
        end
        pass(model, rank, 1)
        assert.same(shape_of_reduced(), model.weight:grad():shape())
        checks.close(1.5, model.weight:grad():mean():item())
        model:no_sync(pass, model, rank, 1)
        assert.same({ 1, 7 }, model.weight:grad():shape())
        checks.close(rank + 1, model.weight:grad():mean():item())
        model:no_sync(pass, model, rank, 10)
        checks.close(11 * (rank + 1), model.weight:grad():mean():item())
        pass(model, rank, 100)
        assert.same(shape_of_reduced(), model.weight:grad():shape())
        checks.close(1.5 * 112, model.weight:grad():mean():item())
      end)
    end)

    for _, reduce_dtype in ipairs { 'f32', 'bf16' } do
      it(('have the computing dtype inside no_sync and the master dtype after, with %s in %s')
        :format(strategy, reduce_dtype), function()
        ms.dist.spawn(2, function(rank)
          local model = linear(strategy, { param_dtype = 'bf16', reduce_dtype = reduce_dtype })
          for k = 1, 3 do -- small integers: exact in bf16
            model:no_sync(pass, model, rank, 1)
            assert.equal('bf16', model.weight:grad():dtype())
            assert.equal(k * (rank + 1), model.weight:grad():mean():item())
          end
          pass(model, rank, 1)
          assert.equal('f32', model.weight:grad():dtype())
          assert.equal(6, model.weight:grad():mean():item())
        end)
      end)
    end
  end

  it('are dropped by zero_grad inside no_sync, one by one or all', function()
    ms.dist.spawn(2, function(rank)
      ms.manual_seed(1)
      local model = fsdp.FSDP(nn.Sequential { nn.Linear(3, 2), nn.Linear(2, 2) })
      local all = optim.SGD(model:parameters(), { lr = 0.1 })
      local first = optim.SGD({ model[1].weight, model[1].bias }, { lr = 0.1 })
      local function run()
        model(ms.full({ 1, 3 }, rank + 1)):sum():backward()
      end
      run()
      local once = model:clip_grad_norm_(1e9)
      all:zero_grad()
      model:no_sync(run)
      all:zero_grad()
      assert.is_nil(model[1].weight:grad())
      assert.is_nil(model[2].bias:grad())
      run()
      checks.close(once, model:clip_grad_norm_(1e9))
      all:zero_grad()
      model:no_sync(run)
      first:zero_grad()
      assert.is_nil(model[1].weight:grad())
      checks.close(1, model[2].bias:grad():mean():item())
      run()
      -- the second layer's bias has twice the mean gradient of 1; who holds it can tell
      local grad = model[2].bias:grad()
      assert.equal(rank == 1, grad ~= nil)
      if grad then
        checks.close(2, grad:mean():item())
      end
    end)
  end)

  it('take values from outside, before and inside no_sync', function()
    ms.dist.spawn(2, function(rank)
      local model = linear('FULL_SHARD')
      pass(model, rank, 1)
      local numel = model.weight:grad():numel()
      model.weight:set_grad(nil)
      model.weight:set_grad(ms.full({ numel }, 5))
      pass(model, rank, 1)
      checks.close(6.5, model.weight:grad():mean():item()) -- 5 + the mean of 1 and 2
      model:no_sync(pass, model, rank, 1)
      checks.raises('ValueError', 'the accumulated gradient of \'weight\' has shape (7), expected '
        .. '(1, 7)', model.weight.set_grad, model.weight, ms.full({ 7 }, 1))
      model.weight:set_grad(ms.full({ 1, 7 }, 8))
      checks.close(8, model.weight:grad():mean():item())
      pass(model, rank, 1)
      checks.close(6.5 + 8 + 1.5, model.weight:grad():mean():item())
    end)
  end)

  it('must be reduced before a step', function()
    ms.dist.spawn(2, function(rank)
      local model = linear('FULL_SHARD')
      local opt = optim.SGD(model:parameters(), { lr = 0.1 })
      model:no_sync(pass, model, rank, 1)
      checks.raises('RuntimeError', 'accumulated inside no_sync and is not reduced yet', opt.step,
        opt)
      pass(model, rank, 1)
      opt:step()
    end)
  end)
end)

-- Frozen and trainable parameters in one unit, wholly frozen units, and trainable ones before them.
local function adapted()
  ms.manual_seed(3)
  local model = nn.Sequential {
    nn.Linear(4, 5), -- trainable
    nn.Sequential { nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5) }, -- frozen before trainable
    nn.Sequential { nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5) }, -- trainable before frozen
    nn.Sequential { nn.Linear(5, 5), nn.GELU(), nn.Linear(5, 5) }, -- frozen
    nn.Sequential { nn.Linear(5, 5), nn.GELU(), nn.Linear(5, 5) }, -- frozen
    nn.Sequential { nn.Linear(5, 5), nn.GELU(), nn.Linear(5, 5) }, -- frozen
    nn.Linear(5, 2),
  }
  for _, module in ipairs {
    model[2][1], model[3][3], model[4], model[5], model[6],
  } do
    module:requires_grad_(false)
  end
  return model
end

local function input(rank)
  return ms.arange(8):to('f32'):reshape({ 2, 4 }):mul(0.1 * (rank + 1)):sub(0.3)
end

-- The last (rank 1) or first elements of twice the expected gradient.
local function check_part(expected, grad, rank)
  local got = grad:reshape({ grad:numel() }):totable()
  local first = rank == 1 and #expected - #got or 0
  for i = 1, #got do
    checks.close(2 * expected[first + i], got[i], 1e-5)
  end
end

describe('backward past frozen parameters', function()
  for _, strategy in ipairs(STRATEGIES) do
    it('gives the gradients of the unsharded model, with ' .. strategy, function()
      local expected = {}
      ms.scope(function()
        local model = adapted()
        for rank = 0, 1 do
          model(input(rank)):sum():backward(ms.full({}, 0.5))
        end
        for name, p in model:named_parameters() do
          expected[name] = p:requires_grad() and p:grad():reshape({ p:numel() }):totable() or false
        end
      end)
      ms.dist.spawn(2, function(rank)
        local model = adapted()
        local units = {}
        for i = 1, #model do
          units[model[i]] = true
        end
        ms.capture_warnings(function()
          model = fsdp.FSDP(model, {
            auto_wrap_policy = fsdp.CustomPolicy(function(m) return units[m] or false end),
            sharding_strategy = strategy, use_orig_params = true,
          })
        end)
        local arena = model:plan().arena
        for _ = 1, 2 do
          model(input(rank)):sum():backward()
        end
        assert.equal(arena, model:plan().arena) -- every unit gave its slot back in time
        for name, p in model:named_parameters() do
          assert.equal(p:requires_grad(), expected[name] ~= false, name)
          if p:grad() then
            check_part(expected[name], p:grad(), strategy ~= 'NO_SHARD' and rank or 0)
          end
        end
      end)
    end)
  end
end)
