-- lua/moonshard/checkpoint.lua: what saving and loading refuse, and what a failure leaves behind
local ms = require 'moonshard'
local nn, fsdp, checkpoint = ms.nn, ms.fsdp, ms.checkpoint
local checks = require 'support.checks'
local util = require 'moonshard.util'
local runs = require 'support.runs'
local shell = require 'support.shell'
local folder, write, lines, hash_of = runs.folder, runs.write, runs.lines, runs.hash_of
local with_meta = require 'support.checkpoints'.with_meta

-- A small sharded run, one step in.
local function sharded(width)
  ms.manual_seed(3)
  local run = {}
  ms.capture_warnings(function()
    run.model = fsdp.FSDP(nn.Sequential(nn.Linear(width, width), nn.Linear(width, width)),
      { use_orig_params = true })
  end)
  run.optimizer = ms.optim.AdamW(run.model:parameters(), { lr = 0.1 })
  run.train = function()
    run.model(ms.ones(1, width)):sum():backward()
    run.optimizer:step()
    run.optimizer:zero_grad()
  end
  run.train()
  return run
end

local function hash_of_run(run)
  local parts = { hash_of(run.model) }
  for _, state in ipairs(run.optimizer:state_dict().state) do
    parts[#parts + 1] = ('%d %s'):format(state.steps, state.exp_avg and state.exp_avg:hash() or '-')
  end
  parts[#parts + 1] = run.optimizer.param_groups[1].lr
  return table.concat(parts, ' ')
end

-- Overwrite four bytes of a file near its end.
local function damage(path)
  local file = assert(io.open(path, 'r+'))
  file:seek('end', -8)
  file:write('XXXX')
  file:close()
end

describe('a load that fails', function()
  local root

  before_each(function() root = folder() end)
  after_each(function()
    shell.remove_folder(root)
    checks.close_library()
  end)

  it('changes nothing, whatever it is that does not fit', function()
    local run = sharded(8)
    run.loader = ms.data.Loader { tokens = ms.arange(100), context = 4, batch = 2 }
    checkpoint.save(root, 'plain', { step = 1, model = run.model, optimizer = run.optimizer })
    local function saved(name, change)
      with_meta(root, name, { step = 1, model = run.model, optimizer = run.optimizer,
        loader = run.loader }, change)
      return { path = root .. '/' .. name }
    end
    local function position(samples)
      return function(meta) meta.loader.samples = samples end
    end
    local cases = {
      { path = root .. '/plain', kind = 'KeyError', text = 'no position in the data' },
      saved('half', position(1.5)), saved('before', position(-1e300)),
      saved('odd', position(3)), saved('after', position(2 ^ 60)),
      saved('none', position('x')), saved('no table', function(meta) meta.loader = 7 end),
      saved('steps', function(meta) meta.optimizer.steps['1.bias'] = nil end),
      saved('no steps', function(meta) meta.optimizer.steps = nil end),
      saved('part of a step', function(meta) meta.optimizer.steps['1.bias'] = 0.5 end),
      saved('lr', function(meta) meta.optimizer.groups[1].lr = -1 end),
      saved('groups', function(meta) meta.optimizer.groups = nil end),
      saved('damaged', function() end),
    }
    local RANDOM = "'random' of the meta data is {"
    local function drawn(field, value)
      return util.merged({ tensors = 1, tokens = 1, sites = { a = 1 } }, { [field] = value })
    end
    for i, case in ipairs {
      { 'step', nil, "manifest.json: 'step' of the meta data is nothing, expected a whole number" },
      { 'seed', 7, "'seed' of the meta data is 7, expected the digits of a seed" },
      { 'seed', '0x7', "'seed' of the meta data is \"0x7\", expected the digits" },
      { 'seed', ('1'):rep(21), "expected the digits of a seed" },
      { 'config', 'x', "'config' of the meta data is \"x\", expected a table" },
      { 'random', 7, "'random' of the meta data is 7, expected how many tensors and tokens" },
      { 'random', {}, RANDOM }, { 'random', drawn('tensors', -1), RANDOM },
      { 'random', drawn('tensors', 0.5), RANDOM }, { 'random', drawn('tensors', 1e300), RANDOM },
      { 'random', drawn('tokens', 'x'), RANDOM }, { 'random', drawn('sites', 'x'), RANDOM },
      { 'random', drawn('sites', { 3 }), RANDOM }, { 'random', drawn('sites', { a = -1 }), RANDOM },
    } do
      local changed = saved('meta' .. i, function(meta) meta[case[1]] = case[2] end)
      cases[#cases + 1] = { path = changed.path, kind = 'FormatError', text = case[3] }
    end
    for _, name in ipairs { 'lr', 'betas', 'eps', 'weight_decay', 'maximize' } do
      local changed = saved('no ' .. name, function(meta) meta.optimizer.groups[1][name] = nil end)
      cases[#cases + 1] = { path = changed.path, kind = 'FormatError',
        text = ("group 1 of the optimizer in the checkpoint has no '%s'"):format(name) }
    end
    cases[#cases + 1] = { path = saved('empty', function(meta)
      meta.optimizer.groups[1] = {}
    end).path, kind = 'FormatError', text = 'in the checkpoint has no ' }
    local texts = { [2] = 'sample 1.5', [3] = 'sample -1e+300', [4] = 'sample 3, expected a '
      .. 'multiple of 2', [5] = 'sample 1.1529215046068e+18', [6] = 'sample x', [7] = 'is a number',
      [8] = "has taken nil steps for '1.bias'", [9] = "has taken false steps for '",
      [10] = "has taken 0.5 steps for '1.bias'", [11] = 'learning rate', [12] = 'options of its',
      [13] = 'its bytes have hash' }
    damage(root .. '/damaged/rank-00000-of-00001.safetensors')
    run.train()
    run.loader:next()
    run.optimizer.param_groups[1].lr = 0.5
    local before, random = hash_of_run(run), ms.get_rng_state()
    for i, case in ipairs(cases) do
      local ok, err = pcall(checkpoint.load, case.path, { model = run.model,
        optimizer = run.optimizer, loader = run.loader })
      assert.is_false(ok, case.path)
      assert.is_true(require('moonshard.errors').is(err), case.path .. ': ' .. tostring(err))
      assert.equal(case.kind or err.kind, err.kind)
      local text = case.text or texts[i]
      assert.truthy(tostring(err):find(text, 1, true), case.path .. ': ' .. tostring(err))
      assert.equal(before, hash_of_run(run), case.path)
      assert.equal(1, run.loader:step())
      assert.same(random, ms.get_rng_state())
    end
  end)

  it('on one rank fails on all, changes none, and the next one works', function()
    local out = folder()
    ms.dist.spawn(2, function(rank)
      local run, manager = sharded(16), checkpoint.Manager { root = root }
      manager:save { step = 1, model = run.model, optimizer = run.optimizer }
      local at_a = hash_of_run(run)
      run.train()
      manager:save { step = 2, model = run.model, optimizer = run.optimizer }
      run.train()
      local before = hash_of_run(run)
      if rank == 0 then
        damage(root .. '/step-00000002/rank-00001-of-00002.safetensors')
      end
      ms.dist.barrier()
      local ok, err = pcall(checkpoint.load, root .. '/step-00000002', { model = run.model,
        optimizer = run.optimizer })
      assert(not ok)
      write(out, tostring(err):gsub(root, '<root>'):gsub('%x%x%x%x%x%x%x%x%x+', '<hash>'))
      assert(hash_of_run(run) == before, 'the failed load has changed something')

      -- something only one rank's script does wrong
      ok, err = pcall(checkpoint.load, root .. '/step-00000001', { model = run.model,
        optimizer = rank == 1 and ms.optim.SGD(run.model:parameters(), { lr = 1 })
          or run.optimizer })
      assert(not ok)
      write(out, (tostring(err)))
      assert(hash_of_run(run) == before, 'the failed load has changed something')

      local warnings = ms.capture_warnings(function()
        local meta = manager:resume { model = run.model, optimizer = run.optimizer }
        assert(meta.step == 1, 'resumed at ' .. meta.step)
      end)
      assert(#warnings == (rank == 0 and 1 or 0), #warnings)
      assert(hash_of_run(run) == at_a)
    end)
    local all = lines(out)
    assert.equal(4, #all)
    local texts = {}
    for _, line in ipairs(all) do
      texts[line] = (texts[line] or 0) + 1
    end
    assert.same({
      ['FormatError: rank 1: <root>/step-00000002/rank-00001-of-00002.safetensors: its bytes '
        .. 'have hash <hash>, expected <hash>'] = 2,
      ['ValueError: rank 1: the checkpoint holds the state of AdamW, expected SGD'] = 2,
    }, texts)
  end)
end)

describe('saving', function()
  local root

  before_each(function() root = folder() end)
  after_each(function()
    shell.remove_folder(root)
    checks.close_library()
  end)

  it('different things on two ranks fails on both', function()
    local out = folder()
    ms.dist.spawn(2, function(rank)
      local run = sharded(4)
      local function try(name, opts)
        opts.model = run.model
        local ok, err = pcall(checkpoint.save, root, name, opts)
        assert(not ok)
        write(out, (tostring(err):gsub(root, '<root>')))
      end
      try('n' .. rank, { step = 1 })
      try('n', { step = 1 + rank })
      try('n', { step = 1, optimizer = rank == 1 and run.optimizer or nil })
      local loader = ms.data.Loader { tokens = ms.arange(100), context = 4, batch = 2 }
      try('n', { step = 1, loader = rank == 0 and loader or nil })
      try('n', { step = 1, config = { width = 4 + rank } })
      try('n', { step = 1, config = { f = rank == 1 and print or 0 } })
      assert(#require('moonshard.checkpoint').save(root, 'n', { step = 1, model = run.model }) > 0)
    end)
    local all = lines(out)
    table.sort(all)
    assert.same({
      "TypeError: rank 1: a function has no JSON form (at ['f'])",
      "TypeError: rank 1: a function has no JSON form (at ['f'])",
      "ValueError: rank 0: the config is {\"width\":4} on rank 0 and {\"width\":5} on rank 1",
      "ValueError: rank 0: the config is {\"width\":4} on rank 0 and {\"width\":5} on rank 1",
      'ValueError: rank 0: what is saved is model on rank 0 and model, optimizer on rank 1',
      'ValueError: rank 0: what is saved is model on rank 0 and model, optimizer on rank 1',
      'ValueError: rank 0: what is saved is model, loader on rank 0 and model on rank 1',
      'ValueError: rank 0: what is saved is model, loader on rank 0 and model on rank 1',
      "ValueError: rank 1 saves checkpoint '<root>/n1', rank 0 '<root>/n0'",
      "ValueError: rank 1 saves checkpoint '<root>/n1', rank 0 '<root>/n0'",
      'ValueError: rank 1 saves step 2, rank 0 step 1',
      'ValueError: rank 1 saves step 2, rank 0 step 1',
    }, all)
    assert.equal(1, checkpoint.read_meta(root .. '/n').step)
  end)

  it('refuses what it is not meant for', function()
    local m = nn.Linear(1, 1)
    local save = checkpoint.save
    checks.raises('TypeError', "'step' is nil", save, root, 'a', { model = m })
    checks.raises('TypeError', "'step' is 1.5", save, root, 'a', { step = 1.5 })
    checks.raises('ValueError', "'step' is -1", save, root, 'a', { step = -1 })
    checks.raises('TypeError', "'step' is a string, expected a whole number", save, root, 'a',
      { step = '3' })
    checks.raises('TypeError', "'model' is a number", save, root, 'a', { step = 1, model = 3 })
    checks.raises('TypeError', "'model' is the class nn.Linear", save, root, 'a',
      { step = 1, model = nn.Linear })
    checks.raises('TypeError', "'optimizer' is a nn.Linear, expected the optimizer", save, root,
      'a', { step = 1, optimizer = m })
    checks.raises('TypeError', "'loader' is a table", checkpoint.load, root, { loader = {} })
    checks.raises('TypeError', "'config' is a string", save, root, 'a', { step = 1, config = 'x' })
    checks.raises('TypeError', "'root' is nil", save, nil, 'a', { step = 1 })
    checks.raises('TypeError', "'name' is a number", save, root, 3, { step = 1 })
    checks.raises('ValueError', "'root' is empty", save, '', 'a', { step = 1 })
    checks.raises('ValueError', 'checkpoint.save: got nothing to save, expected a model, an '
      .. 'optimizer or a loader', save, root, 'a', { step = 1 })
    checks.raises('ValueError', 'checkpoint.load: got nothing to load', checkpoint.load, root, {})
    checks.raises('ValueError', 'checkpoint.resume: got nothing to resume', function()
      checkpoint.Manager({ root = root }):resume()
    end)
    local opts = { step = 1, model = m }
    checks.raises('ValueError', "'root' holds a NUL byte", save, 'a\0b', 'a', opts)
    checks.raises('ValueError', "'name' holds a NUL byte", save, root, 'a\0b', opts)
    checks.raises('ValueError', "'path' holds a NUL byte", checkpoint.read_meta, 'a\0b')
    checks.raises('ValueError', "'name' holds a NUL byte", checkpoint.write_safetensors, root,
      { ['a\0b'] = ms.ones(1) })
    checks.raises('ValueError', "'path' holds a NUL byte", ms.data.tokens, 'a\0b')
    checks.raises('TypeError', "'path' is nil", checkpoint.load, nil, { model = m })
    checks.raises('TypeError', "'path' is a table", checkpoint.read_meta, {})
    checks.raises('TypeError', "'root' is a boolean", checkpoint.latest, true)
    checks.raises('ValueError', "'keep' is 0", checkpoint.Manager, { root = root, keep = 0 })
    checks.raises('TypeError', "'keep' is 1.5", checkpoint.Manager, { root = root, keep = 1.5 })
    checks.raises('TypeError', "'keep' is a boolean", checkpoint.Manager,
      { root = root, keep = false })
    checks.raises('TypeError', "'keep' is 2.5", checkpoint.prune, root, 2.5)
    checks.raises('TypeError', "'path' is nil", checkpoint.export, nil, m)
    checks.raises('TypeError', "'model' is nil", checkpoint.export, root)
    checks.raises('TypeError', "'model' is a string", checkpoint.import, root, 'm')
    checks.raises('ValueError', "'path' is empty", checkpoint.read_safetensors, '')
    checks.raises('TypeError', "'sd' is a tensor", checkpoint.write_safetensors, root, ms.ones(1))
    checks.raises('TypeError', "'a' is a number", checkpoint.write_safetensors, root, { a = 1 })
    checks.raises('TypeError', "'step' is nil", function()
      checkpoint.Manager({ root = root }):save {}
    end)
  end)
end)
