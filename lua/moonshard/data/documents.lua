--- Token sequences with a mark for each learned token, in a few C arrays.

local Column = require 'moonshard.data.column'
local class = require 'moonshard.base.class'
local runtime = require 'moonshard_ffi.data'

--- Document i, from 1, has the tokens at firsts[i - 1] .. firsts[i] - 1 of `ids` and `marks`. Its
--- first token is never a target.
---@class ms.data.Documents
---@field n integer
---@field ids ms.data.Column
---@field marks ms.data.Column  1: learned
---@field firsts ms.data.Column
---@field records ms.data.Column  of each document, the number of the record that it is part of
---@field n_targets ms.data.Column  of each document
---@overload fun(): ms.data.Documents
local Documents = class('data.Documents')

function Documents:init()
  self.n, self.ids, self.marks = 0, Column 'int32_t', Column 'uint8_t'
  self.firsts, self.records, self.n_targets = Column 'double', Column 'double', Column 'double'
  self.firsts:push(0)
end

--- Number of learned tokens behind the first.
---@param marks ffi.cdata*
---@param n integer
---@return integer
local function count_targets(marks, n)
  local count = 0
  for i = 1, n - 1 do
    count = count + marks[i]
  end
  return count
end

--- Append a document, unless it has no targets.
---@param ids ffi.cdata*
---@param marks ffi.cdata*
---@param n integer
---@param record integer
---@return boolean appended
function Documents:append(ids, marks, n, record)
  local n_targets = count_targets(marks, n)
  if n_targets == 0 then
    return false
  end
  self.ids:extend(ids, n)
  self.marks:extend(marks, n)
  self.firsts:push(self.ids.n)
  self.records:push(record)
  self.n_targets:push(n_targets)
  self.n = self.n + 1
  return true
end

--- First index in `ids` and number of tokens of document i, from 1.
---@param i integer
---@return integer first, integer n
function Documents:span(i)
  local first = self.firsts.data[i - 1]
  return first, self.firsts.data[i] - first
end

--- A copy of some documents.
---@param list integer[]
---@return ms.data.Documents
function Documents:part(list)
  local out = Documents()
  for _, i in ipairs(list) do
    local first, n = self:span(i)
    out:append(self.ids.data + first, self.marks.data + first, n, self.records.data[i - 1])
  end
  return out
end

--- A hash of all tokens, marks and lengths.
---@return string
function Documents:digest()
  return runtime.hash(self.ids:hash() .. self.marks:hash() .. self.firsts:hash())
end

return Documents
