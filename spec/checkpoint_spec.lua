-- lua/moonshard/checkpoint: saving and restoring runs, on the same and another number of ranks
local ms = require 'moonshard'
local nn, fsdp, checkpoint = ms.nn, ms.fsdp, ms.checkpoint
local checks = require 'support.checks'
local wrapped = require 'support.wrap'
local RunningMean = require 'support.running_mean'
local runs = require 'support.runs'
local shell = require 'support.shell'
local folder, write, lines, hash_of = runs.folder, runs.write, runs.lines, runs.hash_of
local with_meta = require 'support.checkpoints'.with_meta

-- A run over tokens 0 .. 99 with a global batch of four micro-batches, split over W ranks.
local function run_of(world, rank, wrap)
  ms.manual_seed(2)
  local run = { model = runs.gpt() }
  if wrap then
    run.model = wrapped(run.model, { auto_wrap_policy = fsdp.always_wrap_policy,
      use_orig_params = true })
  end
  run.optimizer = ms.optim.AdamW(run.model:parameters(), { lr = 0.01 })
  run.loader = ms.data.Loader {
    tokens = ms.arange(0, 400), batch = 1, context = 4, rank = rank, world_size = world,
    micro_batches = 4 / world,
  }
  return run
end

local function step(run, accumulate)
  local function micro()
    local x, y = run.loader:next()
    x, y = x:to('f32'), y:to('f32')
    local function small(t) -- tokens modulo 13, without integer operators
      local rows = t:totable()
      for _, row in ipairs(rows) do
        for i, v in ipairs(row) do
          row[i] = v % 13
        end
      end
      return ms.tensor(rows, { dtype = 'i64' })
    end
    run.model(small(x), small(y)):backward()
  end
  for k = 1, run.loader.micro_batches do
    if accumulate and k < run.loader.micro_batches then
      run.model:no_sync(micro)
    else
      micro()
    end
  end
  run.optimizer:step()
  run.optimizer:zero_grad()
end

describe('a checkpoint', function()
  local root

  before_each(function() root = folder() end)
  after_each(function()
    shell.remove_folder(root)
    checks.close_library()
  end)

  it('restores a run to the same bits, with step, config and position', function()
    local run = run_of(1, 0)
    for _ = 1, 3 do
      step(run)
    end
    run.optimizer.param_groups[1].lr = 0.02
    local path = checkpoint.save(root, 'three', { step = 3, model = run.model,
      optimizer = run.optimizer, loader = run.loader, config = { note = 'hi', sizes = { 1, 2 } } })
    assert.equal(root .. '/three', path)
    for _ = 1, 2 do
      step(run)
    end

    local again = run_of(1, 0)
    local meta = checkpoint.load(path, again)
    assert.equal(3, meta.step)
    assert.same({ note = 'hi', sizes = { 1, 2 } }, { note = meta.config.note,
      sizes = { unpack(meta.config.sizes) } })
    assert.equal(3, again.loader:step())
    assert.equal(0.02, again.optimizer.param_groups[1].lr)
    for _ = 1, 2 do
      step(again)
    end
    assert.equal(hash_of(run.model), hash_of(again.model))
  end)

  it('continues on another number of ranks to the same bits', function()
    local out = folder()
    local function train(world, from, to)
      local function body(rank)
        local run = run_of(world, rank, true)
        run.model:set_gradient_factor(1 / 4)
        if from > 0 then
          checkpoint.load(root .. '/half', run)
        end
        for _ = from + 1, to do
          step(run, true)
        end
        if to == 3 then
          checkpoint.save(root, 'half', { step = 3, model = run.model, optimizer = run.optimizer,
            loader = run.loader })
        else
          write(out, hash_of(run.model))
        end
      end
      ms.dist.spawn(world, body)
    end
    train(4, 0, 6)
    train(2, 0, 3)
    train(4, 3, 6)
    train(1, 3, 6)
    local all = lines(out)
    assert.equal(4 + 4 + 1, #all)
    for _, hash in ipairs(all) do
      assert.equal(all[1], hash)
    end
  end)

  it('holds buffers that forward replaced', function()
    local model = RunningMean()
    local opt = ms.optim.SGD(model:parameters(), { lr = 0.1 })
    local function train()
      model(ms.ones(4, 2)):sum():backward()
      opt:step()
      opt:zero_grad()
      return { model:hash(), model.mean:hash(), opt:state_dict().state[1].steps }
    end
    local saved = train()
    checkpoint.save(root, 'a', { step = 1, model = model, optimizer = opt })
    local trained = train()
    checkpoint.load(root .. '/a', { model = model, optimizer = opt })
    assert.same(saved, { model:hash(), model.mean:hash(), opt:state_dict().state[1].steps })
    assert.same(trained, train())
  end)

  it('refuses another model, optimizer or run', function()
    local function model(out) return nn.Sequential(nn.Linear(2, out)) end
    local m = model(2)
    checkpoint.save(root, 'a', { step = 1, model = m, optimizer = ms.optim.SGD(m:parameters()) })
    local path = root .. '/a'
    checks.raises('ValueError',
      "'model/0.weight' is f32 of shape (2, 2), expected f32 of shape (3, 2)", checkpoint.load,
      path, { model = model(3) })
    checks.raises('KeyError', "a has no tensor 'model/1.weight'", checkpoint.load, path,
      { model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) })
    checks.raises('KeyError', "the checkpoint has 'model/0.bias', which the model has not",
      checkpoint.load, path, { model = nn.Sequential(nn.Linear(2, 2, { bias = false })) })
    checks.raises('ValueError', "'model/0.weight' is f32 of shape (2, 2), expected f64",
      checkpoint.load, path, { model = nn.Sequential(nn.Linear(2, 2, { dtype = 'f64' })) })
    checks.raises('ValueError', 'the checkpoint holds the state of SGD, expected AdamW',
      checkpoint.load, path, { optimizer = ms.optim.AdamW(m:parameters()) })
    checks.raises('KeyError', 'the checkpoint has no loader', checkpoint.load, path,
      { loader = run_of(1, 0).loader })
    checks.raises('ValueError', "did you mean 'optimizer'?", checkpoint.load, path,
      { optimiser = m })
  end)

  it('loads options by the parameters of groups, and refuses others', function()
    local model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    local function made(first, second)
      return ms.optim.AdamW({ { params = { model[first].weight, model[first].bias } },
        { params = { model[second].bias, model[second].weight }, weight_decay = 0 } }, { lr = 1 })
    end
    checkpoint.save(root, 'a', { step = 1, model = model, optimizer = made(1, 2) })
    checkpoint.load(root .. '/a', { optimizer = made(1, 2) })
    local swapped = made(2, 1)
    checkpoint.load(root .. '/a', { optimizer = swapped })
    assert.equal(0, swapped.param_groups[1].weight_decay)
    assert.equal(0.01, swapped.param_groups[2].weight_decay)
    checks.raises('ValueError', "'0.bias' is in parameter group 1 of the loaded state, but "
      .. "'1.weight', of the same group here, is in group 2", checkpoint.load, root .. '/a',
      { optimizer = ms.optim.AdamW { { params = { model[2].weight, model[1].bias } },
        { params = { model[1].weight, model[2].bias } } } })
    with_meta(root, 'old', { step = 1, model = model, optimizer = made(1, 2) }, function(meta)
      for _, group in ipairs(meta.optimizer.groups) do
        group.params = nil
      end
    end)
    checkpoint.load(root .. '/old', { optimizer = made(1, 2) })
    checks.raises('KeyError', "the checkpoint has 'optim/exp_avg/1.bias', which the optimizer has "
      .. 'not', checkpoint.load, root .. '/old', { optimizer = ms.optim.AdamW {
      { params = { model[1].weight, model[1].bias } }, { params = { model[2].weight } } } })
  end)

  it('restores momentum into an optimizer with other options #pair', function()
    local function make_run(momentum)
      local model = fsdp.FSDP(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)))
      local opt = ms.optim.SGD(model:parameters(), { lr = 0.1, momentum = momentum })
      return { model = model, optimizer = opt, step = function()
        model(ms.ones(1, 2)):sum():backward()
        opt:step()
        opt:zero_grad()
      end }
    end
    runs.pair(function(rank)
      for _, case in ipairs { { 'pushed', 0.9 }, { 'plain', 0 } } do
        local name, momentum = unpack(case)
        local run, others = make_run(momentum), { make_run(0), make_run(0.5) }
        run.step()
        checkpoint.save(root, name, { step = 1, model = run.model, optimizer = run.optimizer })
        run.step()
        run.step()
        for _, other in ipairs(others) do
          other.step()
          other.step()
          checkpoint.load(root .. '/' .. name, { model = other.model, optimizer = other.optimizer })
          assert(other.optimizer.param_groups[1].momentum == momentum)
          other.step()
          other.step()
          assert(run.model:hash() == other.model:hash(), name)
        end
      end
      local run = make_run(0)
      run.step()
      checks.raises('KeyError', 'the checkpoint has no loader', checkpoint.load,
        root .. '/pushed', { optimizer = run.optimizer, loader = run_of(2, rank).loader })
      assert(run.optimizer.param_groups[1].momentum == 0) -- nothing is changed
    end)
  end)

  it('keeps the previous one when saving fails', function()
    local m = nn.Linear(1, 1)
    checkpoint.save(root, 'a', { step = 1, model = m })
    checks.raises('TypeError', "a function has no JSON form (at ['bad'])", checkpoint.save,
      root, 'a', { step = 2, model = m, config = { bad = print } })
    assert.equal(1, checkpoint.read_meta(root .. '/a').step)
  end)

  it('holds the unsharded values of rank 0', function()
    ms.dist.spawn(2, function(rank)
      local model = fsdp.FSDP(nn.Linear(2, 2))
      model:buffer('mean', ms.full({ 2 }, rank))
      checkpoint.save(root, 'a', { step = 1, model = model })
      checkpoint.load(root .. '/a', { model = model })
      checks.close({ 0, 0 }, model.mean)
    end)
  end)

  it('is found by its step; the manager keeps the newest', function()
    local manager = checkpoint.Manager { root = root, keep = 2 }
    local m = nn.Linear(1, 1)
    assert.is_nil(manager:resume { model = m })
    for i = 1, 4 do
      ms.no_grad(m.bias.fill_, m:materialize().bias, i)
      manager:save { step = i * 10, model = m }
    end
    ms.no_grad(m.bias.fill_, m.bias, 0)
    assert.equal(40, manager:resume({ model = m }).step)
    checks.close({ 4 }, m.bias)
    assert.is_nil(io.open(root .. '/step-00000020'))
    assert.truthy(io.open(root .. '/step-00000030'))
  end)

  it('is the last one saved; a step back is a warning', function()
    local manager = checkpoint.Manager { root = root, keep = 2 }
    local m = nn.Linear(1, 1)
    for _, step_number in ipairs { 10, 20, 30 } do
      manager:save { step = step_number, model = m }
    end
    local warnings = ms.capture_warnings(function() manager:save { step = 5, model = m } end)
    assert.equal(1, #warnings)
    assert.truthy(warnings[1].message:find('step-00000005 was saved last, with step 5, though '
      .. 'step-00000030 has step 30', 1, true))
    assert.equal(root .. '/step-00000005', checkpoint.latest(root))
    assert.equal(5, manager:resume({ model = m }).step)
    assert.truthy(io.open(root .. '/step-00000030'))
    assert.truthy(io.open(root .. '/step-00000020'))
  end)

  it('of frozen parameters continues when they train again', function()
    local function make_run(frozen)
      ms.manual_seed(2)
      local run = { model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)) }
      run.model[1]:requires_grad_(not frozen)
      run.optimizer = ms.optim.AdamW(run.model:parameters(), { lr = 0.1 })
      run.train = function()
        run.model(ms.ones(1, 2)):sum():backward()
        run.optimizer:step()
        run.optimizer:zero_grad()
      end
      return run
    end
    local first, straight = make_run(true), make_run(true)
    first.train()
    checkpoint.save(root, 'a', { step = 1, model = first.model, optimizer = first.optimizer })
    local second = make_run(false)
    checkpoint.load(root .. '/a', { model = second.model, optimizer = second.optimizer })
    second.train()
    straight.train()
    straight.model[1]:requires_grad_(true)
    straight.train()
    assert.equal(hash_of(straight.model), hash_of(second.model))
  end)

  it('continues dropout masks without a loader', function()
    local function losses(model, n)
      local list, x = {}, ms.ones(6, 4)
      for _ = 1, n do
        local out = model(x)
        list[#list + 1] = out:hash()
        out:sum():backward()
      end
      return list
    end
    local function model()
      ms.manual_seed(5)
      local m = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2), nn.Dropout(0.25))
      return m
    end
    local whole = losses(model(), 5)
    local first = model()
    assert.same({ whole[1], whole[2] }, losses(first, 2))
    checkpoint.save(root, 'a', { step = 2, model = first })
    local second = model()
    losses(second, 1)
    checkpoint.load(root .. '/a', { model = second })
    assert.same({ whole[3], whole[4], whole[5] }, losses(second, 3))
    checkpoint.save(root, 'b', { step = 0, model = model() }) -- of a model that has not run
    checkpoint.load(root .. '/b', { model = second })
    assert.same({ whole[1] }, losses(second, 1))
  end)
end)
