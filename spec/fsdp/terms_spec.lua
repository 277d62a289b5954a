-- Terms of the loss over parameters, such as an L2 penalty, need full parameters.
local ms = require 'moonshard'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim
local checks = require 'support.checks'
local wrap = require 'support.wrap'

local function squares(module)
  local sum
  for p in module:parameters() do
    local term = (p * p):sum()
    sum = sum and sum + term or term
  end
  return sum
end

local Penalised = nn.Module.extend('my.Penalised')
function Penalised:init()
  self.linear = nn.Linear(7, 3)
end
function Penalised:forward(x)
  return self.linear(x):sum() + squares(self.linear)
end

local function wrapped(module, strategy)
  return wrap(module, { sharding_strategy = strategy, use_orig_params = true })
end

local function step(model, opt, loss_of)
  ms.scope(function() loss_of(model):backward() end)
  opt:step()
  opt:zero_grad()
end

local function loss_of(model)
  return model(ms.ones(2, 7)):sum()
end

describe('a term over parameters', function()
  for _, strategy in ipairs { 'FULL_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD' } do
    it('trains as unsharded inside the wrapped forward, with ' .. strategy, function()
      ms.dist.spawn(2, function()
        ms.manual_seed(1)
        local plain = Penalised()
        ms.manual_seed(1)
        local model = wrapped(Penalised(), strategy)
        for _, m in ipairs { plain, model } do
          step(m, optim.SGD(m:parameters(), { lr = 0.1 }), loss_of)
        end
        assert.equal(plain:hash(), model:hash())
      end)
    end)
  end

  for _, strategy in ipairs { 'FULL_SHARD', 'SHARD_GRAD_OP' } do
    for world = 1, 3 do
      it(('is refused over shards, with %s on %d ranks'):format(strategy,
        world), function()
        ms.dist.spawn(world, function()
          local hashes = {}
          for _, tries in ipairs { true, false } do
            ms.manual_seed(1)
            local model = wrapped(nn.Sequential(nn.Linear(7, 3)), strategy)
            local opt = optim.SGD(model:parameters(), { lr = 0.1 })
            step(model, opt, loss_of)
            local looked_at = squares(model) -- without a backward
            if tries then
              checks.raises('RuntimeError', "backward: 'mul' was given this rank's shard (",
                function()
                  local penalty = squares(model)
                  step(model, opt, function(m) return loss_of(m) + penalty end)
                end)
            end
            step(model, opt, loss_of)
            hashes[#hashes + 1] = model:hash()
            assert.is_true(looked_at:item() > 0)
          end
          assert.equal(hashes[2], hashes[1])
        end)
      end)
    end
  end

  it('is refused over a shard of another unit in a forward', function()
    local Outer = nn.Module.extend('my.Outer')
    function Outer:init()
      self.first, self.second = nn.Linear(7, 7), nn.Linear(7, 3)
    end
    function Outer:forward(x)
      local factor = self.term and self.term(self.second.weight) or 1
      return self.second(self.first(x)):sum() * factor
    end
    local terms = {
      function(w) return (w:detach() ^ 2):sum() end,
      function(w) return (w * w):sum() end,
      function(w) return w:detach():reshape(-1)[1]:item() end,
      function(w) return ms.no_grad(w.sum, w) end,
      function(w) return ms.zeros(w:numel()):copy_(w:detach():reshape(-1)):sum() end,
      function(w) return #w:totable() end,
    }
    ms.dist.spawn(2, function()
      local hashes = {}
      for _, tries in ipairs { true, false } do
        ms.manual_seed(1)
        local outer = Outer()
        local model = fsdp.FSDP(outer, { auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Linear } })
        local opt = optim.SGD(model:parameters(), { lr = 0.1 })
        step(model, opt, loss_of)
        for _, term in ipairs(tries and terms or {}) do
          outer.term = term
          for _ = 1, 2 do
            checks.raises('RuntimeError', "has no memory now: unit 'second' is sharded, and a "
              .. 'forward reads no shards', loss_of, model)
          end
          outer.term = nil
          assert.is_true(term(model.second.weight) ~= nil) -- between forwards a script may
        end
        step(model, opt, loss_of)
        hashes[#hashes + 1] = model:hash()
      end
      assert.equal(hashes[2], hashes[1])
    end)
  end)

  -- Two vectors on two ranks: each lies on one of them, and its shard has the shape of the whole.
  it('is refused over a shard with the shape of its parameter', function()
    ms.dist.spawn(2, function(rank)
      local model = wrapped(nn.LayerNorm(4), 'FULL_SHARD')
      model(ms.ones(2, 4)):sum():backward() -- the root shows whole parameters until then
      local own = rank == 0 and model.module.weight or model.module.bias
      assert.same({ 4 }, own:shape())
      checks.raises('RuntimeError', "backward: 'mul' was given this rank's shard (4) of", function()
        (own * own):sum():backward()
      end)
      checks.raises('RuntimeError', "backward: 'backward' was given this rank's shard (4) of",
        own.backward, own, ms.ones(4))
      model:zero_grad()
      model(ms.ones(2, 4)):sum():backward() -- nothing is lost
      assert.same({ 4 }, own:grad():shape())
    end)
  end)
end)
