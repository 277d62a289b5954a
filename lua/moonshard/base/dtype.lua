--- Element types are strings: 'f32', 'f64', 'bf16', 'f16', 'i64', 'i32', 'u8', 'bool'.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'

---@alias ms.DType 'f32'|'f64'|'bf16'|'f16'|'i64'|'i32'|'u8'|'bool'

local dtype = {}

--- All names, in the order of the runtime's codes.
---@type ms.DType[]
dtype.names = {}
local code_of = {}

for code = 0, B.C.MS_DTYPE_COUNT - 1 do
  local name = B.string(B.C.ms_dtype_name(code))
  dtype.names[code + 1] = name
  code_of[name] = code
end

--- The runtime's code of a dtype name.
---@param name ms.DType
---@return integer
function dtype.code(name)
  if type(name) ~= 'string' then
    errors.raise('TypeError', "'dtype' is %s, expected a dtype such as ms.f32",
      arguments.noun(name))
  end
  return code_of[name] or errors.raise('ValueError', 'unknown dtype %s, expected one of %s',
    name:sub(1, 80), table.concat(dtype.names, ', '))
end

---@param value any
---@return boolean
function dtype.is_name(value)
  return code_of[value] ~= nil
end

--- The dtype name of a runtime's code.
---@param code integer
---@return ms.DType
function dtype.name(code)
  return dtype.names[code + 1]
end

---@param name ms.DType
---@return boolean
function dtype.is_floating(name)
  return B.C.ms_dtype_is_floating(dtype.code(name))
end

--- Bytes of one element.
---@param name ms.DType
---@return integer
function dtype.size(name)
  return tonumber(B.C.ms_dtype_size(dtype.code(name)))
end

return dtype
