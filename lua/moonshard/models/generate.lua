--- Generation of tokens by causal models. A model with a cache computes each token once; others
--- compute their rows again for each token.

local KeyValueCache = require 'moonshard.models.key_value_cache'
local arguments = require 'moonshard_ffi.arguments'
local create = require 'moonshard.base.create'
local data = require 'moonshard_ffi.data'
local errors = require 'moonshard.base.errors'
local evaluated = require 'moonshard.nn.evaluated'
local finally = require 'moonshard.base.finally'
local generation_config = require 'moonshard.models.generation_config'
local parameter = require 'moonshard_ffi.parameter'
local random = require 'moonshard.base.random'
local scope = require 'moonshard.base.scope'
local util = require 'moonshard.base.util'

---@class ms.models.GenerateOptions
---@field temperature? number  default 1; 0 selects the most likely token
---@field top_k? integer  sample only from the k most likely tokens (default: all)
---@field top_p? number  then from the most likely ones whose probabilities reach this, the one that
---  reaches it included (default 1: all)
---@field min_p? number  then from those at least this times as likely as the most likely one
---  (default 0: all)
---@field repetition_penalty? number  first, divide logits of the row's tokens by this, and multiply
---  negative ones (default 1)
---@field eos? integer|integer[]|false  tokens that end a row; they are returned too (default:
---  eos_token_id of generation_config.json, else of config.json). false: none
---@field seed? integer  for this call; equal seeds give equal text (default: random numbers
---  continue from call to call, starting at ms.manual_seed())
---@field on_token? fun(token: integer, row: integer)  called with each new token

local known = {
  temperature = 'number', top_k = 'whole', top_p = 'number', min_p = 'number',
  repetition_penalty = 'number', eos = 'any', seed = 'whole', on_token = 'fn',
}

---@class ms.models.GenerateRow
---@field tokens integer[]  of the prompt, and the new ones
---@field new integer[]
---@field is_done boolean

-- -- arguments -----------------------------------------------------------------------------------

local function is_count(value)
  return type(value) == 'number' and value >= 1 and value % 1 == 0
end

-- Checks other models that borrow GPT.generate, too.
local function check_can_continue(model)
  for _, name in ipairs { 'context', 'vocab' } do
    local value = model[name]
    if not is_count(value) then
      errors.raise('TypeError', "generate: field '%s' of %s is %s, expected a whole number above "
        .. "0: it continues a GPT, or a causal model with the fields 'context' (most tokens in a "
        .. "row) and 'vocab' that gives logits (1, T, vocab) for ids (1, T)", name, model._name,
        type(value) == 'number' and ('%.17g'):format(value) or arguments.noun(value))
    end
  end
end

-- The row of a prompt.
local function row_of(name, ids)
  if #arguments.array('generate', name, ids) == 0 then
    errors.raise('ValueError', 'generate begins with an array of at least one token, %s is empty',
      name)
  end
  for i, token in ipairs(ids) do
    arguments.whole('generate', ('%s[%d]'):format(name, i), token, nil, 0)
  end
  return { tokens = util.slice(ids, 1), new = {}, is_done = false }
end

local function rows_of(ids)
  arguments.array('generate', 'ids', ids)
  if type(ids[1]) ~= 'table' then
    return { row_of('ids', ids) }
  end
  local rows = {}
  for i, prompt in ipairs(ids) do
    rows[i] = row_of(('ids[%d]'):format(i), prompt)
  end
  return rows
end

-- -- the next logits -----------------------------------------------------------------------------

local function i64(rows)
  return create.tensor(rows, { dtype = 'i64' })
end

-- Rows are padded to multiples of this, so that few shapes occur. Attention is causal, so padding
-- does not affect earlier tokens.
local PAD = 32

-- Logits (V) of each row that is not done, from its last tokens.
local function recomputed(model, rows)
  local logits = {}
  for r, row in ipairs(rows) do
    if not row.is_done then
      local last = util.slice(row.tokens, math.max(1, #row.tokens - model.context + 1))
      local length = #last
      for i = length + 1, math.min(math.ceil(length / PAD) * PAD, model.context) do
        last[i] = 0
      end
      logits[r] = model(i64 { last }):narrow(2, length, 1):reshape(model.vocab)
    end
  end
  return logits
end

local function longest(rows)
  local most = 0
  for _, row in ipairs(rows) do
    most = math.max(most, #row.tokens)
  end
  return most
end

-- Tokens that the cache lacks, and their positions. Rows are padded on the left to one length.
local function pending(rows, past)
  local length, ids, positions, is_padded = longest(rows), {}, {}, false
  for r, row in ipairs(rows) do
    local pad = length - #row.tokens
    ids[r], positions[r], is_padded = {}, {}, is_padded or pad > 0
    for i = past + 1, length do
      ids[r][i - past] = row.tokens[i - pad] or 0
      positions[r][i - past] = math.max(0, i - pad - 1)
    end
  end
  return i64(ids), is_padded and i64(positions) or nil
end

-- Logits (V) of all rows, with what the cache has of earlier tokens.
local function continued(model, rows, cache)
  local ids, positions = pending(rows, cache.length)
  local out, logits = model(ids, nil, { positions = positions, cache = cache }), {}
  for r = 1, #rows do
    logits[r] = out:narrow(1, r, 1):reshape(model.vocab)
  end
  return logits
end

-- -- the loop ------------------------------------------------------------------------------------

-- Draw a token. `i`: number of the draw in this call.
local function drawn(logits, row, opts, i)
  local seed = opts.seed
  if seed == nil and opts.temperature > 0 then
    seed, i = parameter.seed_bits(), random.next_token()
  end
  return data.sample(logits, opts, row.tokens, seed or 0, i)
end

-- Add a token to each row that is not done. A row that is done repeats its last token for the
-- others' sake, since they share the cache.
local function step(model, rows, opts, ends, cache, i)
  local is_cached = cache and longest(rows) <= model.context
  local new = scope.run('generate', function()
    local logits = is_cached and continued(model, rows, cache) or recomputed(model, rows)
    local tokens = {}
    for r, row in ipairs(rows) do
      tokens[r] = row.is_done and row.tokens[#row.tokens]
        or drawn(logits[r], row, opts, (i - 1) * #rows + r)
    end
    return tokens
  end)
  local is_last = true
  for r, row in ipairs(rows) do
    row.tokens[#row.tokens + 1] = new[r]
    if not row.is_done then
      row.new[#row.new + 1] = new[r]
      row.is_done = ends[new[r]] or false
      if opts.on_token then
        opts.on_token(new[r], r)
      end
    end
    is_last = is_last and row.is_done
  end
  return is_last
end

local function run(model, rows, n, opts, ends, cache)
  for i = 1, n do
    if step(model, rows, opts, ends, cache, i) then
      break
    end
  end
end

--- Continue rows of tokens, as the methods generate() of models do.
---@param model ms.nn.Module
---@param ids integer[]|integer[][]
---@param n integer
---@param opts? ms.models.GenerateOptions
---@param is_cached boolean  forward takes the options `positions` and `cache`
---@return integer[]|integer[][]
return function(model, ids, n, opts, is_cached)
  check_can_continue(model)
  opts = util.merged({ temperature = 1 }, errors.options('generate', opts, known))
  local rows, ends = rows_of(ids), generation_config.ends(model, opts.eos)
  arguments.whole('generate', 'n', n, nil, 0)
  local cache = is_cached and KeyValueCache(math.min(model.context, longest(rows) + n)) or nil
  finally.run(function()
    if cache then
      cache:release()
    end
  end, nil, evaluated.run, model, run, model, rows, n, opts, ends, cache)
  local new = {}
  for r, row in ipairs(rows) do
    new[r] = row.new
  end
  return type(ids[1]) == 'table' and new or new[1]
end
