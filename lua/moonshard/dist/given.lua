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

local comm_out = B.new('ms_comm *[1]')

--- The group of all ranks, for calls into C.
---@return ffi.cdata*
function given.world()
  B.check(C.ms_comm_world(comm_out))
  return comm_out[0]
end

--- A group; nil: that of all ranks.
---@return ffi.cdata*
function given.group(what, group)
  return group == nil and given.world() or arguments.group(what, 'group', group)
end

return given
