--- Argument checks of collectives.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local capture = require 'moonshard.base.capture'
local errors = require 'moonshard.base.errors'
local writable = require 'moonshard.base.writable'

require 'moonshard.dist.group' -- adds the methods of groups

local C = B.C

local validate = {}

local reductions = {
  sum = C.MS_REDUCE_SUM, avg = C.MS_REDUCE_AVG, max = C.MS_REDUCE_MAX, min = C.MS_REDUCE_MIN,
}

---@alias ms.dist.Reduction 'sum'|'avg'|'max'|'min'

--- The code of a reduction; nil means 'sum'.
---@param name? ms.dist.Reduction
---@return integer
function validate.reduction(what, name)
  if name == nil then
    return reductions.sum
  end
  return reductions[arguments.text(what, 'reduction', name)]
    or errors.raise('ValueError', "%s: unknown reduction '%s', expected sum, avg, max or min", what,
      name)
end

--- Check a group; nil means all ranks.
---@param group? ms.dist.Group
---@return ms.dist.Group
function validate.group(what, group)
  capture.breaks(what .. ' is called')
  return group == nil and B.world() or arguments.group(what, 'group', group)
end

--- Arguments with an optional value before the group: `f(t, group)` means `f(t, nil, group)`.
---@generic T
---@param value T|ms.dist.Group?
---@param group? ms.dist.Group
---@return T?, ms.dist.Group
function validate.and_group(what, value, group)
  if group ~= nil and arguments.is_group(value) and not arguments.is_group(group) then
    errors.raise('TypeError', '%s: the group comes before %s, expected last', what,
      arguments.noun(group))
  elseif group == nil and value ~= nil and (value == false or arguments.is_group(value)) then
    value, group = nil, value
  end
  return value, validate.group(what, group)
end

local function is_options(value)
  return type(value) == 'table'
end

--- The same for a function whose last argument is an options table. Value, group or both may be
--- omitted before it.
---@generic T
---@return T?, ms.dist.Group, table?
function validate.tail(what, value, group, opts)
  if opts == nil and is_options(group) then
    group, opts = nil, group
  elseif opts == nil and group == nil and is_options(value) then
    value, opts = nil, value
  end
  value, group = validate.and_group(what, value, group)
  return value, group, opts
end

--- Check the tensor that a collective writes into, which must not require grad.
---@return ms.Tensor
function validate.target(what, name, t)
  writable(arguments.tensor(what, name, t), what)
  return t
end

--- Numbers of rows by rank for the runtime; nil if there are none.
---@param list? integer[]
---@return ffi.cdata*?
function validate.splits(what, name, list, size)
  if list == nil then
    return nil
  elseif #arguments.array(what, name, list) ~= size then
    errors.raise('ValueError', '%s: %s has %d numbers, expected one for each of %d ranks', what,
      name, #list, size)
  end
  local out = B.new('int64_t[?]', size)
  for i, n in ipairs(list) do
    out[i - 1] = arguments.whole(what, ('%s[%d]'):format(name, i), n, nil, 0)
  end
  return out
end

return validate
