--- JSON encoding and decoding by the runtime (strict: duplicate keys and trailing bytes are
--- errors).

local B = require 'moonshard_ffi'
local errors = require 'moonshard.base.errors'

local json = {}

--- The value of JSON's null, for reading and writing.
json.null = setmetatable({}, { __tostring = function() return 'null' end })

--- Metatable of decoded arrays. With it an empty table is encoded as an array.
json.array = {}

local function result(value, kind, message, from)
  if value == nil and kind then
    errors.raise(kind, '%s%s', from and from .. ': ' or '', message)
  end
  return value
end

--- Encode a value as one line of JSON with sorted keys. A table with the keys 1 to n becomes an
--- array, a table with only string keys an object. An empty table becomes an object unless its
--- metatable is json.array. TypeError for other keys, ValueError for a key with a NUL byte; both
--- name the key.
---@param value any
---@return string
function json.encode(value)
  return result(B.core.json_encode(value, json.null, json.array))
end

--- Decode a JSON text. null becomes json.null; numbers become Lua numbers. FormatError gives line
--- and byte of the mistake; for a text above 64 KiB only the byte. Errors begin with `from`.
---@param from? string  the name of the file that contains the text
---@return any
function json.decode(text, from)
  local value, kind, message = B.core.json_decode(text, json.null, json.array)
  return result(value, kind, message, from)
end

return json
