-- Models that the collector frees during a backward.
local ms = require 'moonshard'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim
local checks = require 'support.checks'

-- Two units; `on_backward` is called between their backwards.
local function model_of(on_backward)
  ms.manual_seed(1)
  local layers = nn.Sequential { nn.Linear(4, 4), nn.Linear(4, 2) }
  if on_backward then
    layers[2]:register_forward_pre_hook(function(_, inputs)
      local y = inputs[1] * 2
      y:hook(on_backward)
      return y
    end)
  end
  return fsdp.FSDP(layers, {
    auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Linear }, use_orig_params = true,
  })
end

local function loss_of(...)
  local loss
  for _, model in ipairs { ... } do
    local own = model(ms.ones(2, 4)):sum()
    loss = loss and loss + own or own
  end
  return loss
end

local function collect()
  collectgarbage()
  collectgarbage()
end

local function live_bytes()
  collect()
  return ms.memory().live_total
end

describe('a model that is dropped in a hook', function()
  it('does not disturb other models', function()
    ms.dist.spawn(2, function()
      local held = { model_of() }
      loss_of(held[1]):backward()
      local first, second = model_of(), model_of()
      local opt = optim.SGD(second:parameters(), { lr = 0.1 })
      local loss = loss_of(first, second)
      first[1].weight:accumulate_hook(function()
        held[1] = nil
        collect()
      end)
      loss:backward()
      opt:step()
      second:no_sync(function() loss_of(second):backward() end)
    end)
  end)

  it('is freed after the backward', function()
    ms.dist.spawn(2, function()
      local model = model_of()
      loss_of(model):backward()
      local before = live_bytes()
      local held = { model_of() }
      loss_of(held[1]):backward()
      assert.truthy(live_bytes() > before)
      model[1].weight:accumulate_hook(function()
        held[1] = nil
        collect()
      end)
      loss_of(model):backward()
      assert.equal(before, live_bytes())
    end)
  end)

  it('runs all its hooks, also after a failed forward', function()
    ms.dist.spawn(2, function()
      for _, fails in ipairs { false, true } do
        local model, ran = model_of(), 0
        local loss = loss_of(model)
        for _, p in ipairs(model:parameters()) do
          p:accumulate_hook(function()
            ran = ran + 1
            if model and fails then
              checks.raises('ValueError', 'linear: x has shape (2, 5)', model, ms.ones(2, 5))
            end
            model = nil
            collect()
          end)
        end
        loss:backward()
        assert.equal(4, ran)
      end
    end)
  end)
end)
