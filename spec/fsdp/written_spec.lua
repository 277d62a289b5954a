-- Writes into parameters of a NO_SHARD model are seen by the next forward. A backward is refused
-- when parameters were written since its forward.
local ms = require 'moonshard'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim
local checks = require 'support.checks'
local wrap = require 'support.wrap'

local PRECISIONS = { 'f32', 'bf16' }

-- A model of one weight (1, 2), and its result for (1, 2): w1 + 2 w2.
local function replica(dtype)
  ms.manual_seed(1)
  local model = wrap(nn.Linear(2, 1, { bias = false }), {
    sharding_strategy = 'NO_SHARD',
    mixed_precision = dtype ~= 'f32' and { param_dtype = dtype } or nil,
  })
  local function result()
    return ms.scope(function()
      return ms.no_grad(function() return model(ms.tensor { { 1, 2 } }):item() end)
    end)
  end
  return model, result
end

-- One forward and backward: the parameters show the master copy afterwards.
local function pass(model)
  ms.scope(function() model(ms.tensor { { 1, 2 } }):sum():backward() end)
end

local WRITES = {
  { 'fill_', function(w) w:fill_(3) end, 9 },
  { 'copy_', function(w) w:copy_(ms.tensor { { 4, 5 } }) end, 14 },
  { 'add_', function(w)
    w:fill_(1)
    w:add_(ms.ones(1, 2))
  end, 6 },
  { 'an optimizer of its own', function(w)
    w:fill_(8)
    w:add_(w:grad():mul(-2)) -- the gradient is the input
  end, 8 - 2 + 2 * (8 - 4) },
  { 'a view of it', function(w) w:detach():reshape(2):fill_(2) end, 6 },
}

describe('a backward over parameters that were written since', function()
  it('is refused with the name of the unit', function()
    ms.dist.spawn(2, function()
      local Pair = nn.Module.extend('my.Pair')
      function Pair:init()
        self:param('w', { 5 }, nn.init.ones())
        self:param('v', { 3, 5 }, nn.init.ones())
      end
      function Pair:forward(x)
        return ms.ops.linear(x * self.w, self.v)
      end
      local model = fsdp.FSDP(Pair(), { use_orig_params = true })
      local loss = model(ms.ones(2, 5)):sum()
      fsdp.summon_full_params(model, {}, function()
        ms.no_grad(model.w.fill_, model.w, 2)
      end)
      checks.raises('RuntimeError', "the version counts writes to any parameter of unit 'my.Pair', "
        .. 'by optimizers, loads and summon_full_params too', loss.backward, loss)
    end)
  end)
end)

describe('NO_SHARD parameters', function()
  for _, dtype in ipairs(PRECISIONS) do
    for world = 1, 2 do
      it(('in %s have the values that a script wrote, on %d ranks'):format(dtype, world), function()
        ms.dist.spawn(world, function()
          local model, result = replica(dtype)
          for _, write in ipairs(WRITES) do
            model.weight:set_grad(nil)
            pass(model)
            ms.no_grad(write[2], model.weight)
            assert.equal(write[3], result(), write[1])
            pass(model)
          end
        end)
      end)

      it(('in %s have the values of a loaded state dict, on %d ranks'):format(dtype, world),
        function()
          ms.dist.spawn(world, function()
            local model, result = replica(dtype)
            pass(model)
            model:load_state_dict { 'weight', weight = ms.tensor { { 6, 7 } } }
            assert.equal(20, result())
          end)
        end)
    end

    it(('in %s have values written through an old view'):format(dtype), function()
      ms.dist.spawn(1, function()
        local model, result = replica(dtype)
        pass(model)
        local view = model.weight:detach()
        result()
        ms.no_grad(view.fill_, view, 5)
        assert.equal(15, result())
        local x = ms.tensor { { 1, 2 } } -- its gradient needs the weight as it was
        x:requires_grad_(true)
        local loss = model(x):sum()
        ms.no_grad(view.fill_, view, 6)
        checks.raises('RuntimeError', 'modified by an in-place operation', loss.backward, loss)
        assert.equal(18, result())
      end)
    end)
  end
end)

-- A unit around another, and the gradient of the outer one without a write.
local function nested(strategy)
  ms.manual_seed(1)
  local options = { sharding_strategy = strategy, use_orig_params = true }
  local inner = wrap(nn.Linear(4, 4, { bias = false }), options)
  local model = wrap(nn.Sequential(nn.Linear(4, 4, { bias = false }), inner), options)
  local function loss() return model(ms.ones(2, 4)):sum() end
  loss():backward()
  local expected = model.module[1].weight:grad():clone()
  model:zero_grad()
  return model, inner, loss, expected
end

-- { name, whether it writes, function(inner, optimizer, full values, model) }
local BETWEEN = {
  { 'a step with gradients', true, function(_, opt) opt:step() end, with_gradients = true },
  { 'a load', true, function(inner, _, values) inner:load_state_dict { weight = values } end },
  { 'a write inside summon_full_params', true, function(inner, _, values, model)
    fsdp.summon_full_params(model, nil, ms.no_grad, inner.weight.copy_, inner.weight, values)
  end },
  { 'a step without gradients', false, function(_, opt) opt:step() end },
  { 'summon_full_params without a write', false, function(_, _, _, model)
    fsdp.summon_full_params(model, nil, function() end)
  end },
}

describe('between a forward and its backward', function()
  for _, strategy in ipairs { 'FULL_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD' } do
    for world = 1, 2 do
      it(('written values are noticed, with %s on %d ranks'):format(strategy, world), function()
        ms.dist.spawn(world, function()
          for _, case in ipairs(BETWEEN) do
            local model, inner, loss, expected = nested(strategy)
            local opt = optim.SGD(model:parameters(), { lr = 0.1, momentum = 0.9 })
            if case.with_gradients then
              loss():backward()
            end
            local y = loss()
            case[3](inner, opt, ms.zeros(4, 4), model)
            if case[2] then
              checks.raises('RuntimeError', 'modified by an in-place operation', y.backward, y)
            else
              y:backward()
              assert.is_true(model.module[1].weight:grad():equal(expected), case[1])
            end
            loss():backward() -- the next step works
          end
        end)
      end)
    end
  end

  it('values written into shards are noticed', function()
    for world = 1, 2 do
      ms.dist.spawn(world, function()
        local _, inner, loss = nested('FULL_SHARD')
        local y = loss()
        ms.no_grad(inner.weight.fill_, inner.weight, 0)
        checks.raises('RuntimeError', 'modified by an in-place operation', y.backward, y)
        loss():backward()
      end)
    end
  end)

  it('steps of another rank are noticed', function()
    ms.dist.spawn(2, function(rank)
      ms.manual_seed(1)
      local pair = nn.Sequential(nn.Linear(4, 4, { bias = false }), nn.Linear(4, 4))
      pair.forward = function(self, x) return self[1](x) end -- the first rank's part
      local model = fsdp.FSDP(nn.Sequential(nn.Linear(4, 4), pair), {
        auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Sequential }, use_orig_params = true,
      })
      local opt = optim.SGD(model:parameters(), { lr = 0.1 })
      local function loss() return model(ms.ones(2, 4)):sum() end
      loss():backward()
      assert.equal(rank == 0 and 16 or 0, pair[1].weight:numel())
      local y = loss()
      opt:step()
      checks.raises('RuntimeError', 'modified by an in-place operation', y.backward, y)
    end)
  end)
end)
