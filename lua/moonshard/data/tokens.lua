--- Token files, memory-mapped: what is not read takes no memory, and ranks share what is.

local errors = require 'moonshard.errors'
local runtime = require 'moonshard_ffi.data'

---@class ms.data
---@field Loader ms.data.Loader
local data = {}

--- Map a file of tokens read-only.
---@param path string
---@param dtype? 'u8'|'i64'  bytes (default), or 64-bit numbers in this machine's order
---@return ms.Tensor  (n)
function data.tokens(path, dtype)
  if type(path) ~= 'string' then
    errors.raise('TypeError', 'data.tokens takes a path, got a %s', type(path))
  end
  return runtime.map(path, dtype or 'u8')
end

--- The bytes of a string as tokens.
---@param text string
---@return integer[]
function data.bytes(text)
  local out = {}
  for i = 1, #text do
    out[i] = text:byte(i)
  end
  return out
end

--- The string that byte tokens spell.
---@param tokens integer[]
---@return string
function data.text(tokens)
  local out = {}
  for i, token in ipairs(tokens) do
    out[i] = string.char(token)
  end
  return table.concat(out)
end

return data
