--- Tokenizers: see moonshard/tokenizer.h.

local B = require 'moonshard_ffi'

local C = B.C

local tokenizer = {}

local handle = B.new('ms_tokenizer *[1]')
local ids_out, text_out = B.new('const int32_t *[1]'), B.new('const char *[1]')
local n_out, invalid_out = B.new('int64_t[1]'), B.new('int64_t[1]')
local Ids = B.typeof('int32_t[?]')

--- A text in which each maximal invalid part of UTF-8 is U+FFFD.
---@param text string
---@return string text, integer n_invalid
function tokenizer.utf8(text)
  if C.ms_utf8_valid(text, #text) == #text then
    return text, 0
  end
  local out = B.new('char[?]', 3 * #text)
  local n = C.ms_utf8_replace(out, text, #text, invalid_out)
  return B.string(out, n), tonumber(invalid_out[0])
end

---@param path string
---@return ffi.cdata*
function tokenizer.load(path)
  B.check(C.ms_tokenizer_load(handle, path))
  return B.gc(handle[0], C.ms_tokenizer_free)
end

--- The ids of a text in C memory, valid until the next call with `t`.
---@param flags integer
---@return ffi.cdata* ids, integer n, integer n_invalid
function tokenizer.encoded(t, text, flags)
  B.check(C.ms_tokenizer_encode(t, text, #text, flags, ids_out, n_out, invalid_out))
  return ids_out[0], tonumber(n_out[0]), tonumber(invalid_out[0])
end

---@param flags integer
---@return integer[] ids, integer n_invalid
function tokenizer.encode(t, text, flags)
  local found, n, n_invalid = tokenizer.encoded(t, text, flags)
  local ids = {}
  for i = 1, n do
    ids[i] = found[i - 1]
  end
  return ids, n_invalid
end

--- The text of n ids in C memory.
---@param ids ffi.cdata*  int32_t *
---@param flags integer
---@return string
function tokenizer.decoded(t, ids, n, flags)
  B.check(C.ms_tokenizer_decode(t, ids, n, flags, text_out, n_out))
  return B.string(text_out[0], n_out[0])
end

---@param ids integer[]  of 32 bits
---@param flags integer
---@return string
function tokenizer.decode(t, ids, flags)
  return tokenizer.decoded(t, Ids(#ids, ids), #ids, flags)
end

--- Are the ids of a text those of its parts, if it is cut between [0-9A-Za-z] and \r or \n?
---@return boolean
function tokenizer.cuts_lines(t)
  return C.ms_tokenizer_cuts_lines(t)
end

---@return integer
function tokenizer.n_ids(t)
  return C.ms_tokenizer_n_ids(t)
end

---@return integer?
function tokenizer.id(t, token)
  local id = C.ms_tokenizer_id(t, token, #token)
  return id >= 0 and id or nil
end

---@return string?
function tokenizer.token(t, id)
  local text = C.ms_tokenizer_token(t, id, n_out)
  return text ~= nil and B.string(text, n_out[0]) or nil
end

return tokenizer
