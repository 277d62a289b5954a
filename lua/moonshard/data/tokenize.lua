--- Encoding files into one file of tokens, on several ranks. The result does not depend on their
--- number.
---
--- Rank r encodes the pieces r, r + n, r + 2n, ... into a file of its own. When all have counted
--- their tokens, each rank copies its pieces to their places in the result.

local Column = require 'moonshard.data.column'
local TokenFile = require 'moonshard.data.token_file'
local corpus = require 'moonshard.data.corpus'
local create = require 'moonshard.base.create'
local errors = require 'moonshard.base.errors'

local tokenize = {}

local PIECE = 2 ^ 20 -- bytes

---@class ms.data.tokenize.Options
---@field tokenizer ms.data.Tokenizer
---@field files string[]
---@field out string
---@field format 'auto'|'text'|'lines'|'jsonl'
---@field dtype 'auto'|'u16'|'u32'
---@field eos? string|false  end-of-text token; false: none is written
---@field piece_bytes? integer

---@class ms.data.tokenize.Counts
---@field tokens integer
---@field documents integer
---@field bytes integer  of text
---@field n_invalid integer  invalid parts of UTF-8
local COUNTS = { 'tokens', 'documents', 'bytes', 'n_invalid' }

--- The work to do, before ranks start.
---@param opts ms.data.tokenize.Options
---@return table plan
function tokenize.plan(opts)
  local tok = opts.tokenizer
  local fits = tok:vocab_size() <= 2 ^ 16
  local dtype = opts.dtype == 'auto' and (fits and 'u16' or 'u32') or opts.dtype
  if dtype == 'u16' and not fits then
    errors.raise('ValueError', 'tokenize: the tokenizer has %d ids, expected at most 65536 for '
      .. 'u16; give dtype u32', tok:vocab_size())
  end
  local plan = { tokenizer = tok, out = opts.out, dtype = dtype, pieces = {}, before = {} }
  plan.before, plan.eos = tok:_ends('tokenize', opts.eos)
  local cuts_texts = tok:_cuts_lines()
  for _, path in ipairs(opts.files) do
    for _, piece in ipairs(corpus.pieces(path, opts.format, opts.piece_bytes or PIECE,
      cuts_texts)) do
      plan.pieces[#plan.pieces + 1] = piece
    end
  end
  return plan
end

local function opened(path, mode)
  local file, reason = io.open(path, mode)
  return file or errors.raise('IOError', 'open %s', reason)
end

local function write(file, path, bytes)
  local ok, reason = file:write(bytes)
  if not ok then
    errors.raise('IOError', 'write %s: %s', path, reason)
  end
end

local function closed(file, path)
  local ok, reason = file:close()
  if not ok then
    errors.raise('IOError', 'close %s: %s', path, reason)
  end
end

-- Append the tokens of a piece to `ids`.
---@return ms.data.tokenize.Counts
local function encode(plan, piece, ids)
  local counts = { documents = 0, bytes = 0, n_invalid = 0 }
  corpus.each(piece, function(text, is_first, is_last, n_invalid)
    if is_first then
      for _, id in ipairs(plan.before) do
        ids:push(id)
      end
    end
    local found, n, more_invalid = plan.tokenizer:_encoded(text, true)
    ids:convert(found, n)
    if is_last then
      counts.documents = counts.documents + 1
      if plan.eos and (n == 0 or found[n - 1] ~= plan.eos) then
        ids:push(plan.eos)
      end
    end
    counts.bytes, counts.n_invalid = counts.bytes + #text,
      counts.n_invalid + n_invalid + more_invalid
  end)
  counts.tokens = ids.n
  return counts
end

-- Encode the pieces of a rank into a file. Rows of other ranks' pieces are zeros.
local function encode_share(plan, rank, n_ranks, path, progress)
  local ids, rows, tokens = Column(plan.dtype == 'u16' and 'uint16_t' or 'uint32_t'), {}, 0
  local file = opened(path, 'wb')
  for i, piece in ipairs(plan.pieces) do
    rows[i] = { 0, 0, 0, 0 }
    if (i - 1) % n_ranks == rank then
      ids.n = 0
      local counts = encode(plan, piece, ids)
      write(file, path, ids:bytes())
      tokens = tokens + ids.n
      for k, name in ipairs(COUNTS) do
        rows[i][k] = counts[name]
      end
    end
    progress(i, tokens)
  end
  closed(file, path)
  return rows
end

local function copy(from, from_path, to, to_path, n)
  while n > 0 do
    local bytes = from:read(math.min(n, PIECE))
    if not bytes then
      errors.raise('IOError', "'%s' is shorter than what was written", from_path)
    end
    write(to, to_path, bytes)
    n = n - #bytes
  end
end

-- Copy the pieces of a rank to their places.
local function copy_share(plan, rank, n_ranks, path, rows, header)
  local width, at = plan.dtype == 'u16' and 2 or 4, #header
  local target = plan.out .. '.tmp'
  local from, to = opened(path, 'rb'), opened(target, 'r+b')
  for i, row in ipairs(rows) do
    if (i - 1) % n_ranks == rank then
      to:seek('set', at)
      copy(from, path, to, target, width * row[1])
    end
    at = at + width * row[1]
  end
  from:close()
  closed(to, target)
end

--- Encode the share of this rank, with the others of a group. The file is complete when all return.
---@param plan table  of plan()
---@param rank integer
---@param n_ranks integer
---@param progress fun(i: integer, tokens: integer)  called after each piece of the plan, with the
---  tokens of this rank
---@return ms.data.tokenize.Counts
function tokenize.run(plan, rank, n_ranks, progress)
  local collectives = require 'moonshard.dist'
  local path, target = ('%s.tmp.%d'):format(plan.out, rank), plan.out .. '.tmp'
  local rows = encode_share(plan, rank, n_ranks, path, progress)
  local totals = { tokens = 0, documents = 0, bytes = 0, n_invalid = 0 }
  if #rows > 0 then
    rows = collectives.all_reduce(create.tensor(rows, { dtype = 'i64' }), 'sum'):totable()
  end
  for _, row in ipairs(rows) do
    for k, name in ipairs(COUNTS) do
      totals[name] = totals[name] + row[k]
    end
  end
  if totals.tokens == 0 then
    errors.raise('ValueError', 'tokenize: the files have no documents')
  end
  local header = TokenFile._header_of(plan.dtype, totals.tokens)
  if rank == 0 then
    local file = opened(target, 'wb')
    write(file, target, header)
    closed(file, target)
  end
  collectives.barrier()
  copy_share(plan, rank, n_ranks, path, rows, header)
  collectives.barrier()
  if rank == 0 then
    local ok, reason = os.rename(target, plan.out)
    if not ok then
      errors.raise('IOError', 'rename %s', reason)
    end
  end
  return totals
end

--- Remove the temporary files, also those of ranks that failed.
---@param plan table
---@param n_ranks integer
function tokenize.clean(plan, n_ranks)
  for rank = 0, n_ranks - 1 do
    os.remove(('%s.tmp.%d'):format(plan.out, rank))
  end
  os.remove(plan.out .. '.tmp')
end

return tokenize
