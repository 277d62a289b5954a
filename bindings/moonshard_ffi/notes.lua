--- Consistency records: values that must be equal on all ranks. The group's next collective
--- compares them.

local B = require 'moonshard_ffi'

local C = B.C

local notes = {}

local numbers_buffer = B.new('double[8]')

-- Text for C, which would end at a zero byte.
local function whole(s)
  return s:find('%z') and ('%q'):format(s) or s
end

--- Record a text.
---@param comm ffi.cdata*  the group
---@param label string  names the value in errors
---@param text string
function notes.text(comm, label, text)
  B.check(C.ms_comm_same(comm, whole(label), whole(text), nil, 0))
end

--- Record up to eight numbers.
---@param names string  of the numbers, separated by spaces; the name of a hash ends with '#'
---@param numbers number[]
function notes.numbers(comm, label, names, numbers)
  for i = 1, math.min(#numbers, 8) do -- C refuses more
    numbers_buffer[i - 1] = numbers[i]
  end
  B.check(C.ms_comm_same(comm, whole(label), names, numbers_buffer, #numbers))
end

return notes
