dofile((arg[0]:match('^(.*)/') or '.') .. '/setup.lua')

--- Fine-tunes a GPT with low-rank adapters (LoRA, Hu et al. 2021) on sharded parameters.
---
---   luajit examples/lora.lua                        one rank per core, less than a minute
---   luajit examples/lora.lua --base=train-out       adapt a model that examples/train.lua saved
---   ./dev moonshard run -n 2 examples/lora.lua      the same under a launcher
---
--- Without --base it first trains a small model on the King James Bible. Then it freezes the model,
--- puts adapters beside every projection of attention and MLP, and trains those alone on another
--- text. Saves the adapters, loads them into a fresh copy of the model and compares the loss.

local ms = require 'moonshard'
local adapters = require 'adapters'
local corpus = require 'corpus'
local flags = require 'moonshard.tools.flags'
local report = require 'moonshard.train.report'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim

local count, from_zero = { whole = true, from = 1 }, { whole = true, from = 0 }
local spec = {
  { 'base', '', 'checkpoint of examples/train.lua, or the --out of a run (default: train one)' },
  { 'data', '', 'text the default model is trained on (default: the King James Bible)' },
  { 'tune', '', 'text the adapters are trained on (default: the documentation in docs/)' },
  { 'base-steps', 300, 'steps of the default model', count },
  { 'steps', 300, 'steps of the adapters', count },
  { 'rank', 8, 'inner width of an adapter', count },
  { 'alpha', 16, 'an adapter is scaled by alpha / rank', { above = 0 } },
  { 'lr', 5e-3, 'highest learning rate', { from = 0 } },
  { 'rows', 16, 'rows of one step, over all ranks', count },
  flags.device,
  { 'ranks', 0, 'processes on this host (0: one per core, at most 8)', from_zero },
  { 'strategy', 'FULL_SHARD', 'FULL_SHARD, SHARD_GRAD_OP or NO_SHARD',
    { one_of = { 'FULL_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD' } } },
  { 'seed', 1, 'of initial values and order', from_zero },
  { 'out', 'lora-out', 'folder for the texts and adapters.safetensors', { filled = true } },
  { 'help', false, 'this text' },
}

local function fail(message)
  io.stderr:write('lora: ', message, '\n')
  os.exit(2)
end

local o = flags.read(spec, 'examples/lora.lua', 'Trains low-rank adapters of a GPT.', fail)

local function attempt(fn, ...)
  local ok, result = pcall(fn, ...)
  return ok and result or fail(tostring(result))
end

local function documentation()
  local root = debug.getinfo(1, 'S').source:match('^@(.*)/[^/]*$') or '.'
  local pipe = assert(io.popen(("ls '%s'/../docs/*.md '%s'/../docs/reference/*.md"):format(root,
    root)))
  local paths = {}
  for path in pipe:lines() do
    paths[#paths + 1] = path
  end
  pipe:close()
  return paths
end

-- What is known of the base before there are ranks: its checkpoint and its shape.
local config = { vocab = 256, layers = 2, heads = 4, width = 128, context = 64 }
local checkpoint
if o.base ~= '' then
  checkpoint = attempt(function()
    return ms.checkpoint.latest(o.base .. '/checkpoints') or ms.checkpoint.latest(o.base) or o.base
  end)
  config = attempt(ms.checkpoint.read_meta, checkpoint).config
  if type(config) ~= 'table' then
    fail(checkpoint .. ' does not say what model it holds; examples/train.lua writes ones that do')
  end
  config.flags = nil -- what it was trained with
end
local tune = attempt(corpus.prepare, o.tune ~= '' and o.tune or documentation(), o.out .. '/tune',
  false)
local data = not checkpoint and attempt(corpus.prepare, o.data, o.out .. '/base', false)

local world = ms.dist.init { ranks = o.ranks > 0 and o.ranks or nil }
local first = world.rank == 0
ms.manual_seed(o.seed)

-- Leave with an error of all ranks, which rank 0 prints.
local function refuse(...)
  if first then
    io.stderr:write('lora: ', string.format(...), '\n')
  end
  ms.dist.barrier()
  ms.dist.exit(2)
end

if o.rows % world.world_size ~= 0 then
  refuse('--rows=%d cannot be dealt to %d ranks evenly', o.rows, world.world_size)
end

local function say(...)
  if first then
    print(string.format(...))
    io.flush()
  end
end

-- -- training ------------------------------------------------------------------------------------

local function shard(model)
  local wrapped
  -- Units mix frozen and trainable parameters on purpose: no warning about it.
  ms.capture_warnings(function()
    wrapped = fsdp.FSDP(model, {
      auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.TransformerBlock },
      sharding_strategy = o.strategy,
      use_orig_params = true,
    })
  end)
  return wrapped
end

local function loader(file)
  local tokens = ms.data.tokens(file, 'u8')
  if tokens:numel() <= o.rows * config.context then
    refuse('%s has %d bytes, one step takes %d rows of %d', file, tokens:numel(), o.rows,
      config.context)
  end
  return ms.data.Loader {
    tokens = tokens, context = config.context, seed = o.seed, batch = o.rows / world.world_size,
  }
end

local function over_ranks(value, reduction)
  return ms.dist.all_reduce(ms.full({ 1 }, value, { dtype = ms.f64 }), reduction):item()
end

local function trainable(model)
  local list, n = {}, 0
  for _, p in ipairs(model:parameters()) do
    if p:requires_grad() then
      list[#list + 1], n = p, n + p:numel()
    end
  end
  return list, n
end

local function train(what, model, text, steps)
  local batches = loader(text.train)
  local opt = optim.AdamW((trainable(model)), { lr = o.lr })
  local lr_at = ms.schedule.cosine {
    lr = o.lr, warmup = math.min(20, steps), total = steps, final = 0.1 * o.lr,
  }
  local begun, sum = ms.time(), 0
  for step = 1, steps do
    opt:set_lr(lr_at(step - 1))
    sum = sum + ms.scope(function()
      local loss = model(batches:next())
      loss:backward()
      return loss:item()
    end)
    model:clip_grad_norm_(1)
    opt:step()
    opt:zero_grad()
    if step % 50 == 0 or step == steps then
      local n = step % 50 == 0 and 50 or step % 50
      local loss = over_ranks(sum / n, 'avg')
      say('%s: step %d/%d  loss %.4f', what, step, steps, loss)
      sum = 0
    end
  end
  say('%s: %.0f tokens/s', what, steps * o.rows * config.context / (ms.time() - begun))
end

--- Mean loss on text that was not trained on.
local function validate(model, text)
  local batches, sum = loader(text.valid), 0
  local n = math.min(20, batches.steps_per_epoch)
  model:eval()
  ms.no_grad(function()
    for _ = 1, n do
      sum = sum + ms.scope(function() return model(batches:next()):item() end)
    end
  end)
  model:train()
  return over_ranks(sum / n, 'avg')
end

-- -- the base ------------------------------------------------------------------------------------

local function make_base()
  local model = ms.models.GPT(config)
  if checkpoint then
    ms.checkpoint.load(checkpoint, { model = model })
    return model
  end
  local wrapped = shard(model)
  train('base', wrapped, data, o['base-steps'])
  local base = ms.models.GPT(config)
  base:load_state_dict(wrapped:state_dict())
  return base
end

local base = make_base()
local values = base:state_dict()

-- -- fine-tuning ---------------------------------------------------------------------------------

local model = shard(adapters.add(base, o.rank, o.alpha))
local _, own = trainable(model)
local plan = model:plan()
say('%d of %d parameters are trainable; per rank: masters %s, gradients %s, optimizer %s, slots %s',
  over_ranks(own, 'sum') / (o.strategy == 'NO_SHARD' and world.world_size or 1),
  model:num_parameters(), report.bytes(plan.masters), report.bytes(plan.gradients),
  report.bytes(2 * plan.per_state), report.bytes(plan.arena))
local before = validate(model, tune)
say('loss on %s before: %.4f nats per byte', tune.name, before)
ms.reset_peak_memory()
train('adapters', model, tune, o.steps)
local after = validate(model, tune)
say('loss after: %.4f; peak memory %s a rank, of that gradients %s', after,
  report.bytes(ms.memory().peak_total), report.bytes(ms.memory().peak.gradient))

local path = o.out .. '/adapters.safetensors'
local saved = adapters.of(model:state_dict { rank0_only = true })
if first then
  ms.checkpoint.write_safetensors(path, saved)
end
ms.dist.barrier()

local fresh = ms.models.GPT(config)
fresh:load_state_dict(values)
fresh = shard(adapters.add(fresh, o.rank, o.alpha))
local missing = fresh:load_state_dict(ms.checkpoint.read_safetensors(path), { strict = false })
say('%s has %d tensors; %d of the base stay as they are; loss with it: %.4f', path, #saved,
  #missing.missing_keys, validate(fresh, tune))
ms.dist.exit(0)
