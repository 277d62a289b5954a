-- Parameters that are read without a gradient or outside their module's forward. Backward may need
-- their values after the unit's last gradient or between two forwards of it.
local ms = require 'moonshard'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim
local checks = require 'support.checks'
local wrap = require 'support.wrap'

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
  local model = wrap(sharded, {
    sharding_strategy = strategy, use_orig_params = true, backward_prefetch = prefetch,
    auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Linear, Gate },
  })
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
end)

local Shared = nn.Module.extend 'Shared' -- uses its embedding twice, and its weight directly

function Shared:init()
  self.table = nn.Embedding(6, 4)
  self.into, self.out = nn.Linear(4, 4), nn.Linear(4, 4)
end

function Shared:forward(ids)
  local first = self.into(self.table(ids))
  local read = ms.ops.matmul(first, self.table.weight:t())
  local second = self.out(self.table(ids) + first)
  return ms.ops.matmul(second, self.table.weight:t()) + read
end

local IDS = { 1, 2, 3, 4, 5 }

-- State dict after steps of `n` forwards and one backward.
local function shared_steps(model, n, penalised)
  local opt = optim.SGD(model:parameters(), { lr = 0.05, momentum = 0.9 })
  for _ = 1, 3 do
    local total = ms.zeros()
    for k = 1, n do
      local loss = (model(ms.tensor(IDS, { dtype = 'i64' })) ^ 2):mean() * k
      total = total + loss + (penalised and (penalised.weight ^ 2):sum() * 0.1 or 0)
    end
    total:backward()
    opt:step()
    opt:zero_grad()
  end
  return model:state_dict()
end

local function same_shared(_, _, opts, n)
  local function made()
    ms.manual_seed(1)
    return Shared()
  end
  local plain, inner = made(), made()
  local model = wrap(inner, opts)
  local penalised = not opts.auto_wrap_policy
  local expected = shared_steps(plain, n, penalised and plain.out)
  local found = shared_steps(model, n, penalised and inner.out)
  for _, name in ipairs(expected) do
    checks.close(expected[name]:totable(), found[name], 1e-6)
  end
end

describe('what is kept unsharded is there for a backward that reads it', function()
  for n = 1, 3 do
    for _, strategy in ipairs { 'SHARD_GRAD_OP', 'NO_SHARD' } do
      it(('between %d forwards of its module, with %s'):format(n, strategy), function()
        ms.dist.spawn(2, same_shared, {
          sharding_strategy = strategy, use_orig_params = true,
          auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Linear, nn.Embedding },
        }, n)
      end)
    end
    for _, strategy in ipairs { 'FULL_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD' } do
      it(('outside the model after %d forwards, with %s'):format(n, strategy), function()
        ms.dist.spawn(2, same_shared, { sharding_strategy = strategy, use_orig_params = true }, n)
      end)
    end
  end
end)

local Loop = nn.Module.extend 'Loop'

function Loop:init()
  self.block, self.head = nn.Linear(4, 4), nn.Linear(4, 4)
end

function Loop:forward(x, n)
  for _ = 1, n do
    x = self.block(x)
  end
  return self.head(x)
end

describe('a unit that is used several times', function()
  for strategy, expected in pairs { FULL_SHARD = 2, SHARD_GRAD_OP = 0 } do
    it('is gathered at most once in a backward, with ' .. strategy, function()
      ms.dist.spawn(2, function()
        local model = fsdp.FSDP(Loop(), {
          sharding_strategy = strategy, use_orig_params = true,
          auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Linear },
        })
        for _, uses in ipairs { 1, 2, 5 } do
          for graphs = 1, 2 do
            local loss = ms.zeros()
            for _ = 1, graphs do
              loss = loss + model(ms.ones(1, 4), uses):sum()
            end
            local before = model:collectives().all_gather
            loss:backward()
            assert.equal(expected, model:collectives().all_gather - before)
            model:zero_grad()
          end
        end
      end)
    end)
  end
end)
