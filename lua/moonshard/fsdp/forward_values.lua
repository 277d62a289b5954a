--- What goes into a forward and comes out of it: tensors, also inside plain tables, whatever their
--- keys. A table that holds itself is walked once.

local parameter = require 'moonshard_ffi.parameter'

local forward_values = {}

local function is_plain(value)
  return type(value) == 'table' and getmetatable(value) == nil
end

local function needs_cast(tensor, dtype)
  local facts = parameter.facts(tensor)
  return facts.floating and facts.dtype ~= dtype
end

local function cast_tensor(value, dtype)
  return needs_cast(value, dtype) and value:to(dtype) or value
end

-- Does a value hold a tensor to cast, at any depth?
local function holds_cast(value, dtype, seen)
  if parameter.is_tensor(value) then
    return needs_cast(value, dtype)
  elseif is_plain(value) and not seen[value] then
    seen[value] = true
    for _, entry in next, value do
      if holds_cast(entry, dtype, seen) then
        return true
      end
    end
  end
  return false
end

-- A table without a tensor to cast is passed on as it is, so that forward can write into it.
-- `casts`: the copies of tables so far.
local function cast_entry(value, dtype, casts)
  if parameter.is_tensor(value) then
    return cast_tensor(value, dtype)
  elseif not is_plain(value) or not casts[value] and not holds_cast(value, dtype, {}) then
    return value
  elseif not casts[value] then
    local out = {}
    casts[value] = out
    for key, entry in next, value do
      out[key] = cast_entry(entry, dtype, casts)
    end
  end
  return casts[value]
end

local function cast(value, dtype)
  if parameter.is_tensor(value) then
    return cast_tensor(value, dtype)
  end
  return is_plain(value) and cast_entry(value, dtype, {}) or value
end

--- The `n` values, floating tensors in another dtype, tables that hold one copied.
---@param dtype string
---@param n integer
---@return ...
function forward_values.cast(dtype, n, first, ...)
  if n == 0 then
    return
  elseif n == 1 then
    return cast(first, dtype)
  end
  return cast(first, dtype), forward_values.cast(dtype, n - 1, ...)
end

local function collect(value, out, seen)
  if parameter.is_tensor(value) then
    out[#out + 1] = value
  elseif is_plain(value) and not seen[value] then
    seen[value] = true
    for _, entry in next, value do
      collect(entry, out, seen)
    end
  end
end

--- The tensors among the values, in no order: one alone, which nearly every forward returns, or a
--- list.
---@return ms.Tensor|ms.Tensor[]
function forward_values.tensors(...)
  local first = ...
  if select('#', ...) == 1 and parameter.is_tensor(first) then
    return first
  end
  local out = {}
  for i = 1, select('#', ...) do
    local value = select(i, ...)
    if parameter.is_tensor(value) then
      out[#out + 1] = value
    elseif is_plain(value) then
      collect(value, out, {})
    end
  end
  return out
end

return forward_values
