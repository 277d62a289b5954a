--- The probes: what each one runs, how often, and the rows of the table it gives.
---
--- A probe runs one row of rows.lua and torch_rows.py with the arguments of each variant. A table
--- row reads a value from the results, one set per variant; `median(results[v], field)` is the
--- median over runs, nil when that side has none.

local text = require 'text'

local RANKS = 2
local DTYPE = 'bf16' -- of our training; run.lua chooses the rival's

-- B rows of T tokens per rank and step.
local shapes = {
  default = { layers = 4, width = 256, heads = 4, context = 128, rows = 8, vocab = 256 },
  small = { layers = 6, width = 384, heads = 6, context = 256, rows = 16, vocab = 256 },
  llama = {
    model = 'llama', layers = 12, width = 768, heads = 12, hidden = 2048, context = 512, rows = 2,
    vocab = 32000,
  },
  gpt2 = { layers = 12, width = 768, heads = 12, context = 512, rows = 2, vocab = 50257 },
}

local function with(args, more)
  local out = {}
  for _, from in ipairs { args, more } do
    for key, value in pairs(from) do
      out[key] = value
    end
  end
  return out
end

local function training(shape, more)
  return { args = with(with(shapes[shape], { ranks = RANKS, dtype = DTYPE }), more) }
end

-- Hosts are parts of this machine, connected over the loopback, as gloo always is.
local function on_two_hosts(variant)
  variant.environment = 'MS_TEST_HOSTS=2 '
  return variant
end

local function generation(rows)
  return { args = with(shapes.llama, { ranks = 1, dtype = DTYPE, context = 64, rows = rows,
    new = 64 }) }
end

-- Kinds of rows: the field of a result, how it is printed, whether less is better. A speed of
-- training all parameters is also shown as a part of the peak; a state is all but activations.
local KINDS = {
  speed = { 'tokens_per_s', text.rate, peak = true },
  prompt_speed = { 'prompt_per_s', text.rate },
  plain_speed = { 'tokens_per_s', text.rate },
  resident = { 'rss_bytes', text.mebibytes, less = true },
  counted = { 'exact_bytes', text.mebibytes, less = true },
  state = { 'state_bytes', text.mebibytes, less = true },
  time = { nil, text.seconds, less = true },
  flops = { nil, text.flops },
  throughput = { 'bytes_per_s', text.throughput },
  ratio = { nil, text.ratio },
}

-- A row of the table: of variant `v`, and of a field where the kind has none.
local function row(kind, label, v, name)
  local of = KINDS[kind]
  name = of[1] or name
  return { label = label, format = of[2], less_is_better = of.less, peak = of.peak and v,
    value = function(results, median) return median(results[v], name) end }
end

-- Speed of one variant relative to another of the same side.
local function relative(label, v, to)
  return { label = label, format = text.ratio, value = function(results, median)
    local a, b = median(results[v], 'tokens_per_s'), median(results[to], 'tokens_per_s')
    return a and b and a / b
  end }
end

-- Of variants in pairs: the wrapper, then fully_shard.
local function in_place_rows(sizes)
  local rows = {}
  for i, size in ipairs(sizes) do
    local name = ('GPT %s, fully_shard'):format(size)
    rows[#rows + 1] = row('speed', name, 2 * i)
    rows[#rows + 1] = relative('  fully_shard / FSDP', 2 * i, 2 * i - 1)
    rows[#rows + 1] = row('counted', '  tensors of a rank, exactly, FSDP', 2 * i - 1)
    rows[#rows + 1] = row('counted', '  tensors of a rank, exactly, fully_shard', 2 * i)
  end
  return rows
end

-- Eager, replay and fuse; PyTorch has eager and torch.compile.
local function compiled(eager)
  return eager, { args = with(eager.args, { compile = 'replay' }), ours_only = true },
    { args = with(eager.args, { compile = 'fuse' }) }
end

local function variants_of(...)
  local out = {}
  for _, eager in ipairs { ... } do
    out[#out + 1], out[#out + 2], out[#out + 3] = compiled(eager)
  end
  return out
end

-- Rows of the variants of one model, `at` its eager one.
local function compiled_rows(rows, model, at, kind, field)
  for i, mode in ipairs { 'eager', 'replay', 'fuse (PyTorch: torch.compile)' } do
    rows[#rows + 1] = row(kind, ('%s, %s'):format(model, mode), at + i - 1, field)
    rows[#rows + 1] = row('resident', '  resident peak a rank', at + i - 1)
    rows[#rows + 1] = row('counted', '  of it tensors, exactly', at + i - 1)
  end
  return rows
end

local function compiled_models(names)
  local rows = {}
  for i, name in ipairs(names) do
    compiled_rows(rows, name, 3 * i - 2, 'plain_speed')
  end
  return rows
end

return {
  { name = 'default', about = 'GPT 4 x 256, T=128, 1,024 tokens a rank and step', row = 'train',
    runs = 5,
    variants = { training('default', { warmup = 3, steps = 30 }) },
    rows = {
      row('speed', 'GPT 3.2M, FULL_SHARD', 1),
      row('resident', '  resident peak a rank', 1),
      row('counted', '  of it tensors, exactly', 1),
    } },
  { name = 'small', about = 'GPT 6 x 384, T=256, B=16 a rank; FULL_SHARD against NO_SHARD',
    row = 'train', runs = 5,
    variants = {
      training('small', { warmup = 2, steps = 4 }),
      training('small', { warmup = 2, steps = 4, strategy = 'NO_SHARD' }),
    },
    rows = {
      row('speed', 'GPT 10.8M, FULL_SHARD', 1),
      row('speed', 'GPT 10.8M, NO_SHARD (PyTorch: DDP)', 2),
      relative('  FULL_SHARD / NO_SHARD', 1, 2),
      row('resident', '  resident peak a rank, FULL_SHARD', 1),
      row('counted', '  of it tensors, exactly', 1),
      row('resident', '  resident peak a rank, NO_SHARD', 2),
      row('counted', '  of it tensors, exactly', 2),
    } },
  { name = 'lora', about = 'the same with adapters of rank 8 alone, against training all of it',
    row = 'train',
    variants = {
      training('small', { warmup = 2, steps = 4 }),
      training('small', { warmup = 2, steps = 4, lora = 8 }),
    },
    rows = {
      row('plain_speed', 'GPT 10.8M, all parameters', 1),
      row('plain_speed', 'GPT 10.8M, LoRA', 2),
      relative('  LoRA / all', 2, 1),
      row('resident', '  resident peak a rank, all', 1),
      row('counted', '  of it tensors, exactly', 1),
      row('state', '  of these all but activations', 1),
      row('resident', '  resident peak a rank, LoRA', 2),
      row('counted', '  of it tensors, exactly', 2),
      row('state', '  of these all but activations', 2),
    } },
  { name = 'recompute', about = 'the same with activation checkpointing of every block',
    row = 'train',
    variants = {
      training('small', { warmup = 2, steps = 4 }),
      training('small', { warmup = 2, steps = 4, recompute = 1 }),
    },
    rows = {
      row('plain_speed', 'GPT 10.8M', 1),
      row('plain_speed', 'GPT 10.8M, checkpointed blocks', 2),
      relative('  checkpointed / not', 2, 1),
      row('resident', '  resident peak a rank', 1),
      row('counted', '  of it tensors, exactly', 1),
      row('resident', '  resident peak a rank, checkpointed', 2),
      row('counted', '  of it tensors, exactly', 2),
    } },
  { name = 'hybrid', about = 'GPT 4 x 256 on four ranks: 2 x 2 against FULL_SHARD', row = 'train',
    variants = {
      training('default', { warmup = 3, steps = 10, ranks = 4 }),
      training('default', { warmup = 3, steps = 10, ranks = 4, strategy = 'HYBRID_SHARD' }),
    },
    rows = {
      row('plain_speed', 'GPT 3.2M, four ranks, FULL_SHARD', 1),
      row('plain_speed', 'GPT 3.2M, four ranks, HYBRID_SHARD 2 x 2', 2),
      relative('  HYBRID_SHARD / FULL_SHARD', 2, 1),
      row('resident', '  resident peak a rank, FULL_SHARD', 1),
      row('counted', '  of it tensors, exactly', 1),
      row('resident', '  resident peak a rank, HYBRID_SHARD', 2),
      row('counted', '  of it tensors, exactly', 2),
    } },
  { name = 'gpt2', about = 'GPT-2 124M, T=512, B=2 a rank', row = 'train',
    variants = { training('gpt2', { warmup = 2, steps = 2 }) },
    rows = {
      row('speed', 'GPT-2 124M, FULL_SHARD', 1),
      row('resident', '  resident peak a rank', 1),
      row('counted', '  of it tensors, exactly', 1),
    } },
  { name = 'hosts', about = 'GPT 10.8M and GPT-2 124M with a rank on each of two hosts, against '
    .. 'one host', row = 'train',
    variants = {
      training('small', { warmup = 2, steps = 4 }),
      on_two_hosts(training('small', { warmup = 2, steps = 4 })),
      training('gpt2', { warmup = 2, steps = 2 }),
      on_two_hosts(training('gpt2', { warmup = 2, steps = 2 })),
    },
    rows = {
      row('speed', 'GPT 10.8M, two hosts', 2),
      relative('  two hosts / one', 2, 1),
      row('speed', 'GPT-2 124M, two hosts', 4),
      relative('  two hosts / one', 4, 3),
    } },
  { name = 'llama_training', about = 'Llama 110M, T=512, B=2 a rank, fully_shard; PyTorch: '
    .. 'transformers', row = 'train', runs = 3,
    variants = {
      training('llama', { warmup = 1, steps = 2, api = 'fully_shard' }),
      training('llama', { warmup = 1, steps = 2, api = 'fully_shard', document = 128 }),
    },
    rows = {
      row('speed', 'Llama 110M', 1),
      row('resident', '  resident peak a rank', 1),
      row('counted', '  of it tensors, exactly', 1),
      row('plain_speed', 'Llama 110M, rows of four documents', 2),
      row('resident', '  resident peak a rank', 2),
      row('counted', '  of it tensors, exactly', 2),
    } },
  { name = 'generation', about = 'Llama 110M continues one and eight rows of 64 tokens, one rank',
    row = 'generate',
    variants = { generation(1), generation(8) },
    rows = {
      row('prompt_speed', 'Llama 110M, prompt of 64 tokens', 1),
      row('plain_speed', '  64 new tokens', 1),
      row('resident', '  resident peak', 1),
      row('counted', '  of it tensors, exactly', 1),
      row('prompt_speed', 'Llama 110M, eight prompts of 64 tokens', 2),
      row('plain_speed', '  64 new tokens each', 2),
      row('resident', '  resident peak', 2),
    } },
  { name = 'fully_shard', about = 'the three models sharded in place, against the wrapper',
    row = 'train', runs = 5,
    variants = {
      training('default', { warmup = 3, steps = 30 }),
      training('default', { warmup = 3, steps = 30, api = 'fully_shard' }),
      training('small', { warmup = 2, steps = 4 }),
      training('small', { warmup = 2, steps = 4, api = 'fully_shard' }),
      training('gpt2', { warmup = 2, steps = 2 }),
      training('gpt2', { warmup = 2, steps = 2, api = 'fully_shard' }),
    },
    rows = in_place_rows { '3.2M', '10.8M', '124M' } },
  { name = 'comm', about = 'all_reduce between two ranks (PyTorch: gloo)', row = 'all_reduce',
    variants = { { args = { ranks = RANKS } } },
    rows = {
      row('time', 'all_reduce of 8 B', 1, 'b8'),
      row('time', 'all_reduce of 64 KiB', 1, 'kib64'),
      row('time', 'all_reduce of 32 MiB', 1, 'mib32'),
    } },
  { name = 'eager', about = 'single operators, one rank', row = 'eager',
    variants = { { args = { ranks = 1 } } },
    rows = {
      row('time', 'a + b with tape node, 16 elements', 1, 'op'),
      row('time', 'Linear(8, 8) forward and backward', 1, 'linear'),
    } },
  { name = 'tiny', about = 'a sharded step of two Linear(32, 32)', row = 'tiny_step',
    variants = { { args = { ranks = RANKS } } },
    rows = { row('time', 'sharded step of two Linear(32, 32)', 1, 'step') } },
  { name = 'compile_step', about = 'a compiled sharded step of two Linear(32, 32) with SGD',
    row = 'tiny_step', runs = 5,
    variants = variants_of { args = { ranks = RANKS, optimizer = 'SGD' } },
    rows = compiled_rows({}, 'sharded step of two Linear(32, 32), SGD', 1, 'time', 'step') },
  { name = 'compile', about = 'the three models compiled, against eager', row = 'train',
    variants = variants_of(training('default', { warmup = 4, steps = 10, micro = 4 }),
      training('small', { warmup = 4, steps = 4 }), training('gpt2', { warmup = 4, steps = 2 })),
    rows = compiled_models { 'GPT 3.2M, 4 micro-batches', 'GPT 10.8M', 'GPT-2 124M' } },
  { name = 'products', about = 'f32 products of 27 shapes, one rank; MS_CPU_ISA=v3 for AVX2',
    row = 'products',
    variants = { { args = { ranks = 1 } } },
    rows = {
      row('flops', 'f32 products, b transposed (NT), median', 1, 'nt'),
      row('ratio', '  NN / NT, median', 1, 'nn_nt'),
      row('ratio', '  NN / NT, worst', 1, 'nn_worst'),
      row('ratio', '  TN / NT, median', 1, 'tn_nt'),
      row('ratio', '  TN / NT, worst', 1, 'tn_worst'),
    } },
  { name = 'conv', about = 'Conv2d 3 -> 32 -> 64, 3 x 3, of 32 images of 32 x 32, f32, one rank',
    row = 'conv',
    variants = { { args = { ranks = 1 } } },
    rows = {
      row('time', 'two Conv2d forward', 1, 'forward'),
      row('time', 'two Conv2d forward and backward', 1, 'both'),
    } },
  { name = 'attention', about = 'attention with a padding mask: 8 sequences of 134 to 512, 8 heads '
    .. 'of 64, f32, one rank', row = 'attention',
    variants = { { args = { ranks = 1 } } },
    rows = {
      row('time', 'masked attention forward', 1, 'forward'),
      row('time', 'masked attention forward and backward', 1, 'both'),
    } },
  { name = 'transformer', about = 'nn.Transformer, 2 + 2 layers of width 256, 16 pairs of 64, '
    .. 'padding and causal masks, f32, one rank', row = 'transformer',
    variants = { { args = { ranks = 1 } } },
    rows = { row('time', 'step of an encoder and a decoder', 1, 'step') } },
  { name = 'tokenize', about = '50 MB of JSON lines into a token file, beside encode_batch of the '
    .. 'library tokenizers, two cores', row = 'tokenize',
    variants = {
      { args = { ranks = RANKS, tokenizer = 'gpt2', bytes = 50000000 } },
      { args = { ranks = RANKS, tokenizer = 'qwen', bytes = 50000000 } },
    },
    rows = {
      row('throughput', 'tokenize, like GPT-2 (tokenizers)', 1),
      row('throughput', 'tokenize, like Qwen (tokenizers)', 2),
    } },
  { name = 'start', about = 'process start to the end of the first step', row = 'first_step',
    runs = 5,
    variants = {
      { args = with(shapes.default, { ranks = 1, dtype = DTYPE }) },
      { args = with(shapes.default, { ranks = 2, dtype = DTYPE }) },
    },
    rows = {
      row('time', 'start to first step, 1 rank', 1, 'seconds'),
      row('time', 'start to first sharded step, 2 ranks', 2, 'seconds'),
    } },
}
