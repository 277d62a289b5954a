--- What scripts give to collectives, and whether it is that.
---
--- Touches: moonshard.dist.group, moonshard.errors, moonshard_ffi.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.internal.errors'

require 'moonshard.dist.group' -- the methods of what comes in and goes out here

local C = B.C

local given = {}

local reductions = {
  sum = C.MS_REDUCE_SUM, avg = C.MS_REDUCE_AVG, max = C.MS_REDUCE_MAX, min = C.MS_REDUCE_MIN,
}

---@alias ms.dist.Reduction 'sum'|'avg'|'max'|'min'

--- Its number; nil: of 'sum'.
---@param name? ms.dist.Reduction
---@return integer
function given.reduction(what, name)
  if name == nil then
    return reductions.sum
  end
  return reductions[arguments.text(what, 'reduction', name)]
    or errors.raise('ValueError', "%s: unknown reduction '%s', expected sum, avg, max or min", what,
      name)
end

--- A group; nil: that of all ranks.
---@param group? ms.dist.Group
---@return ms.dist.Group
function given.group(what, group)
  return group == nil and B.world() or arguments.group(what, 'group', group)
end

--- An argument that may be left out in front of a group, and the group: `f(t, group)` means what
--- `f(t, nil, group)` does.
---@generic T
---@param value T|ms.dist.Group?
---@param group? ms.dist.Group
---@return T?, ms.dist.Group
function given.and_group(what, value, group)
  if group ~= nil and arguments.is_group(value) and not arguments.is_group(group) then
    errors.raise('TypeError', '%s: the group stands in front of %s, expected last', what,
      arguments.noun(group))
  elseif group == nil and value ~= nil and (value == false or arguments.is_group(value)) then
    value, group = nil, value
  end
  return value, given.group(what, group)
end

return given
