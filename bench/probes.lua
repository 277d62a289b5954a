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

local function field(v, name)
  return function(results, median)
    return median(results[v], name)
  end
end

local function speed(label, v)
  return { label = label, value = field(v, 'tokens_per_s'), format = text.rate, peak = v }
end

-- Of work whose operations per token are not those of training all parameters once.
local function plain_speed(label, v)
  return { label = label, value = field(v, 'tokens_per_s'), format = text.rate }
end

local function resident(label, v)
  return { label = label, value = field(v, 'rss_bytes'), format = text.mebibytes,
    less_is_better = true }
end

local function counted(label, v)
  return { label = label, value = field(v, 'exact_bytes'), format = text.mebibytes,
    less_is_better = true }
end

-- Masters, gradients, optimizer states and slots.
local function state(label, v)
  return { label = label, value = field(v, 'state_bytes'), format = text.mebibytes,
    less_is_better = true }
end

local function time(label, name, v)
  return { label = label, value = field(v or 1, name), format = text.seconds,
    less_is_better = true }
end

local function product(label, name, format)
  return { label = label, value = field(1, name), format = format or text.ratio }
end

-- Speed of one variant relative to another of the same side.
local function relative(label, v, to)
  return { label = label, format = text.ratio, value = function(results, median)
    local a, b = median(results[v], 'tokens_per_s'), median(results[to], 'tokens_per_s')
    return a and b and a / b
  end }
end

return {
  { name = 'default', about = 'GPT 4 x 256, T=128, 1,024 tokens a rank and step', row = 'train',
    runs = 5, torch_runs = 3,
    variants = { training('default', { warmup = 3, steps = 30 }) },
    rows = {
      speed('GPT 3.2M, FULL_SHARD', 1),
      resident('  resident peak a rank', 1),
      counted('  of it tensors, exactly', 1),
    } },
  { name = 'small', about = 'GPT 6 x 384, T=256, B=16 a rank; FULL_SHARD against NO_SHARD',
    row = 'train', runs = 5, torch_runs = 3,
    variants = {
      training('small', { warmup = 2, steps = 4 }),
      training('small', { warmup = 2, steps = 4, strategy = 'NO_SHARD' }),
    },
    rows = {
      speed('GPT 10.8M, FULL_SHARD', 1),
      speed('GPT 10.8M, NO_SHARD (PyTorch: DDP)', 2),
      relative('  FULL_SHARD / NO_SHARD', 1, 2),
      resident('  resident peak a rank, FULL_SHARD', 1),
      counted('  of it tensors, exactly', 1),
      resident('  resident peak a rank, NO_SHARD', 2),
      counted('  of it tensors, exactly', 2),
    } },
  { name = 'lora', about = 'the same with adapters of rank 8 alone, against training all of it',
    row = 'train', runs = 3, torch_runs = 3,
    variants = {
      training('small', { warmup = 2, steps = 4 }),
      training('small', { warmup = 2, steps = 4, lora = 8 }),
    },
    rows = {
      plain_speed('GPT 10.8M, all parameters', 1),
      plain_speed('GPT 10.8M, LoRA', 2),
      relative('  LoRA / all', 2, 1),
      resident('  resident peak a rank, all', 1),
      counted('  of it tensors, exactly', 1),
      state('  of these all but activations', 1),
      resident('  resident peak a rank, LoRA', 2),
      counted('  of it tensors, exactly', 2),
      state('  of these all but activations', 2),
    } },
  { name = 'recompute', about = 'the same with activation checkpointing of every block',
    row = 'train', runs = 3, torch_runs = 3,
    variants = {
      training('small', { warmup = 2, steps = 4 }),
      training('small', { warmup = 2, steps = 4, recompute = 1 }),
    },
    rows = {
      plain_speed('GPT 10.8M', 1),
      plain_speed('GPT 10.8M, checkpointed blocks', 2),
      relative('  checkpointed / not', 2, 1),
      resident('  resident peak a rank', 1),
      counted('  of it tensors, exactly', 1),
      resident('  resident peak a rank, checkpointed', 2),
      counted('  of it tensors, exactly', 2),
    } },
  { name = 'hybrid', about = 'GPT 4 x 256 on four ranks: 2 x 2 against FULL_SHARD', row = 'train',
    runs = 3, torch_runs = 3,
    variants = {
      training('default', { warmup = 3, steps = 10, ranks = 4 }),
      training('default', { warmup = 3, steps = 10, ranks = 4, strategy = 'HYBRID_SHARD' }),
    },
    rows = {
      plain_speed('GPT 3.2M, four ranks, FULL_SHARD', 1),
      plain_speed('GPT 3.2M, four ranks, HYBRID_SHARD 2 x 2', 2),
      relative('  HYBRID_SHARD / FULL_SHARD', 2, 1),
      resident('  resident peak a rank, FULL_SHARD', 1),
      counted('  of it tensors, exactly', 1),
      resident('  resident peak a rank, HYBRID_SHARD', 2),
      counted('  of it tensors, exactly', 2),
    } },
  { name = 'gpt2', about = 'GPT-2 124M, T=512, B=2 a rank', row = 'train', runs = 3, torch_runs = 3,
    variants = { training('gpt2', { warmup = 2, steps = 2 }) },
    rows = {
      speed('GPT-2 124M, FULL_SHARD', 1),
      resident('  resident peak a rank', 1),
      counted('  of it tensors, exactly', 1),
    } },
  { name = 'comm', about = 'all_reduce between two ranks (PyTorch: gloo)', row = 'all_reduce',
    runs = 3, torch_runs = 3,
    variants = { { args = { ranks = RANKS } } },
    rows = {
      time('all_reduce of 8 B', 'b8'),
      time('all_reduce of 64 KiB', 'kib64'),
      time('all_reduce of 32 MiB', 'mib32'),
    } },
  { name = 'eager', about = 'single operators, one rank', row = 'eager', runs = 3, torch_runs = 3,
    variants = { { args = { ranks = 1 } } },
    rows = {
      time('a + b with tape node, 16 elements', 'op'),
      time('Linear(8, 8) forward and backward', 'linear'),
    } },
  { name = 'tiny', about = 'a sharded step of two Linear(32, 32)', row = 'tiny_step',
    runs = 3, torch_runs = 3,
    variants = { { args = { ranks = RANKS } } },
    rows = { time('sharded step of two Linear(32, 32)', 'step') } },
  { name = 'products', about = 'f32 products of 27 shapes, one rank; MS_CPU_ISA=v3 for AVX2',
    row = 'products', runs = 3, torch_runs = 3,
    variants = { { args = { ranks = 1 } } },
    rows = {
      product('f32 products, b transposed (NT), median', 'nt', text.flops),
      product('  NN / NT, median', 'nn_nt'),
      product('  NN / NT, worst', 'nn_worst'),
      product('  TN / NT, median', 'tn_nt'),
      product('  TN / NT, worst', 'tn_worst'),
    } },
  { name = 'conv', about = 'Conv2d 3 -> 32 -> 64, 3 x 3, of 32 images of 32 x 32, f32, one rank',
    row = 'conv', runs = 3, torch_runs = 3,
    variants = { { args = { ranks = 1 } } },
    rows = {
      time('two Conv2d forward', 'forward'),
      time('two Conv2d forward and backward', 'both'),
    } },
  { name = 'attention', about = 'attention with a padding mask: 8 sequences of 134 to 512, 8 heads '
    .. 'of 64, f32, one rank', row = 'attention', runs = 3, torch_runs = 3,
    variants = { { args = { ranks = 1 } } },
    rows = {
      time('masked attention forward', 'forward'),
      time('masked attention forward and backward', 'both'),
    } },
  { name = 'transformer', about = 'nn.Transformer, 2 + 2 layers of width 256, 16 pairs of 64, '
    .. 'padding and causal masks, f32, one rank', row = 'transformer', runs = 3, torch_runs = 3,
    variants = { { args = { ranks = 1 } } },
    rows = { time('step of an encoder and a decoder', 'step') } },
  { name = 'start', about = 'process start to the end of the first step', row = 'first_step',
    runs = 5, torch_runs = 3,
    variants = {
      { args = with(shapes.default, { ranks = 1, dtype = DTYPE }) },
      { args = with(shapes.default, { ranks = 2, dtype = DTYPE }) },
    },
    rows = {
      time('start to first step, 1 rank', 'seconds', 1),
      time('start to first sharded step, 2 ranks', 'seconds', 2),
    } },
}
