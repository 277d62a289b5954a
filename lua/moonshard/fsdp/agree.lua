--- Comparisons across ranks, before any rank changes the model.

local errors = require 'moonshard.base.errors'
local parameter = require 'moonshard_ffi.parameter'
local runtime = require 'moonshard_ffi.fsdp'

local agree = {}

-- The first rank (from 0) whose number differs from rank 0's, or nil.
local function odd_rank(numbers)
  for rank = 2, #numbers do
    if numbers[rank] ~= numbers[1] then
      return rank - 1
    end
  end
end

-- Values by name.
local function values_in(text)
  local values = {}
  for name, value in text:gmatch('([^\t\n]+)\t([^\n]*)') do
    values[name] = value
  end
  return values
end

-- "p of '0.drop' is 0.1 on rank 0 and 0.2 on rank 1", for the first name in `order` that differs.
local function first_odd(order, first, other, rank)
  for name in order:gmatch('([^\t\n]+)\t') do
    if first[name] ~= other[name] then
      return ('%s is %s on rank 0 and %s on rank %d'):format(name, first[name] or 'missing',
        other[name] or 'missing', rank)
    end
  end
end

--- Compare named values: a text about the first one that differs from rank 0's. Collective.
---@param group ffi.cdata*
---@param what string  the calling function, for errors
---@param lines string[]  "name<tab>value", without other control characters
---@return string?  nil: all are equal
function agree.on_lines(group, what, lines)
  local text = table.concat(lines, '\n')
  local rank = odd_rank(runtime.exchange(group, what, { parameter.text_number(text) })[1])
  if not rank then
    return nil
  end
  local texts = runtime.exchange_text(group, what, text)
  local first, other = values_in(texts[1]), values_in(texts[rank + 1])
  return first_odd(texts[1], first, other, rank) or first_odd(texts[rank + 1], first, other, rank)
    or 'their order is not the same'
end

--- Take part in loading a state dict, even if this rank failed: either all ranks have equal values
--- and return, or all raise. Collective.
---@param group ffi.cdata*
---@param problem? any  the error of this rank
---@param names string[]  parameters
---@param keys integer[]  below 2^53: numbers of their values, equal for equal values
function agree.on_load(group, problem, names, keys)
  if problem then
    runtime.failed(group, problem)
  end
  local failed = runtime.exchange(group, 'load_state_dict', { problem and 1 or 0 })[1]
  if problem then
    error(problem, 0)
  end
  for rank, flag in ipairs(failed) do
    if flag ~= 0 then
      errors.raise('RuntimeError', 'load_state_dict: rank %d cannot take what it was given; no '
        .. 'rank has loaded anything', rank - 1)
    end
  end
  for i, numbers in ipairs(runtime.exchange(group, 'load_state_dict (values)', keys)) do
    local rank = odd_rank(numbers)
    if rank then
      errors.raise('RuntimeError', "load_state_dict: rank %d was given other values for '%s' than "
        .. 'rank 0; no rank has loaded anything', rank, names[i])
    end
  end
end

return agree
