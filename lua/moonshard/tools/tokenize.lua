--- `moonshard tokenize`: files of text into one file of tokens.

local Tokenizer = require 'moonshard.data.tokenizer'
local corpus = require 'moonshard.data.corpus'
local errors = require 'moonshard.base.errors'
local flags = require 'moonshard.tools.flags'
local launch = require 'moonshard.dist.launch'
local machine = require 'moonshard.base.machine'
local ms = require 'moonshard'
local report = require 'moonshard.train.report'
local tokenize = require 'moonshard.data.tokenize'

local USAGE = [[
usage: moonshard tokenize TOKENIZER FILE... --out=PATH [flags]

Write one file of tokens, which ms.data.tokens and ms.data.Loader read, from files of text.
TOKENIZER is a tokenizer.json or a folder that has one.

  --out=PATH     the file to write; it is replaced when all is encoded
  --format=auto  text: a file is a document; lines: a line is one; jsonl: the field "text" of a line
                 is one; auto: jsonl for names that end so, else text
  --dtype=auto   u16 or u32; auto: u16 if all ids of the tokenizer fit
  --eos=TOKEN    end-of-text token after each document; default: eos_token of the folder's
                 tokenizer_config.json
  --no-eos       write none
  --quiet        print nothing but errors
  --ranks=N      processes, 1 to 128; default: one per core, at most 8

Documents begin with the tokens that the tokenizer writes before a text (BOS). Empty lines are no
documents. Each maximal invalid part of UTF-8 becomes U+FFFD and is counted.
]]

local FORMATS = { 'auto', unpack(corpus.FORMATS) }

local SPEC = {
  { 'out', '', '', { filled = true } },
  { 'format', 'auto', '', { one_of = FORMATS } },
  { 'dtype', 'auto', '', { one_of = { 'auto', 'u16', 'u32' } } },
  { 'eos', '', '', { filled = true } },
  { 'no-eos', false, '' },
  { 'quiet', false, '' },
  { 'ranks', 0, '', { whole = true, from = 1, below = 129 } },
  { 'help', false, '' },
}

local function options(words)
  local o, mistake = flags.parse(words, SPEC)
  if not o then
    errors.raise('ValueError', 'tokenize: %s', mistake)
  elseif o.help then
    return o
  end
  mistake = #o.rest < 2 and 'expected a tokenizer and one or more files'
    or o.out == '' and 'no --out=PATH given'
    or o['no-eos'] and o.eos ~= '' and '--eos and --no-eos exclude each other'
  if mistake then
    errors.raise('ValueError', 'tokenize: %s (moonshard tokenize --help)', mistake)
  end
  return o
end

-- Shows the progress of rank 0: the others have as many pieces, within one.
local function progress_of(plan, ranks)
  local n = #plan.pieces
  local shown = report.new {
    unit = 'piece', first_step = 0, total = n, terminal = machine.is_terminal(),
    every = math.ceil(n / 10),
  }
  local begin = ms.time()
  return function(i, tokens)
    local seconds = ms.time() - begin
    shown:step {
      step = i, tokens_per_s = ranks * tokens / seconds, eta = seconds * (n - i) / i,
    }
  end
end

local function no_progress()
end

local function print_counts(plan, counts, seconds)
  local lines = {
    { 'file', ('%s, tokens of %s'):format(plan.out, plan.dtype) },
    { 'documents', report.count(counts.documents) },
    { 'tokens', report.count(counts.tokens) },
    { 'bytes per token', ('%.3f'):format(counts.bytes / counts.tokens) },
    { 'invalid UTF-8', report.count(counts.n_invalid) .. ' parts, read as U+FFFD' },
    { 'seconds', ('%.1f (%.1f MB/s)'):format(seconds, counts.bytes / seconds / 1e6) },
  }
  for _, line in ipairs(lines) do
    print(('%-16s %s'):format(line[1], line[2]))
  end
end

--- Run the command.
---@param words string[]
---@param cores integer
---@return integer exit_code
return function(words, cores)
  local o = options(words)
  if o.help then
    io.stdout:write(USAGE)
    return 0
  end
  local begin = ms.time()
  local eos = o.eos ~= '' and o.eos or nil
  if o['no-eos'] then
    eos = false
  end
  local plan = tokenize.plan {
    tokenizer = Tokenizer(o.rest[1]), files = { unpack(o.rest, 2) }, out = o.out,
    format = o.format, dtype = o.dtype, eos = eos,
  }
  local ranks = o.ranks > 0 and o.ranks or math.min(cores, 8)
  ranks = math.max(1, math.min(ranks, #plan.pieces))
  local ok, err = pcall(launch.spawn, ranks, function(rank)
    local prints = rank == 0 and not o.quiet
    local counts = tokenize.run(plan, rank, ranks,
      prints and progress_of(plan, ranks) or no_progress)
    if prints then
      print_counts(plan, counts, ms.time() - begin)
    end
  end)
  tokenize.clean(plan, ranks)
  if ok then
    return 0
  end
  -- a rank's error about a file, without the traceback
  local message = errors.is(err) and err.message:match '^(.-%u%l+Error: .-)\nstack traceback'
  return message and errors.raise(err.kind, '%s', message) or error(err, 0)
end
