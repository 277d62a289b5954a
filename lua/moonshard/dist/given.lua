--- What scripts give to collectives, and whether it is that.
---
--- Touches: moonshard.errors, moonshard_ffi.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.errors'

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

---@return ffi.cdata*
function given.group(what, group)
  return arguments.group(what, 'group', group)
end

return given
