--- Tokenizers of tokenizer.json: docs/tokenizers.md lists the supported parts.

local arguments = require 'moonshard_ffi.arguments'
local class = require 'moonshard.base.class'
local errors = require 'moonshard.base.errors'
local TokenStream = require 'moonshard.data.token_stream'
local json = require 'moonshard.base.json'
local runtime = require 'moonshard_ffi.tokenizer'
local text_files = require 'moonshard.base.text_files'

local ADD_SPECIAL, PARSE_SPECIAL, SKIP_SPECIAL = 1, 2, 4 -- see moonshard/tokenizer.h

--- A byte-pair tokenizer with the ids that the library `tokenizers` gives for the same file. Ids
--- begin at 0, as in the file and in embeddings.
---
---   local tok = ms.data.Tokenizer('models/qwen')
---   local ids = tok:encode('Hello world')
---   print(tok:decode(ids))
---@class ms.data.Tokenizer
---@field path string
---@overload fun(path: string): ms.data.Tokenizer
local Tokenizer = class('data.Tokenizer')

--- FormatError names the place of a mistake in the file; NotImplementedError a part that is not
--- supported.
---@param path string  tokenizer.json or a folder with it; add_bos_token and add_eos_token in a
---  folder's tokenizer_config.json replace the post-processor
function Tokenizer:init(path)
  self.path = arguments.text(self._name, 'path', path)
  self._handle = runtime.load(path)
end

local function is_string(what, name, value)
  if type(value) ~= 'string' then
    arguments.refuse(what, name, value, 'a string')
  end
  return value
end

---@class ms.data.Tokenizer.EncodeOptions
---@field special? boolean  add the tokens of the post-processor, such as BOS (default true)
---@field parse_special? boolean  text like '<|endoftext|>' becomes the special token (default
---  true); false for text of users

--- The ids of a text. Each maximal part of it that is not valid UTF-8 is read as U+FFFD.
---@param text string
---@param opts? ms.data.Tokenizer.EncodeOptions
---@return integer[] ids, integer n_invalid  number of invalid parts
function Tokenizer:encode(text, opts)
  is_string('Tokenizer:encode', 'text', text)
  opts = errors.options('Tokenizer:encode', opts, { special = 'flag', parse_special = 'flag' })
  return runtime.encode(self._handle, text, (opts.special == false and 0 or ADD_SPECIAL)
    + (opts.parse_special == false and 0 or PARSE_SPECIAL))
end

--- The text of ids. Ids beyond the vocabulary have none, as models may have more rows than the
--- tokenizer has tokens. Bytes that do not form valid UTF-8 become U+FFFD.
---@param ids integer[]
---@param opts? { special?: boolean }  keep the text of special tokens (default false)
---@return string
function Tokenizer:decode(ids, opts)
  arguments.array('Tokenizer:decode', 'ids', ids)
  opts = errors.options('Tokenizer:decode', opts, { special = 'flag' })
  for i = 1, #ids do
    arguments.count('Tokenizer:decode', 'ids', ids[i])
  end
  return runtime.decode(self._handle, ids, opts.special and 0 or SKIP_SPECIAL)
end

--- Decode ids one by one, as they are generated.
---@param opts? { special?: boolean }  keep the text of special tokens (default false)
---@return ms.data.TokenStream
function Tokenizer:stream(opts)
  return TokenStream(self, opts)
end

-- The ids of a text without the tokens of the post-processor, in C memory until the next call.
---@return ffi.cdata* ids, integer n, integer n_invalid
function Tokenizer:_encoded(text, parse_special)
  return runtime.encoded(self._handle, text, parse_special and PARSE_SPECIAL or 0)
end

-- The text of n ids in C memory, with special tokens.
---@return string
function Tokenizer:_decoded(ids, n)
  return runtime.decoded(self._handle, ids, n, 0)
end

-- The folder with the tokenizer's file.
---@return string
function Tokenizer:_folder()
  return self.path:match '^(.*)/tokenizer%.json$' or self.path:match '^tokenizer%.json$' and '.'
    or self.path
end

-- Its end-of-text token.
local function end_token(self, what, given)
  local file = self:_folder() .. '/tokenizer_config.json'
  local text = not given and text_files.read(file)
  local config = text and json.decode(text, file)
  local token = given or type(config) == 'table' and config.eos_token
  if type(token) == 'table' then
    token = token.content
  end
  local id = type(token) == 'string' and self:id(token)
  if not id then
    errors.raise('ValueError', '%s: %s; give eos = TOKEN, the end-of-text token of the model',
      what, type(token) == 'string' and ("the tokenizer has no token '%s'"):format(token)
        or ("no eos_token in '%s'"):format(file))
  end
  return id
end

-- What surrounds documents: the tokens that the tokenizer writes before them, and the end-of-text
-- token.
---@param what string  the caller, for messages
---@param eos? string|false  the end-of-text token (default: eos_token of tokenizer_config.json)
---@return integer[] before, integer? eos  nil for false
function Tokenizer:_ends(what, eos)
  local whole, text = self:encode 'a', self:encode('a', { special = false })
  local n = 0
  while n < #whole and table.concat(whole, ' ', n + 1, n + #text) ~= table.concat(text, ' ') do
    n = n + 1
  end
  return { unpack(whole, 1, n) }, eos ~= false and end_token(self, what, eos) or nil
end

-- Are the ids of a text those of its parts, if it is cut between [0-9A-Za-z] and \r or \n?
---@return boolean
function Tokenizer:_cuts_lines()
  return runtime.cuts_lines(self._handle)
end

--- 1 + the largest id: the least number of rows of an embedding.
---@return integer
function Tokenizer:vocab_size()
  return runtime.n_ids(self._handle)
end

--- The id of a token by its text in the file; nil if the file has no such token.
---@param token string
---@return integer?
function Tokenizer:id(token)
  return runtime.id(self._handle, is_string('Tokenizer:id', 'token', token))
end

--- A token as the file writes it; nil if no token has this id.
---@param id integer
---@return string?
function Tokenizer:token(id)
  return runtime.token(self._handle, arguments.count('Tokenizer:token', 'id', id))
end

function Tokenizer:__tostring()
  return ("Tokenizer('%s', %d tokens)"):format(self.path, self:vocab_size())
end

return Tokenizer
