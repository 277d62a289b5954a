--- Examples for training, of JSON lines: texts, prompts with completions, or conversations; of text
--- files; or of token files as `moonshard tokenize` writes them.
---
--- The kind of a file's records follows from their keys:
---   { "text": "..." }                        all of it is learned
---   { "prompt": "...", "completion": "..." } the completion is learned
---   { "messages": [{ "role": "user", "content": "..." }, ...] }  the answers are learned
---
--- Ids are made from segments of text, so which tokens are learned is known, not searched. A text
--- and a completion end with the end-of-text token, an answer with the format's end-of-turn token.

local Column = require 'moonshard.data.column'
local Documents = require 'moonshard.data.documents'
local TokenFile = require 'moonshard.data.token_file'
local Tokenizer = require 'moonshard.data.tokenizer'
local arguments = require 'moonshard_ffi.arguments'
local chats = require 'moonshard.data.chat'
local class = require 'moonshard.base.class'
local errors = require 'moonshard.base.errors'
local json = require 'moonshard.base.json'
local runtime = require 'moonshard_ffi.data'
local utf8 = require('moonshard_ffi.tokenizer').utf8
local util = require 'moonshard.base.util'

---@class ms.data.Examples
---@field context integer
---@field tokenizer ms.data.Tokenizer
---@field chat? ms.data.Chat  of messages
---@overload fun(opts: ms.data.Examples.Options): ms.data.Examples
local Examples = class('data.Examples')

---@class ms.data.Examples.Options
---@field path string|string[]  files with records of one kind: JSON lines; a text, if the name
---  ends in .txt, which is one document; or tokens, if the file has the header of `moonshard
---  tokenize` or its name ends in .u16 or .u32: documents end with the end-of-text token
---@field tokenizer ms.data.Tokenizer|string  or its path
---@field context integer  T: most tokens of a row. An example may have T + 1, as the last one is
---  only a target
---@field template? string|ms.data.Chat|{ name?: string, date?: string }  chat format of messages,
---  see data.chat() (default: that of the tokenizer's folder)
---@field learn? 'answers'|'all'  'all': prompts and messages of users, too (default 'answers')
---@field too_long? 'split'|'drop'|'truncate'|'error'  examples longer than T + 1. 'split' makes
---  examples of T + 1 tokens, each of which begins with the last token of the one before, so that
---  no target is lost (default: 'split' for texts, 'drop' for other kinds)
---@field eos? string  the end-of-text token (default: eos_token of tokenizer_config.json beside
---  the tokenizer)

-- -- records -------------------------------------------------------------------------------------

-- Append a text to the example that is being made.
local function add_text(self, text, learned, parse_special)
  self._text[#self._text + 1] = text
  local ids, n = self.tokenizer:_encoded(text, parse_special)
  self._ids:extend(ids, n)
  self._marks:fill((learned or self.learn == 'all') and 1 or 0, n)
  self._text_end = self._ids.n
end

local function add_id(self, id, learned)
  self._ids:push(id)
  self._marks:push((learned or self.learn == 'all') and 1 or 0)
end

local function start_text(self)
  self._before, self._eos = self.tokenizer:_ends(self._name, self._opts.eos)
  self._bos = self._before[#self._before]
end

local function begin_text(self)
  for _, id in ipairs(self._before) do
    add_id(self, id, true)
  end
end

local function end_text(self)
  local ids = self._ids
  if ids.n == 0 or ids.data[ids.n - 1] ~= self._eos then
    add_id(self, self._eos, true)
  end
end

local function start_messages(self)
  local template, tok = self._opts.template, self.tokenizer
  if type(template) ~= 'table' then
    template = { name = template }
  end
  self.chat = util.is(template, chats.Chat) and template
    or chats.chat(template.name or tok:_folder(), { date = template.date })
  for _, token in ipairs(self.chat:_tokens()) do
    if not tok:id(token) then
      errors.raise('ValueError', "%s: the tokenizer has no token '%s' of chat format '%s'; add it "
        .. 'to the tokenizer, or give another template', self._name, token, self.chat.name)
    end
  end
  self._bos = self.chat.bos and tok:id(self.chat.bos)
end

---@class ms.data.Examples.Kind
---@field keys string[]
---@field start fun(self: ms.data.Examples)  before the first record
---@field encode fun(self: ms.data.Examples, record: table)
---@field too_long 'split'|'drop'

-- In the order of precedence in messages.
---@type ms.data.Examples.Kind[]
local KINDS = {
  {
    keys = { 'text' }, too_long = 'split', start = start_text,
    encode = function(self, record)
      begin_text(self)
      add_text(self, record.text, true, true)
      end_text(self)
    end,
  }, {
    keys = { 'prompt', 'completion' }, too_long = 'drop', start = start_text,
    encode = function(self, record)
      begin_text(self)
      add_text(self, record.prompt, false, true)
      add_text(self, record.completion, true, true)
      end_text(self)
    end,
  }, {
    keys = { 'messages' }, too_long = 'drop', start = start_messages,
    encode = function(self, record)
      for _, segment in ipairs(self.chat:segments(record.messages)) do
        add_text(self, segment.text, segment.learned, segment.special)
      end
    end,
  },
}

local function named(kind)
  return "'" .. table.concat(kind.keys, "' and '") .. "'"
end

local function bad(where, text, ...)
  errors.raise('FormatError', '%s: ' .. text, where, ...)
end

local function has(record, kind)
  for _, key in ipairs(kind.keys) do
    if record[key] == nil then
      return false
    end
  end
  return true
end

local function kind_of(record, where)
  local found
  for _, kind in ipairs(KINDS) do
    if has(record, kind) then
      if found then
        bad(where, 'the record has %s and %s, expected one of them', named(found), named(kind))
      end
      found = kind
    end
  end
  return found
    or bad(where, "the record has none of the keys 'text', 'prompt' and 'completion', 'messages'")
end

-- All records have the kind of the first one.
local function use_kind(self, kind, where)
  if self._kind and self._kind ~= kind then
    bad(where, 'the record has %s, expected %s as in the first record', named(kind),
      named(self._kind))
  elseif not self._kind then
    self._kind = kind
    kind.start(self)
  end
end

local function record_of(line, where)
  local record = json.decode(line, where)
  if type(record) ~= 'table' or record == json.null or getmetatable(record) == json.array then
    bad(where, 'the line is no object, expected one with text, prompt and completion, or messages')
  end
  local kind = kind_of(record, where)
  for _, key in ipairs(kind.keys) do
    local expected = key == 'messages' and 'table' or 'string'
    local found = record[key] == json.null and 'null' or type(record[key])
    if found ~= expected then
      bad(where, "'%s' is a %s, expected a %s", key, found,
        key == 'messages' and 'list of messages' or 'string')
    end
  end
  return record, kind
end

-- Encode a record into _ids and _marks.
local function encode(self, record, where)
  self._ids.n, self._marks.n, self._text = 0, 0, {}
  local ok, err = pcall(self._kind.encode, self, record)
  if not ok and errors.is(err) and (err.kind == 'ValueError' or err.kind == 'TypeError') then
    bad(where, '%s', err.message)
  elseif not ok then
    error(err, 0)
  end
end

-- -- reading -------------------------------------------------------------------------------------

-- Does decoding return the text of the example? Tokens that were added around it are no text.
local function round_trips(self)
  local before = self._before and #self._before or 0
  local decoded = self.tokenizer:_decoded(self._ids.data + before, self._text_end - before)
  return decoded == table.concat(self._text)
end

-- Count an event, and remember where it was seen first.
local function count(self, name, where)
  self._counts[name] = (self._counts[name] or 0) + 1
  self._seen[name] = self._seen[name] or where
end

-- Append the tokens [first, first + n) as an example.
local function keep(self, first, n)
  if not self.documents:append(self._ids.data + first, self._marks.data + first, n,
    self._counts.records) then
    count(self, 'no_target')
  end
end

local function keep_all(self, where)
  local n, most = self._ids.n, self.context + 1
  self._counts.longest = math.max(self._counts.longest, n)
  if n <= most then
    return keep(self, 0, n)
  end
  local how = self._opts.too_long or self._kind.too_long
  if how == 'error' then
    errors.raise('ValueError', "%s: the example has %d tokens, expected at most %d for a context "
      .. "of %d; give a larger context, or too_long = 'drop', 'truncate' or 'split'", where, n,
      most, self.context)
  end
  count(self, how, where)
  if how == 'truncate' then
    keep(self, 0, most)
  elseif how == 'split' then
    for first = 0, n - 2, self.context do
      keep(self, first, math.min(most, n - first))
    end
  end
end

local function read_record(self, record, kind, where)
  use_kind(self, kind, where)
  self._counts.records = self._counts.records + 1
  encode(self, record, where)
  local ids = self._ids
  if self._bos and ids.n > 1 and ids.data[0] == self._bos and ids.data[1] == self._bos then
    count(self, 'two_bos', where)
  end
  if not round_trips(self) then
    count(self, 'changed', where)
  end
  keep_all(self, where)
end

local function valid_utf8(self, text)
  local valid, n_invalid = utf8(text)
  self._counts.n_invalid = self._counts.n_invalid + n_invalid
  return valid
end

local TEXT = KINDS[1]

local function read_text(self, path, file)
  local text = valid_utf8(self, file:read '*a')
  if text ~= '' then
    read_record(self, { text = text }, TEXT, path)
  end
end

local function read_lines(self, path, file)
  local number = 0
  for line in file:lines() do
    number = number + 1
    if line:find '%S' then
      local where = ('%s:%d'):format(path, number)
      local record, kind = record_of(valid_utf8(self, line), where)
      read_record(self, record, kind, where)
    end
  end
end

-- Documents with their BOS and end-of-text tokens.
local function read_tokens(self, path, tokens)
  use_kind(self, TEXT, path)
  local most, first = self.tokenizer:vocab_size(), 0
  for i = 0, tokens.n - 1 do
    local id = tokens.data[i]
    if id >= most then
      bad(path, 'token %d is %d, expected ids below %d, those of the tokenizer', i + 1, id, most)
    elseif id == self._eos or i == tokens.n - 1 then
      local n = i + 1 - first
      self._ids.n, self._marks.n = 0, 0
      self._ids:convert(tokens.data + first, n)
      self._marks:fill(1, n)
      self._counts.records, first = self._counts.records + 1, i + 1
      keep_all(self, ('%s: document %d'):format(path, self._counts.records))
    end
  end
end

local function read_file(self, path)
  local file, reason = io.open(arguments.text(self._name, 'path', path), 'rb')
  if not file then
    errors.raise('IOError', 'open %s', reason)
  end
  local ok, err = pcall(function()
    local tokens = TokenFile._read(path, file)
    if tokens then
      read_tokens(self, path, tokens)
    elseif path:find '%.txt$' then
      read_text(self, path, file)
    else
      read_lines(self, path, file)
    end
  end)
  file:close()
  if not ok then
    error(err, 0)
  end
end

local function warn(self)
  local counts, seen = self._counts, self._seen
  local longer = counts.drop or counts.truncate
  if longer then
    errors.warn('UserWarning', ("%s: %d of %d examples have more than %d tokens (first: %s; the "
      .. "longest: %d) and were %s; give a larger context or another 'too_long'"):format(
      self._name, longer, counts.records, self.context + 1, seen.drop or seen.truncate,
      counts.longest, counts.drop and 'dropped' or 'truncated'))
  end
  if counts.two_bos then
    errors.warn('UserWarning', ("%s: %d examples begin with two tokens '%s' (first: %s): the "
      .. 'tokenizer adds it, and the text has it'):format(self._name, counts.two_bos,
      self.tokenizer:token(self._bos), seen.two_bos))
  end
end

---@param opts ms.data.Examples.Options
function Examples:init(opts)
  opts = errors.options(self._name, opts, {
    path = 'any', tokenizer = 'any', context = 'whole', template = 'any', eos = 'text',
    learn = { 'answers', 'all' }, too_long = { 'split', 'drop', 'truncate', 'error' },
  })
  self._opts, self.learn = opts, opts.learn or 'answers'
  self.context = arguments.whole(self._name, 'context', opts.context, nil, 1)
  self.tokenizer = type(opts.tokenizer) == 'string' and Tokenizer(opts.tokenizer)
    or opts.tokenizer
  if not util.is(self.tokenizer, Tokenizer) then
    arguments.refuse(self._name, 'tokenizer', opts.tokenizer, 'a data.Tokenizer or its path')
  elseif type(opts.template) ~= 'string' and type(opts.template) ~= 'table'
    and opts.template ~= nil then
    arguments.refuse(self._name, 'template', opts.template,
      'a data.Chat, its name, or { name = ..., date = ... }')
  elseif type(opts.template) == 'table' and not util.is(opts.template, chats.Chat) then
    errors.options(self._name .. ': template', opts.template, { name = 'text', date = 'text' })
  end
  self.documents, self._ids, self._marks = Documents(), Column 'int32_t', Column 'uint8_t'
  self._counts, self._seen = { records = 0, longest = 0, n_invalid = 0 }, {}
  local paths = type(opts.path) == 'string' and { opts.path } or opts.path
  for _, path in ipairs(arguments.array(self._name, 'path', paths)) do
    read_file(self, path)
  end
  warn(self)
  if self.documents.n == 0 then
    errors.raise('ValueError', '%s: of %d records in %s none has a target to learn: %d are longer '
      .. 'than the context, %d have no answer', self._name, self._counts.records,
      util.listed(paths, 3), self._counts.drop or 0, self._counts.no_target or 0)
  end
end

--- Number of examples.
---@return integer
function Examples:len()
  return self.documents.n
end

--- The ids of an example, and for each whether it is learned. The first one is no target in any
--- case.
---@param i integer  from 1
---@return integer[] ids, boolean[] learned
function Examples:get(i)
  local docs = self.documents
  if arguments.whole('Examples:get', 'i', i) < 1 or i > docs.n then
    errors.raise('IndexError', 'Examples:get: index %d, expected 1 to %d', i, docs.n)
  end
  local ids, learned, first, n = {}, {}, docs:span(i)
  for k = 1, n do
    ids[k], learned[k] = docs.ids.data[first + k - 1], docs.marks.data[first + k - 1] == 1
  end
  return ids, learned
end

--- A hash of all tokens and of which are learned.
---@return string
function Examples:digest()
  self._digest = self._digest or self.documents:digest()
  return self._digest
end

---@class ms.data.Examples.Report
---@field examples integer
---@field tokens integer
---@field targets integer  tokens that are learned
---@field longest integer  most tokens of an example, before it was cut
---@field records? integer  lines that were read; absent for parts of split(), like all below
---@field no_target? integer  dropped: nothing in them is learned
---@field dropped? integer  longer than the context
---@field truncated? integer
---@field split? integer  records of which several examples were made
---@field two_bos? integer  begin with two BOS tokens
---@field changed? integer  decode(encode(text)) is another text
---@field invalid_utf8? integer  maximal invalid parts of UTF-8, each read as U+FFFD
---@field date? string  that the chat format shows

--- Counts of the examples, and of records that were dropped or changed.
---@return ms.data.Examples.Report
function Examples:report()
  local docs, counts, targets, longest = self.documents, self._counts, 0, 0
  for i = 1, docs.n do
    local _, n = docs:span(i)
    targets, longest = targets + docs.n_targets.data[i - 1], math.max(longest, n)
  end
  local out = {
    examples = docs.n, tokens = docs.ids.n, targets = targets,
    longest = counts and counts.longest or longest, date = self.chat and self.chat.date,
  }
  if counts then
    out.records, out.no_target = counts.records, counts.no_target or 0
    out.dropped, out.truncated = counts.drop or 0, counts.truncate or 0
    out.split, out.two_bos, out.changed = counts.split or 0, counts.two_bos or 0,
      counts.changed or 0
    out.invalid_utf8 = counts.n_invalid
  end
  return out
end

--- The text of the first examples, with what is learned between '[[' and ']]'.
---@param n? integer  default 1
---@return string
function Examples:show(n)
  local docs, out = self.documents, {}
  for i = 1, math.min(arguments.whole('Examples:show', 'n', n, 1, 0), docs.n) do
    local first, length = docs:span(i)
    out[#out + 1] = ('-- example %d: %d tokens, %d learned\n'):format(i, length,
      docs.n_targets.data[i - 1])
    local at, marks = 0, docs.marks.data + first
    while at < length do
      local learned, past = at > 0 and marks[at] == 1, at + 1
      while past < length and (marks[past] == 1) == learned do
        past = past + 1
      end
      local text = self.tokenizer:_decoded(docs.ids.data + first + at, past - at)
      out[#out + 1] = learned and '[[' .. text .. ']]' or text
      at = past
    end
    out[#out + 1] = '\n'
  end
  return table.concat(out)
end

-- Numbers of the examples of each record, in order. The examples of a single record are apart.
local function by_record(docs)
  local groups, last = {}, nil
  local is_one = docs.n > 0 and docs.records.data[0] == docs.records.data[docs.n - 1]
  for i = 1, docs.n do
    if is_one or docs.records.data[i - 1] ~= last then
      last = docs.records.data[i - 1]
      groups[#groups + 1] = {}
    end
    table.insert(groups[#groups], i)
  end
  return groups
end

local function part(self, list)
  return setmetatable({
    documents = self.documents:part(list), context = self.context, tokenizer = self.tokenizer,
    chat = self.chat, learn = self.learn,
  }, Examples)
end

--- Divide the records at random into two sets, at least one in each. The examples of a single
--- record, such as a text file, are divided.
---@param opts { validation: number, seed?: integer }  share of the records in the second set,
---  between 0 and 1; the division depends only on `seed` (default 0)
---@return ms.data.Examples training, ms.data.Examples validation
function Examples:split(opts)
  opts = errors.options('Examples:split', opts, { validation = 'number', seed = 'whole' })
  local share = arguments.number('Examples:split', 'validation', opts.validation)
  local seed = arguments.whole('Examples:split', 'seed', opts.seed, 0, 0)
  local groups = by_record(self.documents)
  if not (share > 0 and share < 1) then
    errors.raise('ValueError', "Examples:split: 'validation' is %g, expected a share between 0 and "
      .. '1', share)
  elseif #groups < 2 then
    errors.raise('ValueError', 'Examples:split: there is 1 example, expected 2 or more')
  end
  local n = math.max(1, math.min(#groups - 1, math.floor(share * #groups + 0.5)))
  local held = {}
  for k = 1, n do
    held[1 + runtime.permute(k - 1, #groups, seed, 0)] = true
  end
  local training, validation = {}, {}
  for g, group in ipairs(groups) do
    local list = held[g] and validation or training
    for _, i in ipairs(group) do
      list[#list + 1] = i
    end
  end
  return part(self, training), part(self, validation)
end

function Examples:__tostring()
  local report = self:report()
  return ('Examples(%d examples, %d tokens, %d learned)'):format(report.examples, report.tokens,
    report.targets)
end

return Examples
