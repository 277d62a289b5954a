--- JSON text from tables and tables from JSON text. Duplicate keys and trailing bytes are errors.

local B = require 'moonshard_ffi'
local errors = require 'moonshard.base.errors'

---@class ms.json
---@field null table  the value of null, in both directions
---@field array table  metatable of decoded arrays; an empty table with it is encoded as []
local json = {
  null = setmetatable({}, { __tostring = function() return 'null' end }),
  array = {},
}

local function result(value, kind, message, from)
  if value == nil and kind then
    errors.raise(kind, '%s%s', from and from .. ': ' or '', message)
  end
  return value
end

--- One line of JSON; keys sorted. A table with the keys 1 to n is an array, one with only strings
--- for keys an object; an empty one is an object unless its metatable is json.array. Other keys are
--- a TypeError, one with a NUL byte a ValueError; both name the key.
---@param value any
---@return string
function json.encode(value)
  return result(B.core.json_encode(value, json.null, json.array))
end

--- The value of a JSON text. null becomes json.null; numbers are Lua's. FormatError names
--- line and byte of the mistake, of a text above 64 KiB the byte. Errors begin with `from`.
---@param text string
---@param from? string  the file whose text it is
---@return any
function json.decode(text, from)
  local value, kind, message = B.core.json_decode(text, json.null, json.array)
  return result(value, kind, message, from)
end

return json
