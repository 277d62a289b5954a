-- Hybrid sharding: parameters divided inside groups of ranks, equal parts in each.
local ms = require 'moonshard'
local nn, fsdp, optim, checkpoint = ms.nn, ms.fsdp, ms.optim, ms.checkpoint
local checks = require 'support.checks'
local wrap = require 'support.wrap'
local runs = require 'support.runs'
local scripts = require 'support.scripts'
local shell = require 'support.shell'

local function is_block(m) return ms.is(m, nn.TransformerBlock) end

local function make(opts)
  ms.manual_seed(1)
  opts.auto_wrap_policy = opts.auto_wrap_policy or is_block
  local model = wrap(runs.gpt(), opts)
  return model, optim.AdamW(model:parameters(), { lr = 0.1 })
end

local function train(model, opt, rank, n)
  for i = 1, n do
    local ids = ms.tensor({ { i, 2, 3, rank }, { 4, 3, 2, i } }, { dtype = 'i64' })
    ms.manual_seed(i)
    model:no_sync(function() model(ids, ids):backward() end)
    model(ids, ids):backward()
    model:clip_grad_norm_(0.5)
    opt:step()
    opt:zero_grad()
  end
end

describe('hybrid sharding', function()
  it('gives the bits of FULL_SHARD, over meshes and groups', function()
    ms.dist.spawn(4, function(rank)
      local model, opt = make { mixed_precision = { param_dtype = 'bf16' } }
      train(model, opt, rank, 2)
      local expected = model:hash()
      local mesh = ms.dist.init_device_mesh('cpu', { 2, 2 })
      local odd = ms.dist.init_device_mesh('cpu', { 2, 2 })
      for _, strategy in ipairs { 'HYBRID_SHARD', '_HYBRID_SHARD_ZERO2' } do
        for _, groups in ipairs {
          { device_mesh = mesh },
          { process_group = { odd:get_group(1), odd:get_group(2) } }, -- ranks 0 and 2, 1 and 3
        } do
          groups.sharding_strategy = strategy
          groups.mixed_precision = { param_dtype = 'bf16' }
          model, opt = make(groups)
          train(model, opt, rank, 2)
          assert.equal(expected, model:hash())
          assert.same({ 2, strategy }, { model.world_size, model:units()[1].strategy })
        end
      end
    end)
  end)

  it('saves one copy, which any number of ranks loads', function()
    local root = runs.folder()
    ms.dist.spawn(4, function(rank)
      local mesh = ms.dist.init_device_mesh('cpu', { 2, 2 })
      local model, opt = make { sharding_strategy = 'HYBRID_SHARD', device_mesh = mesh }
      train(model, opt, rank, 1)
      checkpoint.save(root, 'a', { step = 1, model = model, optimizer = opt })
      local sd = fsdp.state_dict_type(model, 'SHARDED_STATE_DICT', model.state_dict, model)
      assert.equal(model:state_dict()['wte.weight']:hash(), sd['wte.weight']:full_tensor():hash())
      local whole, its = make {}
      checkpoint.load(root .. '/a', { model = whole, optimizer = its })
      train(model, opt, rank, 1)
      train(whole, its, rank, 1)
      assert.equal(model:hash(), whole:hash())
    end)
    shell.remove_folder(root)
  end)

  it('clips ignored parameters by one norm, as FULL_SHARD does', function()
    ms.dist.spawn(4, function(rank)
      local mesh, totals = ms.dist.init_device_mesh('cpu', { 2, 2 }), {}
      for i, opts in ipairs { {}, { sharding_strategy = 'HYBRID_SHARD', device_mesh = mesh } } do
        ms.manual_seed(1)
        local module = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))
        opts.use_orig_params, opts.ignored_modules = true, module[2]
        local model = wrap(module, opts)
        model(ms.ones(1, 4) * (rank + 1)):square():sum():backward()
        totals[i] = model:clip_grad_norm_(1e9):item()
        assert.equal(totals[i], optim.clip_grad_norm_(model:parameters(), 1e9):item())
      end
      assert.equal(totals[1], totals[2])
    end)
  end)

  it('saves averages, and is copied', function()
    local root = runs.folder()
    ms.dist.spawn(4, function(rank)
      local mesh = ms.dist.init_device_mesh('cpu', { 2, 2 })
      local model, opt = make { sharding_strategy = 'HYBRID_SHARD', device_mesh = mesh }
      local ema = ms.ema(model)
      train(model, opt, rank, 1)
      ema:update()
      checkpoint.save(root, 'a', { step = 1, ema = ema })
      local copy = model:deepcopy()
      local its = ms.ema(copy)
      checkpoint.load(root .. '/a', { ema = its })
      assert.equal(model:hash(), copy:hash())
      assert.equal(model:hash(), its:apply(function() return copy:hash() end))
      assert.equal(2, copy.world_size)
    end)
    shell.remove_folder(root)
  end)

  it('plans and holds half of the shards', function()
    ms.dist.spawn(4, function()
      local mesh = ms.dist.init_device_mesh('cpu', { 2, 2 })
      local model = make { sharding_strategy = 'HYBRID_SHARD', device_mesh = mesh }
      local plan = model:plan { dry_run = true }
      local ratio = plan.masters / make({}):plan { dry_run = true }.masters
      assert.is_true(ratio > 1.9 and ratio <= 2)
      model:hash()
      assert.same(plan.masters, ms.memory().live.parameter)
      assert.equal(plan.arena, model:plan().arena)
    end)
  end)

  it('divides parameters inside each host by default', function()
    scripts.with_script([[
      local world = ms.dist.init()
      local model = ms.fsdp.FSDP(ms.nn.Sequential(ms.nn.Linear(4, 4)), {
        sharding_strategy = 'HYBRID_SHARD',
        auto_wrap_policy = ms.fsdp.ModuleWrapPolicy { ms.nn.Linear } })
      assert(model.world_size == 2 and model.rank == world.local_rank)
      model(ms.ones(1, 4) * (world.rank + 1)):sum():backward()
      print(model:clip_grad_norm_(1e9):item())]], function(path)
      local output, code = scripts.shell('env MS_TEST_HOSTS=2 bindings/moonshard run -n 4 ' .. path)
      assert.equal(0, code, output)
      -- weights: 16 times the mean of the ranks' inputs, 2.5; biases: 4 times 1
      assert.near(math.sqrt(16 * 2.5 ^ 2 + 4), tonumber(output:match '([%d.]+)\n'), 1e-6)
    end)
  end)

  it('refuses groups that do not fit', function()
    ms.dist.spawn(2, function()
      local mesh = ms.dist.init_device_mesh('cpu', { 2 })
      local function refuses(kind, text, opts)
        opts.sharding_strategy = 'HYBRID_SHARD'
        checks.raises(kind, text, fsdp.FSDP, nn.Linear(2, 2), opts)
      end
      refuses('ValueError', 'Expected device_mesh to have ndim=2', { device_mesh = mesh })
      refuses('ValueError', 'Manual wrapping with HYBRID_SHARD requires explicit', {})
      refuses('ValueError', 'Expected process_group to be passed in as either None or Tuple',
        { process_group = ms.dist.world() })
      local model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
      for i, sides in ipairs { { 1, 2 }, { 2, 1 } } do
        local both = ms.dist.init_device_mesh('cpu', sides)
        model[i] = fsdp.FSDP(model[i], { sharding_strategy = 'HYBRID_SHARD', device_mesh = both })
      end
      checks.raises('ValueError', 'intra-node process groups do not match',
        fsdp.FSDP(model), ms.ones(1, 2))
      refuses('ValueError', 'as the only common one',
        { process_group = { ms.dist.world(), ms.dist.world() } })
    end)
  end)
end)
