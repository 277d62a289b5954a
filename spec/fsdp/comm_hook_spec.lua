-- Communication hooks: functions of the script that reduce gradients.
local ms = require 'moonshard'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim
local checks = require 'support.checks'
local wrap = require 'support.wrap'
local hooks = fsdp.comm_hooks

local function make(strategy)
  ms.manual_seed(1)
  local module = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)):materialize()
  return wrap(module, { sharding_strategy = strategy, use_orig_params = true,
    auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Linear } })
end

local function train(model, rank)
  local opt = optim.SGD(model:parameters(), { lr = 0.1, momentum = 0.9 })
  for i = 1, 3 do
    model:no_sync(function() model(ms.ones(2, 4) * (rank + i)):square():sum():backward() end)
    model(ms.ones(2, 4) * (rank - i)):square():sum():backward()
    if i > 1 then -- the gradients of the first step accumulate
      opt:step()
      opt:zero_grad()
    end
  end
  return model:state_dict()
end

local function close(a, b, tolerance)
  for _, name in ipairs(a) do
    checks.close(a[name]:totable(), b[name], tolerance)
  end
end

describe('a communication hook', function()
  it('gives what the runtime gives by the default hooks, and nearly so in low precision', function()
    ms.dist.spawn(2, function(rank)
      for _, strategy in ipairs { 'FULL_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD' } do
        local expected = train(make(strategy), rank)
        local default = strategy == 'NO_SHARD' and hooks.allreduce_hook or hooks.reduce_scatter_hook
        for hook, tolerance in pairs { [default] = 1e-6, [hooks.bf16_compress_hook] = 5e-2,
          [hooks.fp16_compress_hook] = 5e-3 } do
          local model = make(strategy)
          model:register_comm_hook(hooks.DefaultState(ms.dist.world()), hook)
          close(expected, train(model, rank), tolerance)
        end
      end
    end)
  end)

  it('leaves a parameter that no rank has used without a gradient', function()
    ms.dist.spawn(2, function(rank)
      local module = nn.ModuleList { nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4) }
      function module:forward(x)
        return rank == 0 and self[1](x) or self[2](x) -- the third is unused
      end
      local model = wrap(module, { use_orig_params = true })
      model:register_comm_hook(hooks.DefaultState(ms.dist.world()), hooks.reduce_scatter_hook)
      model(ms.ones(2, 4)):sum():backward()
      fsdp.summon_full_params(model, { with_grads = true }, function()
        for i = 1, 3 do
          assert.is_equal(i < 3, module[i].bias:grad() ~= nil)
        end
        checks.close({ 1, 1, 1, 1 }, module[1].bias:grad(), 0) -- 2 of one rank, over 2
      end)
    end)
  end)

  it('is refused twice, on inner instances and when it is no function', function()
    ms.dist.spawn(2, function()
      local model = make 'FULL_SHARD'
      local function hook(state, _, out)
        state.n = state.n + 1
        out:fill_(state.n)
      end
      local state = { n = 0 }
      checks.raises('ValueError', 'must be callable', model.register_comm_hook, model, state, 3)
      model:register_comm_hook(state, hook)
      checks.raises('AssertionError', 'already registered', model.register_comm_hook, model, state,
        error)
      checks.raises('AssertionError', 'can only be called on a root instance',
        model.module[1].register_comm_hook, model.module[1], state, hook)
      model(ms.ones(1, 4)):sum():backward()
      assert.equal(2, state.n)
      fsdp.summon_full_params(model, { with_grads = true }, function()
        assert.same({ 1, 1 }, model.module[3].bias:grad():totable())
      end)
      model:deepcopy()(ms.ones(1, 4)):sum():backward()
      assert.equal(4, state.n)
    end)
  end)

  it('is refused in backward when it does not reduce the gradient', function()
    ms.dist.spawn(2, function()
      local state = hooks.DefaultState(ms.dist.world())
      local function refuses(kind, text, hook, hook_state)
        local model = make 'FULL_SHARD'
        model:register_comm_hook(hook_state, hook)
        local loss = model(ms.ones(1, 4)):sum()
        checks.raises(kind, text, loss.backward, loss)
      end
      refuses('RuntimeError', "unit '2': the communication hook returned without writing 'out'",
        function() end)
      refuses('TypeError', 'register reduce_scatter_hook', hooks.allreduce_hook, state)
      refuses('TypeError', 'expected a comm_hooks.DefaultState', hooks.reduce_scatter_hook)
    end)
  end)
end)
