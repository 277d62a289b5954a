--- What every rank should say alike: compared by the group's next collective.

local B = require 'moonshard_ffi'

local C = B.C

local notes = {}

local numbers_buffer = B.new('double[8]')

-- A zero byte would end it for C.
local function whole(s)
  return s:find('%z') and ('%q'):format(s) or s
end

--- A text.
---@param comm ffi.cdata*  the group
---@param label string  what it is about
---@param text string
function notes.text(comm, label, text)
  B.check(C.ms_comm_same(comm, whole(label), whole(text), nil, 0))
end

--- Up to eight numbers.
---@param names string  theirs, by spaces; one of a hash ends with '#'
---@param numbers number[]
function notes.numbers(comm, label, names, numbers)
  for i = 1, math.min(#numbers, 8) do -- C refuses more
    numbers_buffer[i - 1] = numbers[i]
  end
  B.check(C.ms_comm_same(comm, whole(label), names, numbers_buffer, #numbers))
end

return notes
