-- After a forward without gradients parameters show the same shards as before.
local ffi = require 'ffi'
local ms = require 'moonshard'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim
local checks = require 'support.checks'
local wrap = require 'support.wrap'

local STRATEGIES = { 'FULL_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD' }

local function layers()
  return nn.Sequential { nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4) }
end

-- Without a strategy the model is not wrapped.
local function made(strategy, dtype, policy)
  ms.manual_seed(1)
  return not strategy and layers() or wrap(layers(), {
    sharding_strategy = strategy, use_orig_params = true, auto_wrap_policy = policy,
    mixed_precision = dtype ~= 'f32' and { param_dtype = dtype } or nil,
  })
end

local function validate(model)
  model:eval()
  local y = ms.no_grad(model, ms.ones(2, 4))
  model:train()
  return y
end

-- Runs fn(rank, world, make, strategy) on one rank and on two, for every strategy and dtype. make()
-- returns a new model.
local function each(title, fn)
  for _, strategy in ipairs(STRATEGIES) do
    for dtype, policy in pairs { f32 = false, bf16 = fsdp.ModuleWrapPolicy { nn.Linear } } do
      it(('%s, with %s in %s'):format(title, strategy, dtype), function()
        local function make()
          return made(strategy, dtype, policy or nil)
        end
        for world = 1, 2 do
          ms.dist.spawn(world, fn, make, strategy)
        end
      end)
    end
  end
end

local function pieces(model)
  local list = {}
  for name, p in model:named_parameters() do
    list[#list + 1] = ('%s %s %s'):format(name, p:dtype(), table.concat(p:shape(), ','))
  end
  return list
end

-- The sum of squares over the shards of all ranks.
local function squares(model)
  local sum = ms.zeros(1)
  for p in model:parameters() do
    sum:add_(p:detach():to(ms.f32):pow(2):sum():reshape(1))
  end
  return ms.dist.all_reduce(sum):item()
end

-- Gradients of this rank's parameters; false where there is none.
local function gradients_of(model)
  local list = {}
  for p in model:parameters() do
    list[#list + 1] = p:grad() and p:grad():totable() or false
  end
  return list
end

describe('after a forward without gradients', function()
  each('parameters show the same shards', function(_, world, make, strategy)
    local model, expected = make(), 0
    for p in made():materialize():parameters() do
      expected = expected + p:pow(2):sum():item()
    end
    expected = expected * (strategy == 'NO_SHARD' and world or 1)
    model(ms.ones(2, 4)):sum():backward()
    model:zero_grad()
    local before = pieces(model)
    checks.close(expected, squares(model))
    for _ = 1, 2 do
      validate(model)
      assert.same(before, pieces(model))
      checks.close(expected, squares(model))
      fsdp.summon_full_params(model, { writeback = false }, function() end)
      assert.same(before, pieces(model))
    end
  end)

  each('parameters can be written in place', function(_, _, make)
    local model = make()
    for value = 1, 3 do
      validate(model)
      for p in model:parameters() do
        ms.no_grad(p.fill_, p, value / 4)
      end
      checks.close(value / 4, model:state_dict()['2.weight']:mean():item())
      local plain = made():materialize()
      for p in plain:parameters() do
        ms.no_grad(p.fill_, p, value / 4)
      end
      checks.close(ms.no_grad(plain, ms.ones(2, 4)):totable(), validate(model):to(ms.f32), 1e-2)
    end
  end)

  each('a script can step parameters', function(_, _, make)
    local model = make()
    model(ms.ones(2, 4)):sum():backward()
    local before = model:state_dict()['2.bias']:clone()
    validate(model)
    for p in model:parameters() do
      if p:grad() then
        ms.no_grad(p.add_, p, p:grad(), -0.5)
      end
    end
    checks.close(before:sub(1):totable(), model:state_dict()['2.bias']) -- 2 rows: 2, halved
  end)

  each('backward of an earlier forward gives the same gradients', function(_, _, make)
    local function gradients(between)
      local model = make()
      local loss = model(ms.ones(2, 4)):sum()
      between(model)
      loss:backward()
      between(model)
      return gradients_of(model)
    end
    assert.same(gradients(function() end), gradients(validate))
  end)

  for _, strategy in ipairs(STRATEGIES) do
    it('a target network is updated as unsharded, with ' .. strategy, function()
      ms.dist.spawn(2, function()
        local function target(kind)
          local model, followed = made(kind), made(kind)
          local opt = optim.Adam(model:parameters(), { lr = 1e-2 })
          local x = ms.randn(8, 4)
          for _ = 1, 4 do
            local goal = ms.no_grad(followed, x)
            local loss = (model(x) - goal - 1):pow(2):mean()
            loss:backward()
            opt:step()
            opt:zero_grad()
            ms.no_grad(function()
              local slow = followed:parameters()
              for i, p in ipairs(model:parameters()) do
                slow[i]:copy_(slow[i] * 0.9 + p * 0.1)
              end
            end)
          end
          return followed:state_dict()
        end
        local expected, got = target(nil), target(strategy)
        for _, name in ipairs(expected) do
          assert.is_true(got[name]:equal(expected[name]), name)
        end
      end)
    end)
  end
end)

-- Turns gradients off in its own forward in evaluation.
local Careful = nn.Module.extend('Careful')

function Careful:init()
  self.net = layers()
end

function Careful:forward(x)
  if self.training then
    return self.net(x)
  end
  return ms.no_grad(self.net, x)
end

-- Forwards without a backward, and an unshard() that ends with the next write. The caller keeps
-- their results alive.
local USES = {
  { 'an evaluation inside the model', function(model)
    model:eval()
    model(ms.ones(2, 4))
    model:train()
  end },
  { 'a forward while all is frozen', function(model)
    model:requires_grad_(false)
    model(ms.ones(2, 4))
    model:requires_grad_(true)
  end },
  { 'a forward whose loss is dropped', function(model)
    ms.scope(function() model(ms.ones(2, 4)) end)
  end },
  { 'an evaluation while a graph waits', function(model)
    local result = model(ms.ones(2, 4))
    validate(model)
    return result
  end },
  { 'unshard()', function(model) model:unshard() end, whole = true },
}

-- This rank's parameters after `steps` of SGD from now.
local function values(model, steps, lr)
  local list = {}
  for p in model:parameters() do
    list[#list + 1] = (p:grad() and p:detach() - p:grad() * (steps * lr) or p:detach()):totable()
  end
  return list
end

describe('parameters show shards and can be written after', function()
  for _, use in ipairs(USES) do
    for _, strategy in ipairs(STRATEGIES) do
      it(('%s, with %s'):format(use[1], strategy), function()
        ms.dist.spawn(2, function()
          local model = wrap(Careful(), { sharding_strategy = strategy })
          local opt = optim.SGD(model:parameters(), { lr = 0.5 })
          model(ms.ones(2, 4)):sum():backward()
          local shown, stepped = pieces(model), values(model, 1, 0.5)
          local weight, kept = model.net[1].weight, {}

          kept[1] = use[2](model)
          if use.whole then
            assert.same({ 8, 4 }, weight:shape())
          else
            assert.same(shown, pieces(model))
          end
          opt:step()
          assert.same(shown, pieces(model))
          checks.close(stepped, values(model, 0, 0))

          kept[#kept + 1] = use[2](model)
          local full = model:state_dict()
          for _, name in ipairs(full) do
            full[name]:fill_(7)
          end
          model:load_state_dict(full)
          assert.same(shown, pieces(model))
          assert.equal(7 * weight:numel(), weight:sum():item())

          kept[#kept + 1] = use[2](model)
          if use.whole then -- to be read
            model:reshard()
          end
          ms.no_grad(weight.fill_, weight, 3)
          assert.equal(3, model:state_dict()['net.0.weight']:mean():item())
        end)
      end)
    end
  end
end)

ffi.cdef 'int setenv(const char *name, const char *value, int overwrite);'

describe('with full precision in evaluation', function()
  it('gradients are reduced, and buffers kept, in full precision until training goes on', function()
    ms.dist.spawn(2, function(rank, world)
      ffi.C.setenv('FSDP_USE_FULL_PREC_IN_EVAL', '1', 1)
      for n = 1, 3 do
        local low = { buffer_dtype = 'bf16', param_dtype = n ~= 2 and 'bf16' or nil,
          reduce_dtype = n > 1 and 'bf16' or nil }
        for _, micro in ipairs { 1, 2, 3 } do
          local plain, layer = layers():materialize(), layers()
          layer[2]:buffer('scale', ms.full({ 1 }, 1.001))
          layer:load_state_dict(plain:state_dict(), { strict = false })
          local model = wrap(layer, { use_orig_params = true, mixed_precision = low })
          local function x(r, k) return ms.tensor { { 1.001 + r, 0.3, 0.77, k } } end
          model(ms.ones(1, 4))
          model:eval()
          for k = 1, micro do
            for r = 0, world - 1 do
              (plain(x(r, k)):sum() / world):backward()
            end
            if k < micro then
              model:no_sync(function() model(x(rank, k)):sum():backward() end)
            else
              model(x(rank, k)):sum():backward()
            end
          end
          assert.equal('f32', layer[2].scale:dtype())
          fsdp.summon_full_params(model, { with_grads = true, writeback = false }, function()
            checks.close(plain[1].weight:grad():totable(), layer[1].weight:grad(), 1e-5)
          end)
          model:train()
          model(ms.ones(1, 4))
          assert.equal('bf16', layer[2].scale:dtype())
        end
      end
    end)
  end)
end)
