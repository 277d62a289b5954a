--- Files of documents, read in pieces that several processes can encode.
---
--- Documents are whole files ('text'), lines ('lines'), or the field `text` of lines of JSON
--- ('jsonl'). A piece begins and ends at ends of lines. A piece of a text file is a part of a
--- document: its ids are those of the whole only for some tokenizers.

local errors = require 'moonshard.base.errors'
local json = require 'moonshard.base.json'
local utf8 = require('moonshard_ffi.tokenizer').utf8

local corpus = {}

corpus.FORMATS = { 'text', 'lines', 'jsonl' }

local BLOCK = 2 ^ 16

-- Where pieces may end, at the position capture. A text is cut before the end of a line, which a
-- tokenizer may join with the next line's.
local CUTS = { text = '%w()[\r\n]', lines = '\n()', jsonl = '\n()' }

local function opened(path)
  local file, reason = io.open(path, 'rb')
  return file or errors.raise('IOError', 'open %s', reason)
end

---@class ms.data.Corpus.Piece
---@field path string
---@field format 'text'|'lines'|'jsonl'
---@field first integer  byte of the file, from 0; the piece begins at the next cut
---@field past integer  it ends at the cut that follows this byte
---@field size integer  of the file

--- The pieces of a file.
---@param path string
---@param format 'auto'|'text'|'lines'|'jsonl'  'auto': jsonl by the name, else text
---@param bytes integer  about so many each
---@param cuts_texts boolean  may text files have several pieces?
---@return ms.data.Corpus.Piece[]
function corpus.pieces(path, format, bytes, cuts_texts)
  local file = opened(path)
  local size, reason = file:seek 'end'
  local readable = file:seek 'set' and (size == 0 or file:read(1))
  file:close()
  if not size or not readable or size >= 2 ^ 53 then
    errors.raise('IOError', "cannot read '%s': %s", path, reason or 'it is not a regular file')
  elseif format == 'auto' then
    format = path:find '%.jsonl$' and 'jsonl' or 'text'
  end
  local step = (format ~= 'text' or cuts_texts) and bytes or math.max(size, 1)
  local pieces = {}
  for first = 0, size - 1, step do
    pieces[#pieces + 1] = {
      path = path, format = format, first = first, past = math.min(first + step, size),
      size = size,
    }
  end
  return pieces
end

-- The first cut at or behind byte `at`, or the end of the file.
local function cut(file, piece, at)
  if at == 0 or at >= piece.size then
    return at
  end
  local from, text = at - 1, ''
  file:seek('set', from)
  repeat
    local more = file:read(BLOCK)
    text = text:sub(-1) .. (more or '')
    local found = text:match(CUTS[piece.format])
    if found then
      return from + found - 1
    end
    from = from + #text - 1 -- of the last byte
  until not more
  return piece.size
end

-- The number of the line that begins at byte `at`.
local function line_at(path, at)
  local file, number = opened(path), 1
  while at > 0 do
    local text = file:read(math.min(at, BLOCK)) or ''
    number, at = number + select(2, text:gsub('\n', '')), text == '' and 0 or at - #text
  end
  file:close()
  return number
end

local function text_of(line)
  local record = json.decode(line)
  if type(record) ~= 'table' or getmetatable(record) == json.array or record == json.null then
    errors.raise('FormatError', "the line is no object, expected one with the key 'text'")
  elseif type(record.text) ~= 'string' then
    errors.raise('FormatError', "'text' is %s, expected a string",
      record.text == nil and 'missing' or record.text == json.null and 'null'
        or 'a ' .. type(record.text))
  end
  return record.text
end

-- Call fn(text, true, true, n_invalid) for each line that is not empty. `done.lines`: the lines
-- before the one in work.
local function each_line(piece, text, done, fn)
  local at = 1
  while at <= #text do
    local last = text:find('\n', at, true) or #text + 1
    local line = text:sub(at, last - 1):gsub('\r$', '')
    if piece.format == 'lines' and line ~= '' then
      fn(line, true, true, 0)
    elseif piece.format == 'jsonl' and line:find '%S' then
      local valid, n_invalid = utf8(line)
      fn(text_of(valid), true, true, n_invalid)
    end
    at, done.lines = last + 1, done.lines + 1
  end
end

--- Call `fn(text, is_first, is_last, n_invalid)` for each document of a piece, or for the part of
--- one that it is. `n_invalid`: invalid parts of UTF-8 that U+FFFD replaced already. Errors get the
--- file and the line.
---@param piece ms.data.Corpus.Piece
---@param fn fun(text: string, is_first: boolean, is_last: boolean, n_invalid: integer)
function corpus.each(piece, fn)
  local file, done = opened(piece.path), { lines = 0 }
  local first, past = cut(file, piece, piece.first), cut(file, piece, piece.past)
  file:seek('set', first)
  local text = past > first and file:read(past - first) or ''
  file:close()
  if #text ~= past - first then
    errors.raise('IOError', "'%s' has fewer than the %.0f bytes that it had before", piece.path,
      piece.size)
  end
  if piece.format == 'text' then
    if text ~= '' then
      fn(text, first == 0, past == piece.size, 0)
    end
    return
  end
  local ok, err = pcall(each_line, piece, text, done, fn)
  if not ok and errors.is(err) then
    errors.raise(err.kind, '%s:%d: %s', piece.path, line_at(piece.path, first) + done.lines,
      err.message)
  elseif not ok then
    error(err, 0)
  end
end

return corpus
