-- lua/moonshard/ema: averages of parameters, sharded or not
local ms = require 'moonshard'
local checks = require 'support.checks'
local runs = require 'support.runs'
local shell = require 'support.shell'

local function net()
  ms.manual_seed(2)
  return ms.nn.Sequential(ms.nn.Linear(3, 5), ms.nn.BatchNorm1d(5), ms.nn.Linear(5, 2))
end

-- Averages over three steps of four micro-batches; gives model and averages.
local function trained(model, W)
  local ema, opt = ms.ema(model, 0.6), ms.optim.SGD(model:parameters(), { lr = 0.5 })
  local rank, x = ms.dist.rank(), ms.randn(4, 2, 3, { seed = 1 })
  if model.set_gradient_factor then
    model:set_gradient_factor(1 / 4)
  end
  model:eval() -- the running values of each rank would differ
  for _ = 1, 3 do
    for k = 1, 4 / W do
      local function backward()
        local loss = model(x[rank * 4 / W + k]):pow(2):mean()
        loss:backward()
      end
      if k < 4 / W then
        model:no_sync(backward)
      else
        backward()
      end
    end
    opt:step()
    opt:zero_grad()
    ema:update()
  end
  return model, ema
end

local function hash_of_averages(model, ema)
  return ema:apply(model.hash, model)
end

-- First in this file: a process that has opened its device cannot fork ranks.
describe('averages of a sharded model', function()
  local root = runs.folder()
  local hashes = {}

  local function sharded(opts, W, fn)
    return (runs.reports(W, function()
      local model, ema = trained(ms.fsdp.FSDP(net(), {
        sharding_strategy = opts.strategy, use_orig_params = opts.orig,
        auto_wrap_policy = opts.wrap and ms.fsdp.ModuleWrapPolicy { ms.nn.Linear } or nil,
      }), W)
      local before = model:hash()
      local text = hash_of_averages(model, ema)
      assert(model:hash() == before and text ~= before)
      if fn then
        fn(model, ema)
      end
      return text
    end))[0]
  end

  it('are equal for every strategy and number of ranks, and load on another number', function()
    for _, case in ipairs {
      { 1, {} }, { 2, { wrap = true } }, { 4, { wrap = true, orig = false } },
      { 4, { strategy = 'SHARD_GRAD_OP', orig = true } }, { 2, { strategy = 'NO_SHARD' } },
    } do
      hashes[#hashes + 1] = sharded(case[2], case[1])
      assert.equal(hashes[1], hashes[#hashes])
    end
    sharded({ wrap = true }, 4, function(model, ema)
      ms.checkpoint.save(root, 'a', { step = 3, model = model, ema = ema })
    end)
    for _, W in ipairs { 1, 3 } do
      local report = runs.reports(W, function()
        local model = ms.fsdp.FSDP(net())
        local ema = ms.ema(model, 0.6)
        ms.checkpoint.load(root .. '/a', { model = model, ema = ema })
        return hash_of_averages(model, ema) .. ' ' .. ema.n_averaged
      end)[0]
      assert.equal(hashes[1] .. ' 3', report)
    end
  end)
end)

describe('averages of a model of a group', function()
  it('are saved and loaded #pair', function()
    local root = runs.folder()
    runs.pair(function()
      local model = ms.fsdp.FSDP(net())
      local ema, fresh = ms.ema(model, 0.5):update(), ms.ema(model)
      ms.checkpoint.save(root, 'a', { step = 0, ema = ema })
      ms.checkpoint.load(root .. '/a', { ema = fresh })
      assert.equal(hash_of_averages(model, ema), hash_of_averages(model, fresh))
      assert.equal(1, fresh.n_averaged)
    end)
    shell.remove_folder(root)
  end)

  it('are saved by the ranks of the group', function()
    local root = runs.folder()
    local _, cause = runs.reports(4, function()
      local group = ms.dist.split(ms.dist.rank() % 2)
      local ema = ms.ema(ms.fsdp.FSDP(net(), { process_group = group }))
      local path = root .. ms.dist.rank() % 2
      ms.checkpoint.save(path, 'a', { step = 0, ema = ema:update() })
      ms.checkpoint.load(path .. '/a', { ema = ema })
      return tostring(ema)
    end)
    assert.is_nil(cause)
  end)
end)

describe('averages', function()
  it('are those of AveragedModel', function()
    for decay, expected in pairs { -- order does not matter; from PyTorch 2, f32
      [0.9] = { -0.216739982, -0.694209933, 3.49833012 },
      [0.25] = { 0.281712502, 0.409506232, 4.26463175 },
    } do
      local layer = ms.nn.Linear(2, 1):materialize()
      ms.no_grad(function()
        layer.weight:copy_(ms.tensor { { 1, 2 } })
        layer.bias:fill_(3)
      end)
      local ema = ms.ema(layer, decay)
      for _ = 1, 4 do
        ms.no_grad(function()
          layer.weight:mul_(-0.7):add_(0.3)
          layer.bias:mul_(1.1)
        end)
        ema:update()
      end
      assert.equal(4, ema.n_averaged)
      local sd = ema:state_dict()
      checks.close({ expected[1], expected[2] }, sd.params.weight:reshape(-1), 1e-7)
      checks.close({ expected[3] }, sd.params.bias, 1e-7)
    end
  end)

  it('stand in for the parameters and buffers, also when a function fails', function()
    local model = net()
    local ema = ms.ema(model)
    local buffer = model[2].running_mean:totable()
    model(ms.randn(4, 3))
    ms.no_grad(model[1].weight.fill_, model[1].weight, 2)
    local mean, hash = model[2].running_mean:totable(), model:hash()
    assert.not_same(buffer, mean)
    assert.equal('x', ema:apply(function(word)
      assert.not_equal(hash, model:hash())
      assert.same(buffer, model[2].running_mean:totable())
      checks.raises('RuntimeError', 'inside of apply()', ema.update, ema)
      return word
    end, 'x'))
    assert.equal(hash, model:hash())
    assert.same(mean, model[2].running_mean:totable())
    checks.raises('ValueError', 'stop', ema.apply, ema, function()
      ms.error('ValueError', 'stop')
    end)
    assert.equal(hash, model:hash())
    ema:update()
    assert.same(mean, ema:state_dict().buffers['1.running_mean']:totable())
  end)

  it('of bf16 parameters are f32', function()
    local layer = ms.nn.Linear(2, 2):bfloat16()
    local ema = ms.ema(layer)
    assert.equal('f32', ema:state_dict().params.weight:dtype())
    ema:update()
    assert.equal(layer:hash(), ema:apply(layer.hash, layer))
  end)

  it('load from a state dict, or raise what does not fit', function()
    local a, b = ms.ema(net()), ms.ema(net(), 0.5)
    a:update()
    a._entries[1].average:fill_(1)
    b:load_state_dict(a:state_dict())
    assert.equal(1, b.n_averaged)
    assert.same(1, b:state_dict().params['0.weight'][1][1]:item())
    local sd = a:state_dict()
    sd.params['0.weight'] = ms.ones(2)
    checks.raises('ValueError', "'0.weight' has shape (2), expected (5, 3)", b.load_state_dict, b,
      sd)
    sd.params['0.weight'] = nil
    checks.raises('KeyError', "'params' has no '0.weight'", b.load_state_dict, b, sd)
    checks.raises('ValueError', "'decay' is 2, expected 0 to 1", ms.ema, net(), 2)
    checks.raises('TypeError', "'model' is nil, expected a module", ms.ema)
    local model = net()
    local ema = ms.ema(model)
    model:param('more', { 2 })
    checks.raises('RuntimeError', 'the model has 7 parameters, expected 6', ema.update, ema)
  end)
end)
