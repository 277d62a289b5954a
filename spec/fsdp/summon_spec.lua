-- Inside summon_full_params parameters show full copies, and calls that use the shards are refused.
local ms = require 'moonshard'
local nn, fsdp, optim, checkpoint = ms.nn, ms.fsdp, ms.optim, ms.checkpoint
local checks = require 'support.checks'
local shell = require 'support.shell'
local wrap = require 'support.wrap'

local STRATEGIES = { 'FULL_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD' }

local Scaled = nn.Module.extend 'my.Scaled'
function Scaled:init()
  self:buffer('scale', ms.ones(1))
  self.linear = nn.Linear(4, 4, { bias = false })
end
function Scaled:forward(x) return self.linear(x):mul(self.scale) end

local function wrapped(strategy)
  ms.manual_seed(1)
  local model = wrap(Scaled(), { sharding_strategy = strategy, use_orig_params = true })
  return model, model.module.linear.weight
end

-- On one rank and on two, with every strategy.
local function everywhere(run)
  for world = 1, 2 do
    ms.dist.spawn(world, function()
      for _, strategy in ipairs(STRATEGIES) do
        run(wrapped(strategy))
      end
    end)
  end
end

describe('inside summon_full_params', function()
  it('other uses of shards are refused', function()
    local root = shell.make_folder()
    everywhere(function(model, weight)
      local opt = optim.SGD(model:parameters(), { lr = 0.1 })
      local x = ms.ones(1, 4)
      model(x):sum():backward()
      checkpoint.save(root, 'before', { step = 1, model = model, optimizer = opt })
      local before, shard = model:hash(), weight:detach()
      local other = { scale = ms.zeros(1), ['linear.weight'] = ms.zeros(4, 4) }
      local uses = {
        { 'step', opt.step, opt },
        { 'load_state_dict', model.load_state_dict, model, other },
        { 'state_dict', model.state_dict, model },
        { 'state_dict', checkpoint.export, root .. '/x.safetensors', model },
        { 'hash', model.hash, model },
        { 'use of the shards', checkpoint.save, root, 'inside', { step = 1, model = model } },
        { 'use of the shards', checkpoint.save, root, 'inside', { step = 1, optimizer = opt } },
        { 'use of the shards', checkpoint.load, root .. '/before', { model = model } },
        { 'forward', model.forward, model, x },
        { 'backward', function() model.module.linear(x):sum():backward() end },
      }
      fsdp.summon_full_params(model, nil, function()
        for _, use in ipairs(uses) do
          checks.raises('AssertionError', use[1] .. ' inside summon_full_params', unpack(use, 2))
        end
        checks.raises('RuntimeError', 'write into the parameter itself', ms.no_grad, shard.fill_,
          shard, 0)
        model:clip_grad_norm_(1) -- gradients are not affected
      end)
      assert.equal(before, model:hash())
      assert.equal(1, model.module.scale:item())
      for _, use in ipairs(uses) do -- all work outside
        assert.is_true(use[1] == 'backward' or pcall(unpack(use, 2)), use[1])
      end
      ms.no_grad(shard.fill_, shard, 2)
      checks.close(2, model:state_dict()['linear.weight']:mean():item())
    end)
    shell.remove_folder(root)
  end)

  it('gradients are full with with_grads, and what is written is kept with writeback', function()
    everywhere(function(model, weight)
      local function full(opts, fn)
        opts.with_grads = true
        fsdp.summon_full_params(model, opts, ms.no_grad, fn)
      end
      full({}, function() assert.is_nil(weight:grad()) end)
      model(ms.tensor { { 1, 2, 3, 4 } }):sum():backward()
      local row = { 1, 2, 3, 4 }
      full({ writeback = false }, function()
        checks.close({ row, row, row, row }, weight:grad())
        weight:grad():fill_(9)
        weight:set_grad(nil)
      end)
      full({}, function()
        -- NO_SHARD shows the gradient itself, no copy
        if model.sharding_strategy ~= 'NO_SHARD' then
          checks.close({ row, row, row, row }, weight:grad())
          checks.raises('AssertionError', 'clip_grad_norm_ inside summon_full_params',
            model.clip_grad_norm_, model, 1)
        end
        weight:set_grad(ms.full({ 4, 4 }, 2))
      end)
      checks.close(8, model:clip_grad_norm_(100):item())
      full({}, function() weight:set_grad(nil) end)
      assert.is_nil(weight:grad())
      model(ms.ones(1, 4)):sum():backward()
      checks.close(4, model:clip_grad_norm_(100):item())
    end)
  end)

  it('a rank without a gradient has zeros with with_grads', function()
    ms.dist.spawn(2, function(rank)
      local model, weight = wrapped 'FULL_SHARD'
      model(ms.ones(1, 4)):sum():backward()
      if rank == 0 then weight:set_grad(nil) end
      for _, writeback in ipairs { false, true } do
        fsdp.summon_full_params(model, { with_grads = true, writeback = writeback }, function()
          checks.close({ { 0, 0, 0, 0 }, { 0, 0, 0, 0 }, { 1, 1, 1, 1 }, { 1, 1, 1, 1 } },
            weight:grad())
        end)
        assert.equal(rank == 0, weight:grad() == nil)
      end
      fsdp.summon_full_params(model, { with_grads = true }, function()
        weight:set_grad(ms.full({ 4, 4 }, 2))
      end)
      checks.close({ 2, 2, 2, 2, 2, 2, 2, 2 }, weight:grad():reshape(-1))
    end)
  end)

  it('parameters show full values, also after a refused forward', function()
    everywhere(function(model, weight)
      model(ms.ones(1, 4)) -- the root stays unsharded
      fsdp.summon_full_params(model, nil, ms.no_grad, function()
        checks.raises('AssertionError', 'forward inside', model.forward, model, ms.ones(1, 4))
        model:unshard()
        model:reshard()
        assert.same({ 4, 4 }, weight:shape())
        weight:fill_(7)
      end)
      checks.close(7, model:state_dict()['linear.weight']:mean():item())
      checks.close({ { 28, 28, 28, 28 } }, model(ms.ones(1, 4)))
    end)
  end)

  it('an inner instance is gathered with those below it, or alone', function()
    ms.dist.spawn(2, function()
      local pair = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
      local model = wrap(nn.Sequential(nn.Linear(4, 3), pair),
        { auto_wrap_policy = fsdp.always_wrap_policy, use_orig_params = true })
      local outer, inner = model.module[1], model.module[2]
      local function dims()
        local out = {}
        for i, linear in ipairs { outer, inner.module[1] } do
          out[i] = linear.weight:dim()
        end
        return out
      end
      model(ms.ones(1, 4)):sum():backward()
      local before = model:collectives().all_gather
      fsdp.summon_full_params(inner, nil, function()
        assert.same({ 1, 2 }, dims())
        ms.no_grad(inner.module[1].weight.fill_, inner.module[1].weight, 2)
        checks.raises('ValueError', 'expected to be in states', model.apply, model, function() end)
      end)
      assert.equal(before + 2, model:collectives().all_gather)
      assert.equal(18, model:state_dict()['1.0.weight']:sum():item())
      fsdp.summon_full_params(inner, { recurse = false }, function()
        assert.same({ 1, 1 }, dims())
      end)
      fsdp.summon_full_params(inner.module[1], { recurse = false }, function()
        assert.same({ 1, 2 }, dims())
      end)
    end)
  end)
end)
