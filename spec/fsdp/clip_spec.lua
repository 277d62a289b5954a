-- clip_grad_norm_ has the same bits on every rank and for every wrapping.
local ms = require 'moonshard'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim
local checks = require 'support.checks'
local wrap = require 'support.wrap'

-- A sharded trunk and a head that is not sharded. All elements of a gradient are equal.
local function model_with_plain_head(strategy)
  ms.manual_seed(1)
  local bare = { bias = false }
  local module = nn.Sequential { nn.Linear(3, 2, bare), nn.Linear(2, 2, bare) }
  local model = wrap(module, {
    sharding_strategy = strategy, use_orig_params = true, ignored_modules = { module[2] },
  })
  model(ms.ones(1, 3)):sum():backward()
  local trunk, head = module[1].weight, module[2].weight
  if trunk:grad() then
    trunk:grad():fill_(0.5)
  end
  return model, trunk, head
end

describe('clip_grad_norm_ of sharded and plain parameters together', function()
  for _, strategy in ipairs { 'FULL_SHARD', 'NO_SHARD' } do
    it('counts equal plain gradients once, with ' .. strategy, function()
      for world = 1, 3 do
        ms.dist.spawn(world, function()
          local model, trunk, head = model_with_plain_head(strategy)
          head:grad():fill_(2)
          local total = model:clip_grad_norm_(1):item()
          checks.close(math.sqrt(6 * 0.25 + 4 * 4), total, 1e-6)
          checks.close(2 / (total + 1e-6), head:grad():mean():item())
          if trunk:grad() then
            checks.close(0.5 / (total + 1e-6), trunk:grad():mean():item())
          end
        end)
      end
    end)

    it('has one norm where plain gradients differ by rank, with ' .. strategy, function()
      ms.dist.spawn(2, function(rank)
        local model, trunk, head = model_with_plain_head(strategy)
        head:grad():fill_(rank == 0 and 2 or 4)
        local total = model:clip_grad_norm_(1):item()
        checks.close(math.sqrt(6 * 0.25 + 4 * (4 + 16) / 2), total, 1e-6) -- the mean of the squares
        checks.close((rank == 0 and 2 or 4) / (total + 1e-6), head:grad():mean():item())
        checks.close(0.5 / (total + 1e-6), trunk:grad():mean():item())
        head:grad():fill_(rank == 0 and 2 or 4)
        assert.equal(4, model:clip_grad_norm_(1, math.huge):item())
        checks.close((rank == 0 and 2 or 4) / (4 + 1e-6), head:grad():mean():item())
      end)
    end)

    it('counts a missing gradient as zeros, with ' .. strategy, function()
      ms.dist.spawn(2, function(rank)
        local model, _, head = model_with_plain_head(strategy)
        head:grad():fill_(2)
        if rank == 0 then
          head:set_grad(nil)
        end
        checks.close(math.sqrt(6 * 0.25 + 4 * 4 / 2), model:clip_grad_norm_(1):item(), 1e-6)
      end)
    end)
  end
end)

-- Two models and a plain leaf under one loss: gradients 0.5, 2 and -1, the latter on all ranks.
local function two_models(dtype)
  local models, params = {}, {}
  for i, size in ipairs { 3, 5 } do
    local linear = nn.Linear(size, 1, { bias = false, dtype = dtype })
    models[i] = wrap(linear, { use_orig_params = true })
    models[i](ms.full({ 1, size }, i == 1 and 0.5 or 2, { dtype = dtype })):sum():backward()
    params[i] = linear.weight
  end
  params[3] = ms.zeros(2, { dtype = dtype, requires_grad = true });
  (params[3] * -1):sum():backward()
  return params, models
end

describe('optim.clip_grad_norm_', function()
  it('has one norm of several models and plain parameters, in their dtype', function()
    local powers = function(p) return (3 * 0.5 ^ p + 5 * 2 ^ p + 2) ^ (1 / p) end
    local expected = { [0] = 3, [1] = powers(1), [2] = powers(2), [3] = powers(3),
      [2.5] = powers(2.5), [math.huge] = 2 }
    ms.dist.spawn(2, function()
      for p, norm in pairs(expected) do
        for _, dtype in ipairs { 'f32', 'f64' } do
          local params, models = two_models(dtype)
          local total = optim.clip_grad_norm_(params, 0.5, p)
          assert.equal(dtype, total:dtype())
          checks.close(norm, total:item(), 1e-6)
          checks.close(-0.5 / (norm + 1e-6), params[3]:grad():mean():item(), 1e-6)
          fsdp.summon_full_params(models[2], { with_grads = true }, function()
            checks.close(2 * 0.5 / (norm + 1e-6), params[2]:grad():mean():item(), 1e-6)
          end)
        end
      end
    end)
  end)

  it('leaves gradients whose norm is not finite, if asked, on all ranks', function()
    ms.dist.spawn(2, function(rank)
      local params, models = two_models 'f32'
      if rank == 0 then
        params[1]:set_grad(ms.full(params[1]:grad():shape(), math.huge))
      end
      for _, clip in ipairs { optim.clip_grad_norm_, function(_, ...)
        return models[1]:clip_grad_norm_(...)
      end } do
        checks.raises('RuntimeError', 'norm of order 2 for gradients from `parameters` is '
          .. 'non-finite', clip, params, 1, 2, { error_if_nonfinite = true })
      end
      checks.close({ -1, -1 }, params[3]:grad())
      assert.equal(math.huge, optim.clip_grad_norm_(params, 1):item())
    end)
  end)

  it('limits values with clip_grad_value_', function()
    ms.dist.spawn(2, function()
      local params, models = two_models 'f32'
      optim.clip_grad_value_(params, 0.75)
      checks.close({ -0.75, -0.75 }, params[3]:grad())
      for i, value in ipairs { 0.5, 0.75 } do
        fsdp.summon_full_params(models[i], { with_grads = true }, function()
          checks.close(value, params[i]:grad():mean():item())
        end)
      end
      checks.raises('ValueError', 'clip_value is -1', optim.clip_grad_value_, params, -1)
    end)
  end)
end)

-- Blocks of 4,096 elements, gradients from 1e-3 to 1e3: the order of additions shows in the norm.
local function uneven()
  ms.manual_seed(5)
  local layers = {}
  for i = 1, 5 do
    layers[i] = nn.Linear(i == 1 and 40 or 60 + i, 61 + i)
  end
  return nn.Sequential(layers)
end

local function odd_ones_first(layers)
  return fsdp.CustomPolicy(function(m)
    return m == layers[1] or m == layers[3] or m == layers[4]
  end)
end

describe('clip_grad_norm_ and hash', function()
  it('have the same bits for every wrap policy, strategy and world size', function()
    local path = os.tmpname()
    local seen = {}
    for _, world in ipairs { 1, 2, 3, 4 } do
      local expected = world == 3 and 3 or 1 -- the mean of three equal gradients is rounded
      for _, strategy in ipairs { 'FULL_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD' } do
        for _, policy in ipairs { 'none', 'always', 'some' } do
          ms.dist.spawn(world, function(rank)
            local module = uneven()
            local model = wrap(module, {
              sharding_strategy = strategy,
              use_orig_params = true,
              auto_wrap_policy = policy == 'always' and fsdp.always_wrap_policy
                or policy == 'some' and odd_ones_first(module) or nil,
            })
            local opt = optim.SGD(model:parameters(), { lr = 0.1 })
            model(ms.ones(1, 40)):sum():backward()
            for i, p in ipairs(model:parameters()) do
              if p:grad() then
                p:grad():copy_(p:grad():mul(10 ^ (i % 7 - 3)))
              end
            end
            local norm = model:clip_grad_norm_(0.5):item()
            opt:step()
            local hash = model:hash()
            if rank == 0 then
              local file = assert(io.open(path, 'w'))
              file:write(('%a %s'):format(norm, hash))
              file:close()
            end
          end)
          local file = assert(io.open(path))
          local text = file:read('*a')
          file:close()
          seen[expected] = seen[expected] or text
          assert.equal(seen[expected], text)
        end
      end
    end
    os.remove(path)
  end)
end)
