-- cpu_offload on a device: the deferred one
local ffi = require 'ffi'
local ms = require 'moonshard'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim
local runs = require 'support.runs'
local wrap = require 'support.wrap'

ffi.cdef 'int setenv(const char *name, const char *value, int overwrite);'

local function step(model, opt, x)
  model:no_sync(function() model(x):square():mean():backward() end)
  model(x):square():mean():backward()
  model:clip_grad_norm_(1)
  opt:step()
  opt:zero_grad()
end

-- Trains; with offloading everything that is kept is in host memory, as the plan says.
local function trained(strategy, precision, offload_params)
  ms.manual_seed(1)
  local net = nn.Sequential(nn.Linear(33, 64), nn.ReLU(), nn.Linear(64, 33))
  local model = wrap(net, {
    auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Linear }, use_orig_params = true,
    cpu_offload = { offload_params = offload_params }, sharding_strategy = strategy,
    mixed_precision = precision,
  })
  local opt = optim.AdamW(model:parameters(), { lr = 0.01 })
  local plan = model:plan { micro_batches = 2 }
  collectgarbage()
  ms.reset_peak_memory()
  for i = 1, 3 do
    ms.scope(step, model, opt, ms.ones(4, 33) * i)
  end
  local memory = ms.memory()
  assert(memory.live.parameter == plan.masters, 'masters')
  assert(memory.live.optimizer == 2 * plan.per_state, 'state')
  assert(memory.peak.gradient == plan.gradients, 'gradients')
  if offload_params then
    assert(plan.per_state == 0 and (strategy == 'NO_SHARD' or plan.masters == 0))
    assert(memory.pinned > 3 * 4 * model:units()[1].shard_numel)
  end
  fsdp.summon_full_params(model, {}, function()
    ms.no_grad(net[1].bias.fill_, net[1].bias, 0.5)
  end)
  step(model, opt, ms.ones(4, 33))
  return model:hash() .. opt:state_dict().state[1].exp_avg:sum():item()
end

describe('offloading', function()
  it('keeps nothing on the device and changes no bit', function()
    runs.reports(2, function()
      ffi.C.setenv('MS_DEVICE', 'fake', 1)
      for _, strategy in ipairs { 'FULL_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD' } do
        for _, precision in ipairs { false, { param_dtype = 'bf16', reduce_dtype = 'f32' } } do
          assert(trained(strategy, precision, false) == trained(strategy, precision, true))
        end
      end
      return 'ok'
    end)
  end)

  it('is a policy of fully_shard', function()
    runs.reports(2, function()
      ffi.C.setenv('MS_DEVICE', 'fake', 1)
      for _, case in ipairs {
        { fsdp.OffloadPolicy {}, 4 * 33 * 32 }, { fsdp.CPUOffloadPolicy {}, 0 },
        { fsdp.CPUOffloadPolicy { pin_memory = false }, 0 },
      } do
        local model = nn.Linear(33, 64, { bias = false })
        fsdp.fully_shard(model, { offload_policy = case[1] })
        local opt = optim.AdamW(model:parameters(), { lr = 0.01 })
        model(ms.ones(4, 33)):sum():backward()
        opt:step()
        local live = ms.memory().live
        assert.equal(case[2], live.parameter)
        assert.equal(2 * case[2], live.optimizer)
        model, opt = nil, nil -- luacheck: ignore 311
        collectgarbage()
      end
      return 'ok'
    end)
  end)
end)
