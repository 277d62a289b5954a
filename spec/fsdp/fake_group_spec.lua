-- lua/moonshard/dist/init.lua: models over fake groups, which have one rank of many.
local ms = require 'moonshard'
local checks = require 'support.checks'
local json = require 'moonshard.base.json'
local runs = require 'support.runs'
local shell = require 'support.shell'

local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim

local function wrapped(group, options)
  ms.manual_seed(7)
  options.process_group = group
  options.auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Linear }
  return fsdp.FSDP(nn.Sequential { nn.Linear(7, 13), nn.ReLU(), nn.Linear(13, 5) }, options)
end

-- Nested units, all unsharded at once. They take more slots than planned.
local Nest = nn.Module.extend('Nest')

function Nest:init(depth)
  self:child('own', nn.Linear(7, 7))
  if depth > 1 then
    self:child('inner', Nest(depth - 1))
  end
end

function Nest:forward(x)
  x = self.own(x)
  return self.inner and self.inner(x) or x
end

local function nested(group, options)
  ms.manual_seed(7)
  options.process_group = group
  options.auto_wrap_policy = fsdp.ModuleWrapPolicy { Nest }
  return fsdp.FSDP(Nest(8), options)
end

-- Two steps of two micro-batches. Returns the memory of this rank and its peak.
local function train(model)
  local opt = optim.AdamW(model:parameters(), { lr = 0.1 })
  local function backward()
    ms.scope(function() model(ms.ones(2, 7)):sum():backward() end)
  end
  ms.reset_peak_memory()
  for _ = 1, 2 do
    model:no_sync(backward)
    backward()
    model:clip_grad_norm_(1)
    opt:step()
    opt:zero_grad()
  end
  local memory = ms.memory()
  return { live = memory.live, peak = memory.peak, plan = model:plan { micro_batches = 2 } }
end

local OPTIONS = {
  { sharding_strategy = 'FULL_SHARD' },
  { sharding_strategy = 'SHARD_GRAD_OP', mixed_precision = { param_dtype = 'bf16' } },
  {
    sharding_strategy = 'NO_SHARD',
    mixed_precision = { param_dtype = 'bf16', reduce_dtype = 'f32' },
  },
}

describe('a collective of a group', function()
  it('involves its ranks only', function()
    local reports, cause = runs.reports(4, function(rank)
      local pair = ms.dist.split(rank % 2)
      local t = ms.full({ 2 }, rank)
      ms.dist.all_reduce(t, 'sum', pair)
      local sum, all = t[1]:item(), ms.dist.all_gather(ms.full({ 1 }, rank), nil, pair)
      local from = ms.dist.broadcast(ms.full({ 1 }, rank), 1, pair):item()
      local part = ms.dist.reduce_scatter(ms.zeros(1), ms.full({ 2 }, rank), 'max', pair):item()
      ms.dist.same('color', rank % 2, pair)
      ms.dist.barrier(pair)
      assert(ms.dist.wait_seconds(pair) >= 0 and ms.dist.counts().all_reduce == 0)
      return ('%d %d: %d %d %d %d'):format(sum, #all, all[1]:item(), all[2]:item(), from, part)
    end)
    assert.is_nil(cause)
    assert.same({ [0] = '2 2: 0 2 2 2', '4 2: 1 3 3 3', '2 2: 0 2 2 2', '4 2: 1 3 3 3' }, reports)
  end)
end)

describe('a fake group', function()
  for world = 2, 4, 2 do
    for _, options in ipairs(OPTIONS) do
      it(('holds what a rank of %d holds with %s'):format(world, options.sharding_strategy),
        function()
          local real = runs.reports(world, function()
            return json.encode(train(wrapped(nil, options)))
          end)
          local fake = runs.reports(world, function(rank)
            local group = ms.dist.fake { rank = rank, world = world }
            return json.encode(train(wrapped(group, options)))
          end)
          assert.same(real, fake)
        end)
    end
  end

  it('holds as much when it needs more slots than planned', function()
    local function report(group)
      local model = nested(group, {})
      local before = model:plan { dry_run = true }.arena
      local held = train(model)
      assert(held.live.arena > before)
      return json.encode(held)
    end
    local real = runs.reports(2, function() return report(nil) end)
    assert.same(real, (runs.reports(2, function(rank)
      return report(ms.dist.fake { rank = rank, world = 2 })
    end)))
  end)

  it('can have any rank and size', function()
    local group = ms.dist.fake { rank = 9999, world = 16384 }
    local model = wrapped(group, {})
    assert.equal('9999 of 16384', ('%d of %d'):format(model.rank, model.world_size))
    model(ms.ones(2, 7)):sum():backward()
    assert.equal(16384, model:units()[1].padded_numel)
    assert.equal(1, model:units()[1].shard_numel)
    assert.equal(16384, #ms.dist.all_gather(ms.ones(1), nil, group))
  end)

  it('takes batches of any group', function()
    local model = fsdp.FSDP(ms.models.GPT { vocab = 3, layers = 1, heads = 1, width = 4,
      context = 4 }, { process_group = ms.dist.fake { rank = 2, world = 5 } })
    local batch = ms.data.Loader { tokens = ms.zeros(40, { dtype = 'i64' }), context = 4, batch = 1,
      process_group = ms.dist.fake { rank = 1, world = 3 } }:next()
    assert.same({ 1, 4, 3 }, model(batch):shape())
  end)

  it('supports loading, hashing and summon_full_params', function()
    local model = wrapped(ms.dist.fake { rank = 2, world = 5 }, {})
    model(ms.ones(2, 7)):sum():backward()
    model:clip_grad_norm_(1)
    model:load_state_dict(nn.Sequential { nn.Linear(7, 13), nn.ReLU(), nn.Linear(13, 5) }
      :state_dict())
    assert.equal(model:hash(), model:hash())
    fsdp.summon_full_params(model, {}, function()
      assert.equal(13 * 7 + 13 + 5 * 13 + 5, model:num_parameters())
    end)
    model:unshard()
    model:reshard()
    model(ms.ones(2, 7)):sum():backward()
  end)

  it('refuses wrong ranks and sizes', function()
    local function refused(kind, message, opts)
      checks.raises(kind, message, ms.dist.fake, opts)
    end
    refused('ValueError', 'rank 4 of a fake group, expected 0 to 3', { rank = 4, world = 4 })
    refused('ValueError', "dist.fake: 'world' is 2147483648, expected a number of 32 bits",
      { world = 2 ^ 31 })
    refused('TypeError', "dist.fake: 'world' is nil, expected a whole number", {})
    checks.raises('TypeError', "barrier: 'group' is a number, expected a group of ranks",
      ms.dist.barrier, 3)
    checks.raises('RuntimeError', 'split: the colors of the other ranks of a fake group',
      ms.dist.split, 0, 0, ms.dist.fake { world = 2 })
  end)

  it('cannot save checkpoints', function()
    local model = wrapped(ms.dist.fake { world = 2 }, {})
    local opt = optim.SGD(model:parameters(), { lr = 0.1 })
    local folder = shell.make_folder()
    local function refused(what, fn, ...)
      checks.raises('RuntimeError', what .. "' is sharded over a fake group", fn, ...)
    end
    refused("checkpoint.save: 'model", ms.checkpoint.save, folder, 'a', { step = 1, model = model })
    refused("checkpoint.save: 'optimizer", ms.checkpoint.save, folder, 'a',
      { step = 1, optimizer = opt })
    refused("checkpoint.load: 'model", ms.checkpoint.load, folder .. '/a', { model = model })
    refused("checkpoint.export: 'model", ms.checkpoint.export, folder .. '/a.safetensors', model)
    shell.remove_folder(folder)
    checks.raises('RuntimeError', 'state_dict: the model is sharded over a fake group, whose other '
      .. 'ranks are not there to give their parts', model.state_dict, model)
  end)
end)
