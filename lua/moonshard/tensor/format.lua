--- Text of tensors: rows in brackets, aligned numbers, long dimensions elided.

local util = require 'moonshard.base.util'

local EDGE = 3         -- entries shown at each end of a long dimension
local THRESHOLD = 1000 -- number of elements above which long dimensions are elided

--- Append the entries of nested table `tail` to those of `head` along one dimension.
local function append(head, tail, dim)
  for i = 1, #tail do
    if dim == 1 then
      head[#head + 1] = tail[i]
    else
      append(head[i], tail[i], dim - 1)
    end
  end
  return head
end

--- The values at both ends of each long dimension, as a nested table. Only these are read.
local function ends(t, sizes, dim, read)
  if dim > #sizes then
    return read(t)
  elseif sizes[dim] <= 2 * EDGE then
    return ends(t, sizes, dim + 1, read)
  end
  local values = {}
  for i, first in ipairs { 1, sizes[dim] - EDGE + 1 } do
    local view = t:narrow(dim, first, EDGE)
    values[i] = ends(view, sizes, dim + 1, read)
    view:release()
  end
  return append(values[1], values[2], dim)
end

local function each(value, depth, visit)
  if depth == 0 then
    return visit(value)
  end
  for i = 1, #value do
    each(value[i], depth - 1, visit)
  end
end

--- Choose the number format: no digits for integers, an exponent for a wide range.
local function choose_format(value, depth, floating)
  if not floating then
    return '%d'
  end
  local whole, low, high = true, math.huge, 0
  each(value, depth, function(x)
    if x == x and math.abs(x) ~= math.huge then
      whole = whole and x % 1 == 0
      local size = math.abs(x)
      high = math.max(high, size)
      low = size > 0 and math.min(low, size) or low
    end
  end)
  if high >= 1e8 or (not whole and (high / low > 1000 or high < 1e-4 and high > 0)) then
    return '%.4e'
  end
  return whole and '%.0f.' or '%.4f'
end

local function number_text(x, pattern)
  if type(x) == 'boolean' then
    return tostring(x)
  elseif type(x) == 'cdata' then
    return pattern:format(x)
  elseif x ~= x then
    return 'nan'
  elseif x == math.huge or x == -math.huge then
    return x > 0 and 'inf' or '-inf'
  end
  return pattern:format(x)
end

local function rows(value, sizes, depth, elide, text, indent)
  if depth > #sizes then
    return text(value)
  end
  local last = depth == #sizes
  local separator = last and ', ' or ',' .. ('\n'):rep(#sizes - depth) .. indent .. ' '
  local parts = {}
  for i = 1, #value do
    parts[i] = rows(value[i], sizes, depth + 1, elide, text, indent .. ' ')
  end
  if elide and sizes[depth] > 2 * EDGE then
    table.insert(parts, EDGE + 1, '...')
  end
  return '[' .. table.concat(parts, separator) .. ']'
end

--- The text of a tensor's values.
---@param t ms.Tensor  not recorded by autograd
---@param sizes integer[]
---@param floating boolean
---@param read fun(t: ms.Tensor): any  returns values like t:totable(), or int64_t
---@return string
return function(t, sizes, floating, read)
  local elide = util.product(sizes) > THRESHOLD
  local value = elide and ends(t, sizes, 1, read) or read(t)
  local pattern = choose_format(value, #sizes, floating)
  local width = 0
  each(value, #sizes, function(x)
    width = math.max(width, #number_text(x, pattern))
  end)
  return rows(value, sizes, 1, elide, function(x)
    local text = number_text(x, pattern)
    return #sizes > 0 and (' '):rep(width - #text) .. text or text
  end, (' '):rep(#'tensor('))
end
