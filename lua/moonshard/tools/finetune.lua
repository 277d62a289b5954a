--- `moonshard finetune FOLDER DATA...`: trains a model from a folder on files of examples, and
--- writes a folder that `transformers` loads, or an adapter that `peft` loads.

local flags = require 'moonshard.tools.flags'
local memory = require 'moonshard.tools.finetune_memory'
local ms = require 'moonshard'
local report = require 'moonshard.train.report'
local run = require 'moonshard.tools.finetune_run'

local count, from_zero = { whole = true, from = 1 }, { whole = true, from = 0 }

local FLAGS = {
  { 'out', 'finetuned', 'folder for the result, metrics.jsonl and checkpoints', { filled = true } },
  { 'lora', false, 'train low-rank adapters of all linear layers in blocks, not the weights' },
  { 'rank', 16, 'inner width of adapters', count },
  { 'alpha', 32, 'their scale is alpha / rank', { above = 0 } },
  { 'lora-dropout', 0, 'dropout probability of their input', { from = 0, below = 1 } },
  { 'merge', false, 'with --lora: write the merged model, too, into --out/merged' },
  { 'epochs', 3, 'passes over the data', { above = 0 } },
  { 'steps', 0, 'steps, in place of --epochs', from_zero },
  { 'context', 1024, "tokens of a row (at most the model's positions)", count },
  { 'batch', 16, 'rows of a step, over all ranks', count },
  { 'rows', 0, 'rows of a micro-batch (0: the most that --memory allows)', from_zero },
  { 'lr', 0, 'highest learning rate (0: 2e-4 with --lora, else 2e-5)', { from = 0 } },
  { 'warmup', 0.03, 'share of the steps with a linear warm-up; then a cosine to 0',
    { from = 0, below = 1 } },
  { 'weight-decay', 0, 'of AdamW', { from = 0 } },
  { 'clip', 1, 'largest norm of the gradients', { above = 0 } },
  { 'template', '', "chat format of messages (default: the folder's, if it is known)" },
  { 'learn', 'answers', "what has a loss: answers (completions) or all",
    { one_of = { 'answers', 'all' } } },
  { 'too-long', '', 'examples longer than --context: split, drop, truncate or error (default: '
    .. 'split for texts, else drop)', { one_of = { '', 'split', 'drop', 'truncate', 'error' } } },
  { 'no-pack', false, 'one example a row' },
  { 'validation', 0.05, 'share of the examples to validate on (0: none)', { from = 0, below = 1 } },
  { 'ranks', 0, 'processes on this host (0: one per core, at most 8)', from_zero },
  { 'dtype', 'auto', 'of the computation: bf16, f32, or auto (bf16 if the processor multiplies it)',
    { one_of = { 'auto', 'bf16', 'f32' } } },
  { 'save-dtype', 'auto', "of the saved weights: f32, bf16, f16, or auto (the folder's)",
    { one_of = { 'auto', 'f32', 'bf16', 'f16' } } },
  { 'checkpointing', 'auto', 'compute blocks again in the backward: on, off, or auto (if --memory '
    .. 'requires it)', { one_of = { 'auto', 'on', 'off' } } },
  { 'memory', '', 'most memory that all ranks may hold, as 8GiB (default: what this host has)' },
  { 'seed', 1, 'of the order, the split and new adapters', from_zero },
  { 'save', 0, 'steps between checkpoints (0: at the end and at a signal)', from_zero },
  { 'resume', false, 'continue the run in --out with its flags; --ranks and --memory may differ' },
  { 'log', 10, 'steps between lines if the output is not a terminal', count },
  { 'show', false, 'print what would be trained on, memory and time, and stop' },
  flags.device,
  { 'help', false, 'this text' },
}

local ABOUT = 'Fine-tunes a model of a folder on JSON lines of text, prompt and completion, or '
  .. 'messages; on text files (.txt); or on files of moonshard tokenize.'

local finetune = {}

local function fail(format, ...)
  ms.error('ValueError', 'finetune: ' .. format, ...)
end

local SIZES = { [''] = 1, k = 2 ^ 10, m = 2 ^ 20, g = 2 ^ 30, t = 2 ^ 40 }

-- Bytes of '8GiB', '512m', '1e9'.
local function bytes_of(text)
  local number, unit = text:lower():match '^([%d.e]+)%s*([kmgt]?)i?b?$'
  number = tonumber(number)
  return number and number > 0 and number * SIZES[unit]
    or fail("--memory wants a size such as 8GiB, got '%s'", text)
end

-- Tokens of a row: by default 1,024, or the model's positions if it has fewer.
local function context_of(o)
  local most = run.positions(o.folder)
  if o.context > most and o.given.context then
    fail('--context=%d, but the model of %s has %d positions', o.context, o.folder, most)
  end
  return math.min(o.context, most)
end

local function ranks_of(o)
  return o.ranks > 0 and o.ranks or math.min(ms.dist.info().cores, 8)
end

-- A resumed run keeps these of the flags that are not given again.
local KEPT = {
  'lora', 'rank', 'alpha', 'lora-dropout', 'epochs', 'steps', 'context', 'batch', 'lr', 'warmup',
  'weight-decay', 'clip', 'template', 'learn', 'too-long', 'no-pack', 'validation', 'dtype',
  'save-dtype', 'seed',
}

local function inherit(o)
  local path = o.resume and ms.checkpoint.latest(o.out .. '/checkpoints')
  local config = path and ms.checkpoint.read_meta(path).config or {}
  for _, name in ipairs(KEPT) do
    if not o.given[name] and config[name] ~= nil then
      o[name] = config[name]
    end
  end
  o.date = config.date
  if o.rows == 0 and config.rows and (o.batch / ranks_of(o)) % config.rows == 0 then
    o.rows = config.rows -- another cut would change the bits
  end
end

-- What checkpoints keep of a run.
local function config_of(o, set, plan)
  local config = { date = set.all.chat and set.all.chat.date, rows = plan.rows }
  for _, name in ipairs(KEPT) do
    config[name] = o[name]
  end
  return config
end

local function parsed(words)
  local o = flags.command(words, FLAGS, 'finetune FOLDER DATA... [flags]', ABOUT)
  if not o then
    return nil
  end
  inherit(o)
  o.folder, o.data = o.rest[1], { unpack(o.rest, 2) }
  if not o.data[1] then
    fail('expected a folder of a model and files of examples, got %s',
      o.folder and 'no data' or 'neither')
  end
  o.budget = o.memory ~= '' and bytes_of(o.memory) or nil
  o.context = context_of(o)
  o.lr = o.lr > 0 and o.lr or o.lora and 2e-4 or 2e-5
  o.ranks = ranks_of(o)
  if o.batch % o.ranks ~= 0 then
    fail('--batch=%d is not a multiple of %d ranks', o.batch, o.ranks)
  elseif o.rows > 0 and (o.batch / o.ranks) % o.rows ~= 0 then
    fail('--batch=%d is not a multiple of %d ranks x --rows=%d', o.batch, o.ranks, o.rows)
  elseif o.merge and not o.lora then
    fail('--merge needs --lora')
  end
  return o
end

local NOTES = {
  { 'no_target', 'dropped: nothing in them is learned' },
  { 'dropped', 'dropped: longer than the context' }, { 'truncated', 'truncated to the context' },
  { 'split', 'longer than the context, divided' },
  { 'two_bos', 'begin with two BOS tokens' }, { 'changed', 'change in encode and decode' },
}

local function print_data(o, set)
  local r = set.all:report()
  print(('data: %s examples, %s tokens, of which %s are learned; the longest has %s'):format(
    report.count(r.examples), report.count(r.tokens), report.count(r.targets),
    report.count(r.longest)))
  for _, note in ipairs(NOTES) do
    if r[note[1]] and r[note[1]] > 0 then
      print(('  %s of %s records %s'):format(report.count(r[note[1]]), report.count(r.records),
        note[2]))
    end
  end
  local chat = set.all.chat
  if chat then
    print(('chat format: %s (%s)'):format(chat.name,
      o.template ~= '' and 'given' or 'by the text of the template'))
    local id = set.all.tokenizer:id(chat.close)
    if memory.alone(function() return run.is_untrained(o.folder, id) end) then
      ms.warn('UserWarning', ("finetune: the embedding of '%s' is far smaller than others, so the "
        .. 'model was not trained with this chat format; adapters of the layers do not train it')
        :format(chat.close))
    end
  end
end

local KINDS = { 'parameter', 'gradient', 'optimizer', 'activation', 'arena', 'scratch' }

local function print_plan(o, plan)
  local at_most = o.budget and (' of %s'):format(report.bytes(o.budget)) or ''
  print(('plan: %d rank%s x %d micro-batch%s x %d row%s of %d tokens; checkpointing %s'):format(
    o.ranks, o.ranks > 1 and 's' or '', plan.micro_batches, plan.micro_batches > 1 and 'es' or '',
    plan.rows, plan.rows > 1 and 's' or '', o.context, plan.checkpointing and 'on' or 'off'))
  print(('memory: %s a rank, %s in all%s'):format(report.bytes(plan.peak),
    report.bytes(plan.total), at_most))
  local kinds = {}
  for _, kind in ipairs(KINDS) do
    kinds[#kinds + 1] = ('%s %s'):format(kind, report.bytes(plan.kinds[kind]))
  end
  print('  peaks by kind: ' .. table.concat(kinds, ', '))
  print(('steps: %d of %d rows; %d parameters, of which %d are trained'):format(plan.steps, o.batch,
    plan.parameters, plan.trained))
end

--- Run the command.
---@param words string[]  after `finetune`
---@return integer exit_code
function finetune.main(words)
  local o = parsed(words)
  if not o then
    return 0
  end
  local set = run.data(o)
  print_data(o, set)
  if o.show then
    print(set.all:show(2))
  end
  local plan = memory.plan(o, set)
  print_plan(o, plan)
  if o.show then
    local seconds = memory.seconds(o, plan)
    print(('time: about %.2f s a step, %s in all, at the speed of large products'):format(seconds,
      report.clock(plan.steps * seconds)))
    return 0
  end
  return run.train(o, set, plan, config_of(o, set, plan))
end

return finetune
