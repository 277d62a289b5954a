-- lua/moonshard/checkpoint.lua: saving and restoring runs, on the same and another number of ranks
local ms = require 'moonshard'
local nn, fsdp, checkpoint = ms.nn, ms.fsdp, ms.checkpoint
local checks = require 'support.checks'

local function make()
  return ms.models.GPT { vocab = 13, layers = 1, heads = 2, width = 10, context = 4, dropout = 0.1 }
end

-- A run over tokens 0 .. 99 with a global batch of four micro-batches, dealt to W ranks.
local function run_of(world, rank, wrap)
  ms.manual_seed(2)
  local run = { model = make() }
  if wrap then
    ms.capture_warnings(function()
      run.model = fsdp.FSDP(run.model, { auto_wrap_policy = fsdp.always_wrap_policy,
        use_orig_params = true })
    end)
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

local function hash_of(model)
  local sd, parts = model:state_dict(), {}
  for i, name in ipairs(sd) do
    parts[i] = sd[name]:hash()
  end
  return table.concat(parts)
end

local function folder()
  local path = os.tmpname()
  os.remove(path)
  return path
end

local function write(path, text)
  local file = assert(io.open(path, 'a'))
  file:write(text, '\n')
  file:close()
end

local function lines(path)
  local out = {}
  for line in io.lines(path) do
    out[#out + 1] = line
  end
  os.remove(path)
  return out
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
      "'model/0.weight' has shape (2, 2) in the checkpoint, expected (3, 2)", checkpoint.load, path,
      { model = model(3) })
    checks.raises('KeyError', "the checkpoint has no 'model/1.weight'", checkpoint.load, path,
      { model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) })
    checks.raises('ValueError', 'the checkpoint holds the state of SGD, expected AdamW',
      checkpoint.load, path, { optimizer = ms.optim.AdamW(m:parameters()) })
    checks.raises('KeyError', 'the checkpoint has no position in the data', checkpoint.load, path,
      { loader = run_of(1, 0).loader })
    checks.raises('ValueError', "did you mean 'optimizer'?", checkpoint.load, path,
      { optimiser = m })
  end)

  it('leaves the one before alone when saving fails', function()
    local m = nn.Linear(1, 1)
    checkpoint.save(root, 'a', { step = 1, model = m })
    checks.raises('TypeError', 'a function has no JSON form', checkpoint.save, root, 'a',
      { step = 2, model = m, config = { bad = print } })
    assert.equal(1, checkpoint.load(root .. '/a', {}).step)
  end)

  it('is found by its step; the manager keeps the newest', function()
    local manager = checkpoint.Manager { root = root, keep = 2 }
    local m = nn.Linear(1, 1)
    assert.is_nil(manager:resume { model = m })
    for i = 1, 4 do
      m:materialize().bias:fill_(i)
      manager:save { step = i * 10, model = m }
    end
    m.bias:fill_(0)
    assert.equal(40, manager:resume({ model = m }).step)
    checks.close({ 4 }, m.bias)
    assert.is_nil(io.open(root .. '/step-00000020'))
    assert.truthy(io.open(root .. '/step-00000030'))
  end)

  it('of another seed warns', function()
    ms.manual_seed(1)
    checkpoint.save(root, 'a', { step = 1 })
    ms.manual_seed(2)
    local warnings = ms.capture_warnings(checkpoint.load, root .. '/a', {})
    assert.equal('the checkpoint was made with seed 1, this run has 2', warnings[1].message)
  end)
end)

describe('a safetensors file', function()
  local path

  before_each(function() path = os.tmpname() end)
  after_each(function()
    os.remove(path)
    local alive = checks.live_handles()
    ms.close()
    assert.equal(0, alive)
  end)

  it('carries full parameters from one model to another, tied ones once', function()
    ms.manual_seed(1)
    local a = make():materialize()
    checkpoint.export(path, a)
    ms.manual_seed(2)
    local b = make():materialize()
    assert.not_equal(hash_of(a), hash_of(b))
    checkpoint.import(path, b)
    assert.equal(hash_of(a), hash_of(b))
    local names = checkpoint.read_safetensors(path)
    assert.truthy(names['wte.weight'])
    assert.is_nil(names['lm_head.weight'])
  end)

  it('is written by sharded ranks as by one', function()
    ms.manual_seed(1)
    local expected = hash_of(make())
    ms.dist.spawn(2, function()
      ms.manual_seed(1)
      checkpoint.export(path, fsdp.FSDP(make(),
        { auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.TransformerBlock } }))
    end)
    ms.manual_seed(3)
    local model = make()
    checkpoint.import(path, model)
    assert.equal(expected, hash_of(model))
  end)

  it('holds any tensors by name', function()
    checkpoint.write_safetensors(path, { b = ms.arange(3), a = ms.ones(2, 2, { dtype = 'bf16' }) })
    local sd = checkpoint.read_safetensors(path)
    assert.equal('bf16', sd.a:dtype())
    assert.same({ 0, 1, 2 }, sd.b:totable())
  end)
end)
