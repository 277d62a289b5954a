--- Decoding tokens as they are generated.

local arguments = require 'moonshard_ffi.arguments'
local class = require 'moonshard.base.class'

local REPLACEMENT = '\239\191\189' -- U+FFFD

--- The text of tokens one by one. All texts together are that of decode() for all ids.
---
---   local stream = tok:stream()
---   for _, id in ipairs(ids) do
---     io.write(stream:add(id))
---   end
---   io.write(stream:finish())
---@class ms.data.TokenStream
---@overload fun(tokenizer: ms.data.Tokenizer, opts?: { special?: boolean }): ms.data.TokenStream
local TokenStream = class('data.TokenStream')

---@param tokenizer ms.data.Tokenizer
---@param opts? { special?: boolean }  as of Tokenizer:decode
function TokenStream:init(tokenizer, opts)
  self._tokenizer, self._opts = tokenizer, opts
  -- The ids since the text before last. Decoders may remove a space from the first token of a text,
  -- so the tokens of the last text are decoded again before the new ones.
  self._ids, self._n_old, self._old = {}, 0, ''
  self._text, self._in_bytes = self:_decode {}, false
end

function TokenStream:_decode(ids)
  return self._tokenizer:decode(ids, self._opts)
end

--- Append a token.
---@param id integer
---@return string text  that no further token can change; may be empty
function TokenStream:add(id)
  local ids = self._ids
  ids[#ids + 1] = arguments.count('TokenStream:add', 'id', id)
  local text = self:_decode(ids)
  if text ~= self._text then
    -- a run of byte tokens is decoded as a whole
    self._text = text
    self._in_bytes = (self._tokenizer:token(id) or ''):find '^<0x%x%x>$' ~= nil
  end
  if self._in_bytes or #text <= #self._old or text:sub(-3) == REPLACEMENT then
    return '' -- a character may be incomplete
  end
  local new = text:sub(#self._old + 1)
  self._ids = { unpack(ids, self._n_old + 1) }
  self._n_old, self._old = #self._ids, self:_decode(self._ids)
  self._text = self._old
  return new
end

--- End the text.
---@return string text  what add() held back
function TokenStream:finish()
  local new = self:_decode(self._ids):sub(#self._old + 1)
  self._ids, self._n_old, self._old, self._text, self._in_bytes = {}, 0, '', '', false
  return new
end

return TokenStream
