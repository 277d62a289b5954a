-- Parameters that a forward reads apart from their gradients: backward may need such a value after
-- the unit's last gradient is complete, and finds it as in the unsharded model.
local ms = require 'moonshard'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim
local checks = require 'support.checks'

local Gate = nn.Module.extend 'Gate'

function Gate:init(read)
  self:param('g', { 4 }, nn.init.ones())
  self:param('b', { 4 }, nn.init.zeros())
  self.read = read
end

function Gate:forward(x)
  return x * self.read(self.g) * 0.5 + self.g + self.b
end

local READS = {
  ['by detach'] = function(g)
    return g:detach()
  end,
  ['by a view made without gradients'] = function(g)
    return ms.no_grad(function()
      return g:reshape(1, 4)
    end)
  end,
}

local function layers(read)
  ms.manual_seed(1)
  return nn.Sequential { nn.Linear(4, 4), Gate(read), nn.Linear(4, 4), Gate(read) }
end

local function step(model, between)
  local opt = optim.SGD(model:parameters(), { lr = 0.1, momentum = 0.9 })
  for _ = 1, 3 do
    local loss = (model(ms.tensor { { 0.5, -1, 2, 0.25 }, { 1, 3, -0.5, 1 } }) ^ 2):mean()
    if between then
      between()
    end
    loss:backward()
    opt:step()
    opt:zero_grad()
  end
  return model:state_dict()
end

local function same(_, _, strategy, prefetch, read, between)
  local plain, sharded = layers(read), layers(read)
  local model
  ms.capture_warnings(function() -- NO_SHARD's
    model = fsdp.FSDP(sharded, {
      sharding_strategy = strategy, use_orig_params = true, backward_prefetch = prefetch,
      auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Linear, Gate },
    })
  end)
  local expected = step(plain, between and between(plain))
  local found = step(model, between and between(sharded))
  for _, name in ipairs(expected) do
    checks.close(expected[name]:totable(), found[name], 0)
  end
end

describe('a parameter that is read apart from its gradient', function()
  for how, read in pairs(READS) do
    for _, strategy in ipairs { 'FULL_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD' } do
      it(('%s trains as in the unsharded model, with %s'):format(how, strategy), function()
        for world = 1, 2 do
          for _, prefetch in ipairs { 'BACKWARD_PRE', 'BACKWARD_POST' } do
            ms.dist.spawn(world, same, strategy, prefetch, read)
          end
        end
      end)
    end
  end

  it('may be frozen in the forward and trainable in the backward', function()
    local function itself(g)
      return g
    end
    local function freezes(model)
      local gate = model[2]
      gate.g:requires_grad_(false)
      return function() -- between forward and backward
        gate.g:requires_grad_(true)
      end
    end
    for world = 1, 2 do
      ms.dist.spawn(world, same, 'FULL_SHARD', 'BACKWARD_PRE', itself, freezes)
    end
  end)
end)
