--- Our side of every row: `luajit bench/rows.lua ROW key=value ...` measures one thing in ranks of
--- its own and prints one line of JSON. torch_rows.py answers to the same words, run.lua compares.
---
--- Rows: train, generate, first_step, all_reduce, eager, tiny_step, conv, attention, transformer,
--- products, tokenize. Times are medians in seconds.

local here = arg[0]:match('^(.*)/') or '.'
dofile(here .. '/../examples/setup.lua')
package.path = here .. '/?.lua;' .. package.path

local ms = require 'moonshard'
local adapters = require 'adapters'
local json = require 'moonshard.base.json'
local stats = require 'stats'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim

local rows = {}

local function emit(result)
  io.write(json.encode(result), '\n')
  io.flush()
end

-- Highest resident set of this process so far, shared pages included.
local function peak_rss()
  for line in io.lines('/proc/self/status') do
    local kib = line:match('^VmHWM:%s+(%d+)')
    if kib then
      return tonumber(kib) * 1024
    end
  end
end

local function over_ranks(value, reduction)
  return ms.dist.all_reduce(ms.full({ 1 }, value, { dtype = ms.f64 }), reduction):item()
end

-- Median seconds of one call of `fn`: `samples` groups of `calls` calls, after one to warm up.
local function median_call(samples, calls, fn)
  local seconds = {}
  for s = 0, samples do
    local begin = ms.time()
    for _ = 1, calls do
      fn()
    end
    seconds[s] = (ms.time() - begin) / calls
  end
  return stats.median(seconds) -- from 1: the group at 0 warmed up
end

-- -- training -----------------------------------------------------------------------------------

local function is_block(m)
  return ms.is(m, nn.TransformerBlock) or m._name == 'models.DecoderLayer'
end

-- The same model by either call; `low` is the mixed precision.
local SHARDED = {
  FSDP = function(model, low, o)
    local is_hybrid = o.strategy == 'HYBRID_SHARD'
    return fsdp.FSDP(model, {
      auto_wrap_policy = fsdp.ModuleWrapPolicy {
        o.recompute and nn.checkpoint_wrapper or nn.TransformerBlock,
      },
      sharding_strategy = o.strategy or 'FULL_SHARD',
      device_mesh = is_hybrid and ms.dist.init_device_mesh('cpu', { o.ranks / 2, 2 }) or nil,
      mixed_precision = low, forward_prefetch = true, use_orig_params = true,
    })
  end,
  fully_shard = function(model, low)
    for _, module in ipairs(model:modules()) do
      if is_block(module) then
        fsdp.fully_shard(module, { mp_policy = low })
      end
    end
    return fsdp.fully_shard(model, { mp_policy = low })
  end,
}

-- Models by name; each is returned with its operations per token.
local MODELS = {}

function MODELS.gpt(o)
  local model = ms.models.GPT {
    vocab = o.vocab, layers = o.layers, heads = o.heads, width = o.width, context = o.context,
  }
  return model, model:flops_per_token()
end

function MODELS.llama(o)
  local model = ms.models.Decoder {
    architectures = { 'LlamaForCausalLM' }, vocab_size = o.vocab, hidden_size = o.width,
    intermediate_size = o.hidden, num_hidden_layers = o.layers, num_attention_heads = o.heads,
    max_position_embeddings = 2048,
  }
  local multiplied = model:num_parameters() - o.vocab * o.width
  return model, 6 * multiplied + 6 * o.layers * o.context * o.width
end

local function trained_model(o)
  local model, flops = MODELS[o.model or 'gpt'](o)
  if o.lora then
    adapters.add(model, o.lora, 2 * o.lora)
  end
  if o.recompute then
    nn.checkpoint(model, { policy = is_block })
  end
  local low = o.dtype ~= 'f32' and { param_dtype = o.dtype, reduce_dtype = 'f32' } or nil
  local sharded
  ms.capture_warnings(function() -- of frozen and trainable parameters in a unit
    sharded = SHARDED[o.api or 'FSDP'](model, low, o)
  end)
  if o.compile then
    sharded:compile { backend = o.compile }
  end
  local trained = {}
  for _, p in ipairs(sharded:parameters()) do
    trained[#trained + 1] = p:requires_grad() and p or nil
  end
  return sharded, optim.AdamW(trained, { lr = 3e-4, weight_decay = 0.1 }), flops
end

-- The words of a text in order, each as the number of words that first occurred before it. Some are
-- frequent, as tokens are, which the gradient of an embedding depends on.
local function text_ids(path, vocab)
  local file = assert(io.open(path))
  local ids, id_of, n = {}, {}, 0
  for word in file:read('*a'):gmatch '%S+' do
    if not id_of[word] then
      id_of[word], n = n % vocab, n + 1
    end
    ids[#ids + 1] = id_of[word]
  end
  file:close()
  return ids
end

-- Tokens drawn once, or those of the file o.text; every step sees the same. Positions are those of
-- documents of o.document tokens.
local function batch(o, rank)
  local ids, targets, positions = {}, {}, {}
  local text = o.text and text_ids(o.text, o.vocab)
  math.randomseed(rank + 1)
  for b = 1, o.rows do
    ids[b], targets[b], positions[b] = {}, {}, {}
    for t = 1, o.context do
      if text then
        local at = ((rank * o.rows + b - 1) * o.context + t - 1) % (#text - 1) + 1
        ids[b][t], targets[b][t] = text[at], text[at + 1]
      else
        ids[b][t], targets[b][t] = math.random(0, o.vocab - 1), math.random(0, o.vocab - 1)
      end
      positions[b][t] = (t - 1) % (o.document or o.context)
    end
  end
  return ms.tensor(ids, { dtype = ms.i64 }), ms.tensor(targets, { dtype = ms.i64 }),
    o.document and { positions = ms.tensor(positions, { dtype = ms.i64 }) } or nil
end

local function micro_batch(model, x, y, opts, parts)
  local t0 = ms.time()
  local loss = model(x, y, opts)
  local value = loss:item()
  local t1 = ms.time()
  loss:backward()
  parts.forward, parts.backward = parts.forward + t1 - t0, parts.backward + ms.time() - t1
  assert(value == value, 'the loss is not a number')
end

-- Seconds of one step: `micro` forwards and backwards, all but the last without communication.
local function step(model, opt, x, y, opts, micro)
  local state, parts, t0 = fsdp.get_state(model), { forward = 0, backward = 0 }, ms.time()
  for _ = 2, micro or 1 do
    state:no_sync(micro_batch, model, x, y, opts, parts)
  end
  micro_batch(model, x, y, opts, parts)
  local t1 = ms.time()
  state:clip_grad_norm_(1.0)
  opt:step()
  opt:zero_grad()
  parts.optimizer, parts.all = ms.time() - t1, ms.time() - t0
  return parts
end

-- Floating-point operations per second of matrix products on this rank, the best in about
-- `seconds`. The best shape depends on the processor; devices need large ones. Operands are zeros:
-- those of a GPU, which its power limits, run about a tenth faster than others.
local function matmul_peak(dtype, seconds)
  local shapes = ms.device.info().kind == 'cpu' and {
    { 1024, 1024, 1024 }, { 512, 512, 512 }, { 256, 256, 256 }, { 1024, 384, 1536 },
    { 2048, 768, 768 }, { 4096, 256, 512 },
  } or { { 2048, 2048, 2048 }, { 8192, 8192, 8192 } }
  local best, begun, turn = 0, ms.time(), 0
  repeat
    local m, k, n = unpack(shapes[turn % #shapes + 1])
    ms.scope(function()
      local a = ms.zeros({ m, k }, { dtype = dtype })
      local b = ms.zeros({ n, k }, { dtype = dtype }):t()
      local t = ms.time()
      ms.matmul(a, b):narrow(1, 1, 1):narrow(2, 1, 1):item() -- waits for it
      best = math.max(best, 2 * m * n * k / (ms.time() - t))
    end)
    turn = turn + 1
  until turn >= 2 * #shapes and ms.time() - begun > seconds
  return best
end

function rows.train(o)
  local world = ms.dist.init { ranks = o.ranks }
  ms.dist.barrier() -- all cores busy while the peak is measured
  local peak = o.peak == 0 and 0 or over_ranks(matmul_peak(o.dtype, 0.5), 'sum')
  local model, opt, flops = trained_model(o)
  if o.compile then
    model:compile { backend = o.compile }
  end
  local x, y, opts = batch(o, world.rank)
  for _ = 1, o.warmup do
    step(model, opt, x, y, opts, o.micro)
  end
  local parts = { forward = {}, backward = {}, optimizer = {}, all = {} }
  local waited = ms.dist.wait_seconds()
  for s = 1, o.steps do
    for name, seconds in pairs(step(model, opt, x, y, opts, o.micro)) do
      parts[name][s] = seconds
    end
  end
  waited = (ms.dist.wait_seconds() - waited) / o.steps
  local rss, exact = over_ranks(peak_rss(), 'max'), over_ranks(ms.memory().peak_total, 'max')
  local kinds = ms.memory().peak
  local state = over_ranks(kinds.parameter + kinds.gradient + kinds.optimizer + kinds.arena, 'max')
  local plan, device = fsdp.get_state(model):plan(), ms.device.info()
  local planned = plan.masters + plan.gradients + 2 * plan.per_state + plan.arena
  if world.rank == 0 then
    emit {
      tokens_per_s = world.world_size * (o.micro or 1) * o.rows * o.context
        / stats.median(parts.all),
      flops_per_token = flops, peak_flops = peak, rss_bytes = rss, exact_bytes = exact,
      kinds = kinds, state_bytes = state, planned_bytes = planned,
      device_bytes = device.total_bytes - device.free_bytes, forward = stats.median(parts.forward),
      backward = stats.median(parts.backward), optimizer = stats.median(parts.optimizer),
      waited = waited,
    }
  end
end

--- One step of the model, then a line: run.lua stops its clock when it reads it.
function rows.first_step(o)
  local world = ms.dist.init { ranks = o.ranks }
  local model, opt = trained_model(o)
  local x, y = batch(o, world.rank)
  step(model, opt, x, y)
  if world.rank == 0 then
    emit { done = true }
  end
end

-- Tokens per second of the first token (its prompt is computed in one forward) and of the others.
function rows.generate(o)
  ms.dist.init { ranks = 1 }
  local model = MODELS.llama(o):to(o.dtype)
  local prompts = batch(o, 0):tolist()
  local function seconds(n)
    return median_call(3, 1, function()
      model:generate(prompts, n, { temperature = 0, eos = false })
    end)
  end
  local first, all = seconds(1), seconds(o.new)
  emit {
    prompt_per_s = o.rows * o.context / first,
    tokens_per_s = o.rows * (o.new - 1) / (all - first), rss_bytes = peak_rss(),
    exact_bytes = ms.memory().peak_total,
  }
end

-- -- small things -------------------------------------------------------------------------------

function rows.all_reduce(o)
  local world = ms.dist.init { ranks = o.ranks }
  local result = {}
  for _, size in ipairs {
    { name = 'b8', bytes = 8, calls = 2000 },
    { name = 'kib64', bytes = 2 ^ 16, calls = 500 },
    { name = 'mib32', bytes = 2 ^ 25, calls = 3 },
  } do
    local t = ms.zeros(size.bytes / 4)
    ms.dist.barrier()
    result[size.name] = median_call(9, size.calls, function()
      ms.dist.all_reduce(t, 'sum')
    end)
  end
  if world.rank == 0 then
    emit(result)
  end
end

function rows.eager()
  ms.dist.init { ranks = 1 }
  local a, b = ms.randn(16):requires_grad_(), ms.randn(16)
  local function adds()
    for _ = 1, 100 do
      local _ = a + b
    end
  end
  local op = median_call(15, 100, function()
    ms.scope(adds)
  end) / 100

  local layer, x = nn.Linear(8, 8), ms.randn(8, 8)
  local function forward_backward()
    layer(x):sum():backward()
  end
  local linear = median_call(15, 500, function()
    ms.scope(forward_backward)
    layer:zero_grad()
  end)
  emit { op = op, linear = linear }
end

function rows.tiny_step(o)
  local world = ms.dist.init { ranks = o.ranks }
  local model = fsdp.FSDP(nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)), {
    auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Linear }, use_orig_params = true,
  })
  local opt = optim[o.optimizer or 'AdamW'](model:parameters(), { lr = 1e-3 })
  local x, y = ms.randn(8, 32), ms.randn(8, 32)
  local function train_step()
    ms.ops.mse_loss(model(x), y):backward()
    opt:step()
    opt:zero_grad()
  end
  local seconds = median_call(9, 200,
    o.compile and ms.compile_step(train_step, { backend = o.compile }) or train_step)
  if world.rank == 0 then
    emit { step = seconds, rss_bytes = peak_rss(), exact_bytes = ms.memory().peak_total }
  end
end

function rows.conv()
  ms.dist.init { ranks = 1 }
  local model = nn.Sequential(nn.Conv2d(3, 32, 3, { padding = 1 }),
    nn.Conv2d(32, 64, 3, { padding = 1 })):materialize()
  local x, g = ms.randn(32, 3, 32, 32), ms.randn(32, 64, 32, 32)
  local forward = median_call(9, 5, function()
    ms.scope(ms.no_grad, model, x)
  end)
  local both = median_call(9, 5, function()
    ms.scope(function() model(x):backward(g) end)
    model:zero_grad()
  end)
  emit { forward = forward, both = both }
end

-- bool (n, length), true past each row's length.
local function padding(n, length, length_of)
  local lengths = {}
  for i = 1, n do
    lengths[i] = { length_of(i) }
  end
  return ms.arange(length):unsqueeze(1):ge(ms.tensor(lengths, { dtype = ms.i64 }))
end

function rows.attention()
  ms.dist.init { ranks = 1 }
  local x = {}
  for i = 1, 4 do
    x[i] = ms.randn(8, 8, 512, 64):requires_grad_(i < 4)
  end
  local hidden = padding(8, 512, function(i) return 512 - 54 * (i - 1) end)
  local shown = hidden:eq(0):reshape(8, 1, 1, -1)
  local function attend()
    return ms.ops.scaled_dot_product_attention(x[1], x[2], x[3], { attn_mask = shown })
  end
  local forward = median_call(9, 3, function()
    ms.scope(ms.no_grad, attend)
  end)
  local both = median_call(9, 3, function()
    ms.scope(function() attend():backward(x[4]) end)
    for i = 1, 3 do
      x[i]:set_grad(nil)
    end
  end)
  emit { forward = forward, both = both }
end

function rows.transformer()
  ms.dist.init { ranks = 1 }
  local model = nn.Transformer {
    d_model = 256, nhead = 8, num_encoder_layers = 2, num_decoder_layers = 2,
    dim_feedforward = 1024, dropout = 0, batch_first = true,
  }:materialize()
  local opt = optim.AdamW(model:parameters(), { lr = 1e-3 })
  local src, tgt = ms.randn(16, 64, 256), ms.randn(16, 64, 256)
  local hidden = padding(16, 64, function(i) return 40 + i end)
  local seconds = median_call(9, 2, function()
    ms.scope(function()
      local y = model(src, tgt, {
        tgt_is_causal = true, src_key_padding_mask = hidden, tgt_key_padding_mask = hidden,
        memory_key_padding_mask = hidden,
      })
      ms.ops.mse_loss(y, tgt):backward()
    end)
    opt:step()
    opt:zero_grad()
  end)
  emit { step = seconds }
end

--- f32 products (m, k) x (k, n) as a Linear has them: forward (NT: b is n x k), gradient of the
--- input (NN), gradient of the weight (TN: a is k x m).
-- Returns nothing: the scope frees the result, whose memory the next product has.
local function product(a, b)
  ms.ops.matmul(a, b)
end

function rows.products(o)
  ms.dist.init { ranks = 1 }
  local of = { nt = {}, nn = {}, tn = {}, nn_nt = {}, tn_nt = {} }
  for i, shape in ipairs(require 'products') do
    local m, k, n = unpack(shape)
    local a, b = ms.randn(m, k), ms.randn(k, n)
    local a_t, b_t = ms.randn(k, m):t(), ms.randn(n, k):t()
    local seconds = { nt = {}, nn = {}, tn = {} }
    for s = 0, 7 do
      for form, of_form in pairs { nt = { a, b_t }, nn = { a, b }, tn = { a_t, b } } do
        local begin = ms.time()
        ms.scope(product, of_form[1], of_form[2])
        seconds[form][s] = ms.time() - begin
      end
    end
    for form, times in pairs(seconds) do
      of[form][i] = 2 * m * k * n / stats.median(times)
    end
    of.nn_nt[i], of.tn_nt[i] = of.nn[i] / of.nt[i], of.tn[i] / of.nt[i]
    if o.list then
      io.stderr:write(('%4d x %4d x %4d  %6.1f / %6.1f / %6.1f GFLOP/s\n'):format(m, k, n,
        of.nt[i] / 1e9, of.nn[i] / 1e9, of.tn[i] / 1e9))
    end
  end
  emit {
    nt = stats.median(of.nt), nn_nt = stats.median(of.nn_nt), tn_nt = stats.median(of.tn_nt),
    nn_worst = math.min(unpack(of.nn_nt)), tn_worst = math.min(unpack(of.tn_nt)),
  }
end

-- -- text ---------------------------------------------------------------------------------------

local ROOT = here .. '/..'

-- The pages of docs, cut at empty lines, again and again.
local function write_records(path, bytes)
  local pages = io.popen(("LC_ALL=C ls '%s'/docs/*.md | xargs cat"):format(ROOT))
  local lines = {}
  for part in (pages:read '*a' .. '\n\n'):gmatch '(.-)\n\n' do
    lines[#lines + 1] = json.encode { text = part } .. '\n'
  end
  pages:close()
  local all = table.concat(lines)
  local file = assert(io.open(path, 'w'))
  for _ = 1, math.ceil(bytes / #all) do
    assert(file:write(all))
  end
  file:close()
  return math.ceil(bytes / #all) * #all
end

--- Bytes of JSON lines that become tokens in a second, with a tokenizer of tests/fixtures.
function rows.tokenize(o)
  local folder = os.tmpname()
  os.remove(folder)
  assert(os.execute('mkdir ' .. folder) == 0)
  local fixture = assert(io.open(ROOT .. '/tests/fixtures/tokens.json'))
  local file = assert(io.open(folder .. '/tokenizer.json', 'w'))
  file:write(json.encode(json.decode(fixture:read '*a').cases[o.tokenizer].file))
  file:close()
  fixture:close()
  local bytes = write_records(folder .. '/text.jsonl', o.bytes)
  local begin = ms.time()
  local code = require('moonshard.tools.tokenize')({
    folder, folder .. '/text.jsonl', '--out=' .. folder .. '/out', '--eos=<|end|>', '--quiet',
    '--ranks=' .. o.ranks,
  }, o.ranks)
  local seconds = ms.time() - begin
  local tokens = ms.data.tokens(folder .. '/out'):numel()
  os.execute('rm -r ' .. folder)
  assert(code == 0)
  emit { bytes_per_s = bytes / seconds, tokens = tokens }
end

-- -- the command line ----------------------------------------------------------------------------

local name, o = arg[1], {}
for i = 2, #arg do
  local key, value = arg[i]:match('^([%w_]+)=(.*)$')
  o[key] = tonumber(value) or value
end
rows[name](o)
