-- lua/moonshard/checkpoint: errors of saving and loading, and the state after them
local ms = require 'moonshard'
local nn, checkpoint = ms.nn, ms.checkpoint
local checks = require 'support.checks'
local runs = require 'support.runs'
local shell = require 'support.shell'
local folder, write, lines, hash_of = runs.folder, runs.write, runs.lines, runs.hash_of
local with_meta = require 'support.checkpoints'.with_meta
local wrap = require 'support.wrap'

-- A small sharded model and its optimizer after one step.
local function sharded(width)
  ms.manual_seed(3)
  local run = {
    model = wrap(nn.Sequential(nn.Linear(width, width), nn.Linear(width, width)),
      { use_orig_params = true }),
  }
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

  it('changes nothing', function()
    local run = sharded(8)
    run.loader = ms.data.Loader { tokens = ms.arange(100), context = 4, batch = 2 }
    checkpoint.save(root, 'plain', { step = 1, model = run.model, optimizer = run.optimizer })
    local cases = { { root .. '/plain', 'KeyError', 'the checkpoint has no loader' } }
    local function case(kind, text, change)
      local name = 'case' .. #cases
      with_meta(root, name, { step = 1, model = run.model, optimizer = run.optimizer,
        loader = run.loader }, change)
      cases[#cases + 1] = { root .. '/' .. name, kind, text }
    end
    case('ValueError', 'sample 1.5', function(meta) meta.loader.samples = 1.5 end)
    case('FormatError', "taken nil steps for '1.bias'", function(meta)
      meta.optimizer.steps['1.bias'] = nil
    end)
    case('ValueError', 'learning rate', function(meta) meta.optimizer.groups[1].lr = -1 end)
    case('FormatError', "has no 'betas'", function(meta) meta.optimizer.groups[1].betas = nil end)
    case('FormatError', 'options of its', function(meta) meta.optimizer.groups = nil end)
    case('FormatError', "'step' of the meta data is nothing", function(meta) meta.step = nil end)
    case('FormatError', "'seed' of the meta data is 7", function(meta) meta.seed = 7 end)
    case('FormatError', "'config' of the meta data is", function(meta) meta.config = 'x' end)
    case('FormatError', "'random' of the meta data is", function(meta)
      meta.random = { tensors = -1, tokens = 1, sites = { a = 1 } }
    end)
    case('FormatError', 'its bytes have hash', function() end)
    damage(cases[#cases][1] .. '/rank-00000-of-00001.safetensors')
    run.train()
    run.loader:next()
    run.optimizer.param_groups[1].lr = 0.5
    local before, random = hash_of_run(run), ms.get_rng_state()
    for _, c in ipairs(cases) do
      checks.raises(c[2], c[3], checkpoint.load, c[1], { model = run.model,
        optimizer = run.optimizer, loader = run.loader })
      assert.equal(before, hash_of_run(run), c[1])
      assert.equal(1, run.loader:step())
      assert.same(random, ms.get_rng_state())
    end
  end)

  it('on one rank fails on all and changes none', function()
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

  it('different values on two ranks fails on both', function()
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

  it('refuses arguments of another kind', function()
    local m = nn.Linear(1, 1)
    local save = checkpoint.save
    checks.raises('TypeError', "'step' is nil", save, root, 'a', { model = m })
    checks.raises('ValueError', "'step' is -1", save, root, 'a', { step = -1 })
    checks.raises('TypeError', "'model' is a number", save, root, 'a', { step = 1, model = 3 })
    checks.raises('TypeError', "'optimizer' is a nn.Linear, expected the optimizer", save, root,
      'a', { step = 1, optimizer = m })
    checks.raises('TypeError', "'config' is a string", save, root, 'a', { step = 1, config = 'x' })
    checks.raises('ValueError', 'checkpoint.save: got nothing to save', save, root, 'a',
      { step = 1 })
    checks.raises('ValueError', 'checkpoint.load: got nothing to load', checkpoint.load, root, {})
    checks.raises('ValueError', "'root' holds a NUL byte", save, 'a\0b', 'a',
      { step = 1, model = m })
    checks.raises('ValueError', "'keep' is 0", checkpoint.Manager, { root = root, keep = 0 })
    checks.raises('TypeError', "'a' is a number", checkpoint.write_safetensors, root, { a = 1 })
  end)
end)
