-- A failed backward has the same effect on every unit, however the model is wrapped.
local ms = require 'moonshard'
local wrap = require 'support.wrap'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim

local Two = nn.Module.extend('my.Two')
function Two:init()
  self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)
end
function Two:forward(x)
  x = self.a(x)
  return self.half and x or self.b(x)
end

local function made(policy, strategy)
  ms.manual_seed(1)
  local two = Two()
  local model = wrap(two,
    { auto_wrap_policy = policy, sharding_strategy = strategy, use_orig_params = true })
  return model, two
end

local function passes(model)
  model(ms.ones(1, 2)):sum():backward()
end

-- Fails in the first or in the last part of the backward.
local function fails(model, early)
  local x = ms.ones(1, 2):requires_grad_(true)
  local inner = x * 1
  local y = model(inner) * 1
  local at = early and y or inner
  at:hook(function() error('no more', 0) end)
  assert(not pcall(function() y:sum():backward() end))
end

local function gradients(model)
  local n = 0
  for p in model:parameters() do
    n = n + (p:grad() and 1 or 0)
  end
  return ms.dist.all_reduce(ms.full({ 1 }, n)):item()
end

describe('a backward that fails', function()
  for _, strategy in ipairs { 'FULL_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD' } do
    for _, wraps in ipairs { 'the whole', 'parts' } do
      local policy = wraps == 'parts' and fsdp.ModuleWrapPolicy { nn.Linear } or nil
      local function on(world, fn)
        ms.dist.spawn(world, function() fn(made(policy, strategy)) end)
      end

      it(('drops all accumulated gradients, with %s of %s'):format(strategy, wraps), function()
        for world = 1, 3 do
          on(world, function(model, two)
            local opt = optim.SGD(model:parameters(), { lr = 0.1 })
            local before = model:hash()
            for _, early in ipairs { true, false } do
              two.half = false
              passes(model)
              model:no_sync(passes, model)
              two.half = true
              fails(model, early)
              assert.equal(0, gradients(model))
              opt:step()
              assert.equal(before, model:hash())
            end
            two.half = false
            model:no_sync(passes, model) -- the next gradients are complete
            passes(model)
            local got = model:clip_grad_norm_(1e9):item()
            model:zero_grad()
            passes(model)
            assert.equal(2 * model:clip_grad_norm_(1e9):item(), got)
          end)
        end
      end)

      it(('keeps what it does not reach, with %s of %s'):format(strategy, wraps), function()
        on(2, function(model, two)
          passes(model)
          local norm, n = model:clip_grad_norm_(1e9):item(), gradients(model)
          two.a:requires_grad_(false)
          two.half = true
          fails(model, false) -- through frozen parameters alone
          assert.equal(n, gradients(model))
          assert.equal(norm, model:clip_grad_norm_(1e9):item())
        end)
      end)
    end
  end
end)
