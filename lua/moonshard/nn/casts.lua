--- Casts of modules: parameters, their gradients and floating buffers, in place.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local dtypes = require 'moonshard.base.dtype'
local device = require 'moonshard.base.device'
local errors = require 'moonshard.base.errors'
local parameter = require 'moonshard_ffi.parameter'
local tree = require 'moonshard.nn.tree'

local casts = {}

-- The floating buffers that change, each with its value in the new dtype.
local function cast_buffers(module, dtype)
  local buffers, values = {}, {}
  for _, entry in ipairs(tree.walk(module)) do
    for _, buffer in ipairs(entry.module._buffers) do
      local tensor = rawget(entry.module, buffer.name)
      if tensor ~= nil and dtypes.is_floating(tensor:dtype()) then
        buffers[#buffers + 1] = buffer
        values[#buffers] = buffer:uncast():to(dtype)
      end
    end
  end
  return buffers, values
end

-- All parameters of an FSDP unit have one dtype, so a unit is cast as a whole.
local function check_whole_units(params)
  local managers, counts = {}, {}
  for _, tensor in ipairs(params) do
    local manager = parameter.manager(tensor)
    if manager then
      managers[#managers + 1] = not counts[manager] and manager or nil
      counts[manager] = (counts[manager] or 0) + 1
    end
  end
  for _, manager in ipairs(managers) do
    local count, expected = counts[manager], #manager:_managed()
    if count ~= expected then
      errors.raise('RuntimeError', "to: the module has %d of the %d parameters of FSDP unit '%s', "
        .. 'which have one dtype; cast the module that FSDP returned', count, expected,
        manager:_unit_name())
    end
  end
end

--- Cast a module and all modules below it.
---@param module ms.nn.Module
---@param dtype ms.DType  floating
---@return ms.nn.Module  the same
function casts.cast(module, dtype)
  local params = {}
  for i, p in ipairs(tree.params(module)) do
    params[i] = p.tensor
  end
  check_whole_units(params)
  local buffers, values = cast_buffers(module, dtype)
  B.collect() -- free graphs of results that are no longer referenced
  parameter.cast(params, dtype)
  for i, buffer in ipairs(buffers) do
    buffer:recast(values[i])
  end
  return module
end

-- Parse one argument of to(): a dtype, a tensor or a device.
local function target(name, value)
  if parameter.is_tensor(value) then
    return value:dtype()
  elseif type(value) ~= 'string' then
    arguments.refuse('to', name, value, "a dtype such as ms.f16, a tensor, or 'cpu'")
  elseif device.is_name(value) then
    device.check('to', value)
    return nil, value
  end
  return dtypes.name(dtypes.code(value))
end

--- Implements Module:to().
---@return ms.nn.Module  the same
function casts.to(module, first, second)
  local dtype, first_device = target('dtype', first)
  if second ~= nil then
    local other, second_device = target('other', second)
    if (dtype ~= nil) == (other ~= nil) then
      errors.raise('TypeError', "to: got two %s, expected a dtype and 'cpu'",
        first_device and second_device and 'devices' or 'dtypes')
    end
    dtype = dtype or other
  end
  if dtype == nil then
    return module
  elseif not dtypes.is_floating(dtype) then
    errors.raise('TypeError', 'nn.Module.to only accepts floating point dtypes, but got desired '
      .. 'dtype=%s', dtype)
  end
  return casts.cast(module, dtype)
end

return casts
