--- Converts optimizer state of a parameter in whole tensors to an entry of
--- Optimizer:load_state_dict(), which has this rank's elements.

local arguments = require 'moonshard_ffi.arguments'
local create = require 'moonshard.base.create'
local errors = require 'moonshard.base.errors'
local parameter = require 'moonshard_ffi.parameter'

local whole_state = {}

-- The extent of this rank's elements of a parameter or plain tensor.
local function extent_of(param)
  if parameter.is_parameter(param) then
    local _, extent = parameter.part(param)
    return extent
  end
  return { start = 0, numel = parameter.facts(param).numel, shape = parameter.shape(param) }
end

--- This rank's elements of a whole tensor.
---@param what string
---@param name string|integer  of the parameter
---@param state string
---@param value any
---@param extent ms.Extent
---@return ms.Tensor
function whole_state.elements(what, name, state, value, extent)
  arguments.tensor(what, ("%s of '%s'"):format(state, name), value)
  whole_state.check_shape(name, state, value, extent)
  return value:detach():reshape(-1):narrow(1, extent.start + 1, extent.numel):clone()
end

--- ValueError for a value that has not the parameter's shape.
---@param name string  of the parameter
---@param state string
---@param value ms.Tensor|ms.dist.ShardedTensor
---@param extent ms.Extent
function whole_state.check_shape(name, state, value, extent)
  if table.concat(value:shape(), ' ') ~= table.concat(extent.shape, ' ') then
    errors.raise('ValueError', 'Tensor optimizer state does not have same shape as its parameter: '
      .. "%s of '%s' has shape (%s), the parameter (%s)", state, name,
      table.concat(value:shape(), ', '), table.concat(extent.shape, ', '))
  end
end

--- The entry of one parameter.
---@param optimizer ms.optim.Optimizer
---@param entry table  of Optimizer:_entries()
---@param states string[]  names
---@param given table?  { step = n, exp_avg = tensor, ... }; nil: use initial state
---@param elements fun(state: string, value: any, extent: ms.Extent): ms.Tensor  this rank's
---  elements
---@return table
function whole_state.entry(optimizer, entry, states, given, elements)
  local extent = extent_of(entry.param)
  local out = { name = entry.name, steps = given and given.step or 0 }
  for _, state in ipairs(states) do
    local value = given and given[state]
    if value ~= nil then
      out[state] = elements(state, value, extent)
    elseif entry.state[state] and not optimizer:_is_later(state) then
      out[state] = create.full({ extent.numel }, optimizer:_first_value(state, entry.group),
        { dtype = entry.state[state]:dtype() })
    end
  end
  return out
end

return whole_state
