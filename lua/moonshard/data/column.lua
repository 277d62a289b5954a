--- Growing arrays of numbers in C's layout: millions of tokens would be 16 bytes each in a table.

local B = require 'moonshard_ffi'
local class = require 'moonshard.base.class'
local runtime = require 'moonshard_ffi.data'

---@class ms.data.Column
---@field data ffi.cdata*  entry i is data[i], from 0; another array after growth
---@field n integer
---@overload fun(type: string): ms.data.Column
local Column = class('data.Column')

---@param type 'uint8_t'|'uint16_t'|'int32_t'|'uint32_t'|'double'
function Column:init(type)
  self._array, self._size = B.typeof(type .. '[?]'), B.sizeof(type)
  self.n, self._room = 0, 64
  self.data = self._array(self._room)
end

local function reserve(self, n)
  if n > self._room then
    local room = math.max(n, 2 * self._room)
    local data = self._array(room)
    B.copy(data, self.data, self.n * self._size)
    self.data, self._room = data, room
  end
end

---@param value number
function Column:push(value)
  reserve(self, self.n + 1)
  self.data[self.n] = value
  self.n = self.n + 1
end

--- Append n entries of an array of this type.
---@param from ffi.cdata*
---@param n integer
function Column:extend(from, n)
  reserve(self, self.n + n)
  B.copy(self.data + self.n, from, n * self._size)
  self.n = self.n + n
end

--- Append n entries of an array of another type.
---@param from ffi.cdata*
---@param n integer
function Column:convert(from, n)
  reserve(self, self.n + n)
  local to = self.data + self.n
  for i = 0, n - 1 do
    to[i] = from[i]
  end
  self.n = self.n + n
end

--- Append entries that are in this machine's byte order.
---@param bytes string
function Column:append_bytes(bytes)
  local n = #bytes / self._size
  reserve(self, self.n + n)
  B.copy(self.data + self.n, bytes, #bytes)
  self.n = self.n + n
end

--- Append n times the same number.
---@param value number
---@param n integer
function Column:fill(value, n)
  reserve(self, self.n + n)
  for i = self.n, self.n + n - 1 do
    self.data[i] = value
  end
  self.n = self.n + n
end

--- The entries in this machine's byte order.
---@return string
function Column:bytes()
  return B.string(self.data, self.n * self._size)
end

--- XXH3 of the entries.
---@return string
function Column:hash()
  return runtime.hash(self.data, self.n * self._size)
end

return Column
