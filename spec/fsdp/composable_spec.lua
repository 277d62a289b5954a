-- Modules that are sharded in place.
local ms = require 'moonshard'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim
local checks = require 'support.checks'
local wrap = require 'support.wrap'
local runs = require 'support.runs'

local function is_block(m) return ms.is(m, nn.TransformerBlock) end

local function gpt()
  ms.manual_seed(1)
  return runs.gpt()
end

describe('a module that is sharded in place', function()
  it('trains to the bits of a wrapped one, under every strategy', function()
    for _, strategy in ipairs { 'FULL_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD' } do
      ms.dist.spawn(2, function(rank)
        local opts = { sharding_strategy = strategy, auto_wrap_policy = is_block }
        local function hash(model, state)
          local opt = optim.SGD(model:parameters(), { lr = 0.1, momentum = 0.9 })
          local ids = ms.tensor({ { 1, 2, 3, rank }, { 4, 3, 2, 1 } }, { dtype = 'i64' })
          ms.manual_seed(5)
          for _ = 1, 2 do
            state:no_sync(function() model(ids, ids):backward() end)
            model(ids, ids):backward()
            state:clip_grad_norm_(0.5)
            opt:step()
            opt:zero_grad()
          end
          return state:hash()
        end
        local wrapped, module = wrap(gpt(), opts), gpt()
        local expected = hash(wrapped, wrapped)
        local model = fsdp.composable(module, opts)
        assert.equal(module, model)
        assert.is_true(ms.is(model, ms.models.GPT))
        assert.equal(expected, hash(model, fsdp.get_state(model)))
        assert.equal(strategy, fsdp.get_state(model.h[1]).sharding_strategy)
        assert.same({ unpack(wrapped:state_dict()) }, { unpack(model:state_dict()) })
        fsdp.summon_full_params(model, nil, function()
          assert.same({ 13, 10 }, model.wte.weight:shape())
        end)
      end)
    end
  end)

  it('runs its hooks while its parameters are gathered', function()
    ms.dist.spawn(2, function()
      local model = fsdp.composable(nn.Linear(4, 3), { use_orig_params = true })
      local shapes = {}
      model:register_forward_pre_hook(function(m) shapes[#shapes + 1] = m.weight:shape() end)
      model:register_forward_hook(function(m) shapes[#shapes + 1] = m.weight:shape() end)
      model(ms.ones(1, 4)):sum():backward()
      assert.same({ { 3, 4 }, { 3, 4 } }, shapes)
      assert.same(1, #model.weight:shape())
    end)
  end)

  it('is refused twice, and has a state', function()
    local model = wrap(nn.Linear(2, 2), {})
    checks.raises('ValueError', 'nn.Linear is not sharded itself', fsdp.get_state, model.module)
    checks.raises('ValueError', 'is sharded already', fsdp.composable, model)
  end)
end)
