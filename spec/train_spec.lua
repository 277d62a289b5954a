-- ms.train: one loss however a step is cut, runs that stop and resume to the same bits.

local ms = require 'moonshard'
local checks = require 'support.checks'
local runs = require 'support.runs'
local shell = require 'support.shell'
local fsdp, nn, ops, optim = ms.fsdp, ms.nn, ms.ops, ms.optim

local VOCAB, CONTEXT = 29, 12

local function gpt()
  ms.manual_seed(5)
  return ms.models.GPT { vocab = VOCAB, layers = 2, heads = 2, width = 20, context = CONTEXT }
end

local function sharded()
  return fsdp.FSDP(gpt(), {
    auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.TransformerBlock }, use_orig_params = true,
  })
end

local function summed(model, ids, targets)
  return ops.cross_entropy(model(ids), targets, { reduction = 'sum' })
end

-- Four rows of which 12, 3, 0 and 1 targets count.
local function row(k)
  local ids, targets = {}, {}
  local counted = ({ 12, 3, 0, 1 })[k]
  for t = 1, CONTEXT do
    ids[t] = (5 * t + 7 * k + t * k) % VOCAB
    targets[t] = t <= counted and (3 * t + 11 * k) % VOCAB or -100
  end
  return ids, targets
end

-- Rows `first` to `last` as a batch.
local function batch(first, last)
  local ids, targets = {}, {}
  for k = first, last do
    ids[#ids + 1], targets[#targets + 1] = row(k)
  end
  return { ms.tensor(ids, { dtype = 'i64' }), ms.tensor(targets, { dtype = 'i64' }) }
end

describe('forward_backward', function()
  local expected_loss, expected = unpack(runs.alone(function()
    local model, b = gpt(), batch(1, 4)
    local loss = ops.cross_entropy(model(b[1]), b[2])
    loss:backward()
    return { loss:item(), model.h[2].mlp.fc.weight:grad():flatten():totable() }
  end))

  for _, case in ipairs { { 1, 1 }, { 1, 2 }, { 1, 4 }, { 2, 1 }, { 2, 2 }, { 4, 1 } } do
    local world, n = unpack(case)
    it(('gives one loss with %d ranks and %d micro-batches'):format(world, n), function()
      ms.dist.spawn(world, function(rank)
        local rows, batches = 4 / (world * n), {}
        for k = 1, n do
          local first = 1 + (rank * n + k - 1) * rows
          batches[k] = batch(first, first + rows - 1)
        end
        local model = sharded()
        local loss, count = ms.train.forward_backward(model, batches, summed)
        assert.are.equal(16, count)
        assert.is_true(math.abs(loss - expected_loss) < 1e-5)
        local weight = model.h[2].mlp.fc.weight
        fsdp.summon_full_params(model, { with_grads = true, writeback = false }, function()
          checks.close(expected, weight:grad():flatten():totable(), 1e-6)
        end)
      end)
    end)
  end

  it('is zero without a target', function()
    runs.alone(function()
      local model = gpt()
      local loss, count = ms.train.forward_backward(model, { batch(3, 3) })
      assert(loss == 0 and count == 0)
      assert(model.wte.weight:grad():abs():sum():item() == 0)
      return true
    end)
  end)

  it('refuses a plain model in a job of several ranks', function()
    ms.dist.spawn(2, function()
      checks.raises('ValueError', 'GPT is not sharded, and the job has 2 ranks',
        ms.train.forward_backward, gpt(), { batch(1, 1) })
    end)
  end)
end)

describe('ms.train', function()
  local folder

  before_each(function() folder = shell.make_folder() end)
  after_each(function() shell.remove_folder(folder) end)

  local function tokens(from, n)
    local list = {}
    for i = 1, n do
      list[i] = (from + i * i) % VOCAB
    end
    return ms.tensor(list, { dtype = 'i64' })
  end

  -- Trains on as many ranks, up to a step that a signal ends; returns the hash of the parameters.
  local function run(world, opts)
    return runs.reports(world, function(rank)
      local model = sharded()
      local function loader(from, n, micro_batches)
        return ms.data.Loader {
          tokens = tokens(from, n), context = CONTEXT, batch = 1, micro_batches = micro_batches,
        }
      end
      local result = ms.train {
        model = model, optimizer = optim.AdamW(model:parameters(), { lr = 0.01 }), steps = 8,
        data = loader(0, 600, 2 / world), validation = loader(7, 100, 2 / world), clip = 0.5,
        schedule = ms.schedule.cosine { lr = 0.01, warmup = 2, total = 8 },
        out = folder .. '/' .. opts.out, save_every = 3, validate_every = 4, log_every = 0,
        resume = opts.resume, on_step = function(m)
          if m.step == opts.stop and rank == 0 then
            os.execute('kill -TERM $PPID')
          end
        end,
      }
      return ('%s %d %s'):format(model:hash(), result.step, tostring(result.stopped))
    end)
  end

  local function metrics(out)
    local steps, validated = {}, {}
    for line in io.lines(folder .. '/' .. out .. '/metrics.jsonl') do
      local m = ms.json.decode(line)
      if m.validation_loss then
        validated[#validated + 1] = m.step
      elseif m.step then
        steps[#steps + 1] = m.step
        assert(m.loss > 0 and m.grad_norm > 0 and m.lr >= 0 and m.targets == 2 * CONTEXT)
      end
    end
    return table.concat(steps, ' '), table.concat(validated, ' ')
  end

  it('resumes at another number of ranks to the bits of an uninterrupted run', function()
    local whole = run(2, { out = 'whole' })[0]
    assert.are.equal('8 nil', whole:match ' (.*)')
    assert.are.equal('5 15', run(2, { out = 'parts', stop = 5 })[0]:match ' (.*)')
    assert.are.equal(whole, run(1, { out = 'parts', resume = true })[0])
    for _, out in ipairs { 'whole', 'parts' } do
      local steps, validated = metrics(out)
      assert.are.equal('1 2 3 4 5 6 7 8', steps)
      assert.are.equal('4 8', validated)
    end
  end)

  it('does not mix two runs in a folder', function()
    shell.write(folder .. '/metrics.jsonl', '{"step":3}\n')
    runs.alone(function()
      local model = gpt()
      checks.raises('IOError', 'has a run already (metrics up to step 3); resume', ms.train, {
        model = model, optimizer = optim.SGD(model:parameters(), { lr = 0.01 }), steps = 1,
        data = ms.data.Loader { tokens = tokens(0, 300), context = CONTEXT, batch = 4 },
        out = folder,
      })
      return true
    end)
  end)

  it('learns what it is trained on', function()
    local before, after = unpack(runs.alone(function()
      local model = gpt()
      local loader = ms.data.Loader { tokens = tokens(0, 300), context = CONTEXT, batch = 4 }
      local first = ms.train.evaluate(model, loader)
      local result = ms.train {
        model = model, optimizer = optim.AdamW(model:parameters(), { lr = 0.01 }), data = loader,
        epochs = 5, log_every = 0, validation = loader,
      }
      return { first, result.validation_loss }
    end))
    assert.is_true(after < before / 2)
  end)
end)
