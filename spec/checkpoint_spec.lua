-- lua/moonshard/checkpoint.lua: saving and restoring runs, on the same and another number of ranks
local ms = require 'moonshard'
local nn, fsdp, checkpoint = ms.nn, ms.fsdp, ms.checkpoint
local checks = require 'support.checks'
local util = require 'moonshard.util'
local runs = require 'support.runs'
local folder, write, lines, hash_of = runs.folder, runs.write, runs.lines, runs.hash_of

-- Without what FSDP warns of: a world of one, NO_SHARD.
local function wrapped(model, opts)
  ms.capture_warnings(function() model = fsdp.FSDP(model, opts) end)
  return model
end

-- A run over tokens 0 .. 99 with a global batch of four micro-batches, dealt to W ranks.
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

-- Change the manifest of the checkpoint at `path` with the library's own writer.
local function with_meta(root, name, run, change)
  local json = require 'moonshard.json'
  local encode = json.encode
  json.encode = function(value)
    if value.seed and value.step then -- what else is compared between ranks, and not written
      change(value)
    end
    return encode(value)
  end
  local ok, err = pcall(checkpoint.save, root, name, run)
  json.encode = encode
  assert(ok, tostring(err))
end

describe('a checkpoint', function()
  local root

  before_each(function() root = folder() end)
  after_each(function()
    os.execute("rm -rf '" .. root .. "'")
    local alive = checks.live_handles()
    ms.close() -- this process stops being a rank, so that the next spec can start ranks
    assert.equal(0, alive)
  end)

  it('brings a run back to the same bits, with its step, config and position', function()
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

  it('written by one number of ranks continues on another, to the same bits', function()
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

  it('holds buffers, restored in place', function()
    local function model()
      local m = nn.Sequential(nn.Linear(1, 1))
      m:buffer('seen', ms.full({ 2, 2 }, 4))
      m:buffer('ticks', ms.full({ 1 }, 7, { dtype = 'i64' }))
      return m
    end
    checkpoint.save(root, 'a', { step = 1, model = model() })
    local other = model()
    other.seen:fill_(0)
    other.ticks:fill_(0)
    checkpoint.load(root .. '/a', { model = other })
    checks.close({ { 4, 4 }, { 4, 4 } }, other.seen)
    assert.same({ 7 }, other.ticks:totable())
  end)

  it('refuses another model, optimizer or run, naming what differs', function()
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
    checks.raises('KeyError', 'the checkpoint has no position in the data', checkpoint.load, path,
      { loader = run_of(1, 0).loader })
    checks.raises('ValueError', "did you mean 'optimizer'?", checkpoint.load, path,
      { optimiser = m })
  end)

  it('gives the options of a group to no other parameters', function()
    local model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    local function made(first, second)
      return ms.optim.AdamW({ { params = { model[first].weight, model[first].bias } },
        { params = { model[second].bias, model[second].weight }, weight_decay = 0 } }, { lr = 1 })
    end
    checkpoint.save(root, 'a', { step = 1, model = model, optimizer = made(1, 2) })
    checkpoint.load(root .. '/a', { optimizer = made(1, 2) })
    checks.raises('ValueError', "'1.weight' is in parameter group 1 of the optimizer, but in group "
      .. '2 of the one', checkpoint.load, root .. '/a', { optimizer = made(2, 1) })
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

  it('brings the momentum of its options to an optimizer with other ones, on any ranks', function()
    local function make_run(momentum)
      local model = fsdp.FSDP(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)))
      local opt = ms.optim.SGD(model:parameters(), { lr = 0.1, momentum = momentum })
      return { model = model, optimizer = opt, step = function()
        model(ms.ones(1, 2)):sum():backward()
        opt:step()
        opt:zero_grad()
      end }
    end
    ms.dist.spawn(2, function(rank)
      for name, momentum in pairs { pushed = 0.9, plain = 0 } do
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
      checks.raises('KeyError', 'the checkpoint has no position in the data', checkpoint.load,
        root .. '/pushed', { optimizer = run.optimizer, loader = run_of(2, rank).loader })
      assert(run.optimizer.param_groups[1].momentum == 0) -- nothing is changed
    end)
  end)

  it('has the momentum of parameters while it is 0, on any ranks', function()
    local function make_run()
      local model = fsdp.FSDP(nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 1)))
      local opt = ms.optim.SGD(model:parameters(), { lr = 0.1, momentum = 0.9, dampening = 0.5 })
      return { model = model, optimizer = opt, step = function(momentum)
        opt.param_groups[1].momentum = momentum
        model(ms.ones(1, 2)):sum():backward()
        opt:step()
        opt:zero_grad()
      end }
    end
    local function continue(run)
      local parts = { model = run.model, optimizer = run.optimizer }
      run.step(0.9)
      checkpoint.load(root .. '/still', parts)
      assert(run.optimizer.param_groups[1].momentum == 0)
      run.step(0.9)
      local hash = io.open(root .. '/hash'):read()
      assert(run.model:hash() == hash)
      checkpoint.load(root .. '/new', parts) -- which has none: the next step begins one
      run.step(0.9)
      local other = make_run()
      checkpoint.load(root .. '/new', { model = other.model })
      other.step(0.9)
      assert(run.model:hash() == other.model:hash())
    end
    ms.dist.spawn(2, function(rank) -- one of which holds nothing of a bias
      local run = make_run()
      local parts = { step = 1, model = run.model, optimizer = run.optimizer }
      checkpoint.save(root, 'new', parts)
      run.step(0.9)
      run.step(0)
      checkpoint.save(root, 'still', parts)
      run.optimizer:load_state_dict(run.optimizer:state_dict())
      checkpoint.save(root, 'again', parts) -- all ranks still say the same
      run.step(0.9)
      local hash = run.model:hash()
      if rank == 0 then
        local file = assert(io.open(root .. '/hash', 'w'))
        file:write(hash)
        file:close()
      end
      ms.dist.barrier()
      continue(make_run())
    end)
    ms.dist.spawn(1, function() continue(make_run()) end)
  end)

  it('leaves the one before alone when saving fails', function()
    local m = nn.Linear(1, 1)
    checkpoint.save(root, 'a', { step = 1, model = m })
    checks.raises('TypeError', "a function has no JSON form (at ['bad'])", checkpoint.save,
      root, 'a', { step = 2, model = m, config = { bad = print } })
    assert.equal(1, checkpoint.read_meta(root .. '/a').step)
  end)

  it('refuses a configuration it would keep only part of', function()
    local m = nn.Linear(1, 1)
    checks.raises('TypeError', "a table with key 'name' has no JSON form", checkpoint.save, root,
      'a', { step = 1, model = m, config = { 1, 2, name = 'x' } })
    checks.raises('TypeError', 'a table with key 5 has no JSON form', checkpoint.save, root, 'a',
      { step = 1, model = m, config = { sizes = { 10, 20, [5] = 1 } } })
    checks.raises('ValueError', "the key 'a\\0b' holds a NUL byte", checkpoint.save, root, 'a',
      { step = 1, model = m, config = { ['a\0b'] = 1 } })
    assert.is_nil(checkpoint.latest(root))
  end)

  it('keeps no rank\'s own values for all', function()
    ms.dist.spawn(2, function(rank)
      local model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
      model[1] = fsdp.FSDP(model[1])
      local opt = ms.optim.SGD(model:parameters(), { lr = 0.1, momentum = 0.9 })
      checkpoint.save(root, 'alike', { step = 1, model = model, optimizer = opt })
      checkpoint.export(root .. '/alike.safetensors', model)
      model(ms.full({ 1, 2 }, rank + 1)):sum():backward() -- nobody reduces what is not wrapped
      opt:step()
      local ok, err = pcall(checkpoint.save, root, 'apart', { step = 2, model = model })
      assert(not ok and tostring(err):find("ValueError: .*the hash of parameter '1.weight', which "
        .. 'no FSDP unit holds, is %x+ on rank 0 and %x+ on rank 1'), tostring(err))
      ok, err = pcall(checkpoint.save, root, 'apart', { step = 2, optimizer = opt })
      assert(not ok and tostring(err):find("the hash of momentum_buffer of '1.weight', which "
        .. 'no FSDP unit holds'), tostring(err))
      checks.raises('ValueError', "checkpoint.export: '1.weight' has other values on rank 1 than "
        .. 'on rank 0; no FSDP unit', checkpoint.export, root .. '/apart.safetensors', model)
      checkpoint.load(root .. '/alike', { model = model, optimizer = opt })
      checkpoint.save(root, 'again', { step = 2, model = model, optimizer = opt })
    end)
    assert.is_nil(io.open(root .. '/apart'))
    assert.is_nil(io.open(root .. '/apart.safetensors'))
  end)

  it("says which buffers differ between ranks, of which it keeps rank 0's", function()
    ms.dist.spawn(2, function(rank)
      local function said(what, fn, ...)
        local list = ms.capture_warnings(fn, ...)
        assert(#list == (what and rank == 0 and 1 or 0), #list)
        assert(not list[1] or list[1].message == what, list[1] and list[1].message)
      end
      local function saves(names, model)
        local told = names
          and ": buffers differ between ranks, and rank 0's are written: " .. names
        said(told and 'checkpoint.save' .. told, checkpoint.save, root, 'a',
          { step = 1, model = model })
        said(told and 'checkpoint.export' .. told, checkpoint.export, root .. '/a.safetensors',
          model)
      end
      for _, strategy in ipairs { 'none', 'FULL_SHARD', 'NO_SHARD' } do
        local model = nn.Linear(2, 2)
        model = strategy == 'none' and model or wrapped(model, { sharding_strategy = strategy })
        for _, name in ipairs { 'mean', 'same', 'var' } do
          model:buffer(name, ms.zeros(2))
        end
        model:buffer('own', ms.zeros(1), { persistent = false })
        model(ms.ones(1, 2))
        model.own:fill_(rank)
        saves(nil, model)
        model.mean:fill_(rank)
        saves("'mean'", model)
        model.var[2] = -rank
        saves("'mean', 'var'", model)
        checkpoint.load(root .. '/a', { model = model })
        checks.close({ 0, 0 }, model.mean)
        saves(nil, model)
      end
      local many = nn.Linear(1, 1)
      for i = 1, 8 do
        many:buffer('b' .. i, ms.full({ 1 }, rank))
      end
      saves("'b1', 'b2', 'b3', 'b4', 'b5' and 3 more", many)
    end)
  end)

  it('takes a model with an optimizer of its parameters, of all or of some', function()
    local function layers() return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) end
    local function sgd(params) return ms.optim.SGD(params, { lr = 0.1, momentum = 0.9 }) end
    local function refused(text, model, optimizer)
      local parts = { step = 2, model = model, optimizer = optimizer }
      checks.raises('ValueError', text, checkpoint.save, root, 'b', parts)
      checks.raises('ValueError', text, checkpoint.load, root .. '/a',
        { model = model, optimizer = optimizer })
    end
    for _, wrap in ipairs { function(model) return model end, wrapped } do
      local model, other = wrap(layers()), wrap(layers())
      local opt = sgd(model:parameters())
      checkpoint.save(root, 'a', { step = 1, model = model, optimizer = opt })
      refused("the optimizer holds parameters that are not this model's: '0.weight', of which the "
        .. 'model has another', model, sgd(other:parameters()))
      local head = nn.Module.extend('Head')()
      head.head = nn.Linear(2, 2)
      head:materialize()
      refused("that are not this model's: 'head.weight'", model,
        sgd { model:parameters()[1], head.head.weight })
      local some = sgd { model:parameters()[2] }
      checkpoint.save(root, 'some', { step = 1, model = model, optimizer = some })
      checkpoint.load(root .. '/some', { model = model, optimizer = some })
      checkpoint.load(root .. '/a', { optimizer = sgd(other:parameters()) })
    end
    local model = layers()
    local before = sgd(model:parameters()) -- handles of parameters stay when they are wrapped
    model = wrapped(model)
    checkpoint.save(root, 'c', { step = 1, model = model, optimizer = before })
    checkpoint.load(root .. '/c', { model = model, optimizer = before })
  end)

  it('keeps the place of a second loader in its configuration', function()
    local function loader(seed)
      return ms.data.Loader { tokens = ms.arange(60), context = 4, batch = 2, seed = seed }
    end
    ms.dist.spawn(2, function()
      local one, other = loader(1), loader(2)
      for i = 1, 4 do
        other:next()
        local _ = i == 1 and one:next()
      end
      checkpoint.save(root, 'a', { step = 1, loader = one, config = { other = other:state() } })
      local first, second = loader(1), loader(2)
      local meta = checkpoint.load(root .. '/a', { loader = first })
      second:load_state(meta.config.other)
      for _, pair in ipairs { { one, first }, { other, second } } do
        assert(ms.equal((pair[1]:next()), (pair[2]:next())))
      end
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

  it('is resumed from where it was saved last, and a step back is a warning', function()
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

  it('of frozen parameters continues when they are frozen no more', function()
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

  it('goes on with the dropout masks of the run, over data of its own, too', function()
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

  it('of old, which does not say how far random numbers are, lets them stay', function()
    ms.manual_seed(5)
    local m = nn.Linear(1, 1)
    with_meta(root, 'old', { step = 1, model = m }, function(meta) meta.random = nil end)
    ms.randn(1)
    local state = ms.get_rng_state()
    checkpoint.load(root .. '/old', { model = m })
    assert.same(state, ms.get_rng_state())
  end)

  it('of another seed warns', function()
    ms.manual_seed(1)
    local m = nn.Linear(1, 1)
    checkpoint.save(root, 'a', { step = 1, model = m })
    ms.manual_seed(2)
    local warnings = ms.capture_warnings(checkpoint.load, root .. '/a', { model = m })
    assert.equal('the checkpoint was made with seed 1, this run has 2', warnings[1].message)
  end)
end)

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
    os.execute("rm -rf '" .. root .. "'")
    local alive = checks.live_handles()
    ms.close()
    assert.equal(0, alive)
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

  it('when ranks open different checkpoints, or none of one is there', function()
    local out = folder()
    ms.dist.spawn(2, function(rank)
      local run = sharded(4)
      checkpoint.save(root, 'a', { step = 1, model = run.model })
      checkpoint.save(root, 'b', { step = 2, model = run.model })
      local _, err = pcall(checkpoint.load, root .. (rank == 0 and '/a' or '/b'),
        { model = run.model })
      write(out, (tostring(err):gsub(root, '<root>'):gsub('%x%x%x%x%x%x%x%x+', '<hash>')))
      _, err = pcall(checkpoint.load, root .. (rank == 0 and '/a' or '/gone'),
        { model = run.model })
      write(out, (tostring(err):gsub(root, '<root>')))
    end)
    local all = lines(out)
    table.sort(all)
    assert.same({
      'IOError: rank 1: open <root>/gone/manifest.json: No such file or directory',
      'IOError: rank 1: open <root>/gone/manifest.json: No such file or directory',
      "ValueError: rank 1 opened '<root>/b' with step 2 (manifest <hash>), rank 0 '<root>/a' with "
        .. 'step 1 (<hash>): expected one checkpoint on all ranks',
      "ValueError: rank 1 opened '<root>/b' with step 2 (manifest <hash>), rank 0 '<root>/a' with "
        .. 'step 1 (<hash>): expected one checkpoint on all ranks',
    }, all)
  end)
end)

describe('saving', function()
  local root

  before_each(function() root = folder() end)
  after_each(function()
    os.execute("rm -rf '" .. root .. "'")
    local alive = checks.live_handles()
    ms.close()
    assert.equal(0, alive)
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

  it('goes on when old checkpoints cannot be removed', function()
    local manager = checkpoint.Manager { root = root, keep = 1 }
    local m = nn.Linear(1, 1)
    manager:save { step = 1, model = m }
    os.execute(("mkdir '%s/step-00000001/eval'"):format(root)) -- what somebody put there
    local warnings = ms.capture_warnings(function() manager:save { step = 2, model = m } end)
    assert.equal(1, #warnings)
    assert.truthy(warnings[1].message:find('not what others put into', 1, true))
    assert.truthy(io.open(root .. '/step-00000001/eval'))
    assert.same({}, ms.capture_warnings(function() manager:save { step = 3, model = m } end))
    assert.equal(3, manager:resume({ model = m }).step)
  end)
end)
