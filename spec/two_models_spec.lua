-- Two of four ranks train one model and two train another, each with its loader and checkpoints.
local ffi = require 'ffi'
local ms = require 'moonshard'
local checks = require 'support.checks'
local runs = require 'support.runs'
local shell = require 'support.shell'

ffi.cdef 'int raise(int signal);'

local SIGUSR1 = 10

local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim

-- Options of the two runs, by color.
local RUNS = {
  [0] = { width = 8, batch = 1, seed = 1, steps = 5 },
  { width = 16, batch = 3, seed = 2, steps = 3 },
}

local function tokens()
  local list = {}
  for i = 1, 240 do
    list[i] = i * i % 13
  end
  return ms.tensor(list, { dtype = 'i64' })
end

-- The parts of a run.
local function parts_of(run, group)
  ms.manual_seed(run.seed)
  local model = ms.models.GPT { vocab = 13, layers = 2, heads = 2, width = run.width, context = 4,
    dropout = 0.1 }
  model = fsdp.FSDP(model, { process_group = group,
    auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.TransformerBlock } })
  return {
    model = model,
    optimizer = optim.AdamW(model:parameters(), { lr = 1e-2 }),
    loader = ms.data.Loader { tokens = tokens(), context = 4,
      batch = run.batch, seed = run.seed, process_group = group },
  }
end

-- Trains up to a step. Returns the hash of the model.
local function train(parts, steps, group)
  for step, x, y in parts.loader:batches() do
    local loss = parts.model(x, y)
    loss:backward()
    parts.model:clip_grad_norm_(1)
    parts.optimizer:step()
    parts.optimizer:zero_grad()
    if ms.dist.stop_requested(group) or step == steps then
      break
    end
  end
  return runs.hash_of(parts.model)
end

-- Trains, saves, and resumes a second run from the checkpoint.
local function train_and_resume(run, group, root)
  local parts = parts_of(run, group)
  local manager = ms.checkpoint.Manager { root = root, keep = 1 }
  train(parts, run.steps - 2, group)
  parts.step = run.steps - 2
  manager:save(parts)
  parts.step = nil
  local hash = train(parts, run.steps, group)
  local again = parts_of(run, group)
  local meta = manager:resume(again)
  assert(meta.step == run.steps - 2 and again.loader:step() == meta.step)
  assert(train(again, run.steps, group) == hash, 'resumed')
  return hash
end

describe('four ranks, two a model', function()
  local root

  before_each(function() root = runs.folder() end)
  after_each(function()
    for color = 0, 1 do
      shell.remove_folder(root .. color)
    end
    checks.close_library()
  end)

  it('train, save and resume two models as two jobs would', function()
    local alone = {}
    for color = 0, 1 do
      local reports, cause = runs.reports(2, function()
        return train_and_resume(RUNS[color], nil, root .. color)
      end)
      assert.is_nil(cause)
      alone[color] = reports[0]
      shell.remove_folder(root .. color)
    end
    local together, cause = runs.reports(4, function(rank)
      local color = rank % 2
      return train_and_resume(RUNS[color], ms.dist.split(color), root .. color)
    end)
    assert.is_nil(cause)
    assert.same({ [0] = alone[0], alone[1], alone[0], alone[1] }, together)
    assert.not_equal(alone[0], alone[1])
  end)

  it('get samples by their own group', function()
    local function first_sample(options)
      local loader = ms.data.Loader(options)
      local x = loader:next()
      ms.dist.barrier(options.process_group)
      return tostring(loader):match('rank=.*%)') .. ' ' .. x[1][1]:item()
    end
    local function reports(options_of)
      return runs.reports(4, function(rank)
        local options = options_of(rank)
        options.process_group = ms.dist.split(rank % 2)
        options.tokens, options.context = ms.arange(0, 400), 4
        local ok, result = pcall(first_sample, options)
        return ok and result or result.message
      end)
    end
    local dealt, cause = reports(function(rank)
      return { batch = 1 + rank % 2, shuffle = false }
    end)
    assert.is_nil(cause)
    assert.same({ [0] = 'rank=0 of 2) 0', 'rank=0 of 2) 0', 'rank=1 of 2) 4', 'rank=1 of 2) 8' },
      dealt)
    assert.same({ [0] = 'world_size is 4, but the group has 2 ranks; leave it out, or give 1 for '
      .. 'a loader that gives all samples to this rank' },
      { [0] = reports(function() return { batch = 1, world_size = 4 } end)[0] })
    assert.same({ [0] = 'rank=0 of 1) 0', 'rank=0 of 1) 0', 'rank=0 of 1) 0', 'rank=0 of 1) 0' },
      reports(function() return { batch = 1, world_size = 1, shuffle = false } end))
  end)

  it('stop at a step of their own group', function()
    local reports, cause = runs.reports(4, function(rank)
      local pair, step = ms.dist.split(rank % 2), 0
      ms.dist.catch_signals()
      repeat
        step = step + 1
        ms.dist.barrier(pair)
        if rank == 3 and step == 5 then
          os.execute 'sleep 0.02' -- the other would ask before there is a signal
          ffi.C.raise(SIGUSR1)
        end
      until ms.dist.stop_requested(pair)
      return tostring(step)
    end)
    assert.is_nil(cause)
    assert.equal('5', reports[1])
    assert.equal('5', reports[3])
    assert.equal(reports[0], reports[2])
  end)
end)
