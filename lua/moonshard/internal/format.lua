--- Tensors as text: rows in brackets, numbers aligned, long dimensions elided.

local util = require 'moonshard.internal.util'

local EDGE = 3         -- entries shown at each end of a long dimension
local THRESHOLD = 1000 -- elements; above it long dimensions are elided

--- Visit what is shown of a nested table: all of it, or both ends of each dimension.
local function shown(n, elide)
  if not elide or n <= 2 * EDGE then
    return n, 0
  end
  return EDGE, EDGE
end

local function each_shown(value, sizes, depth, elide, visit)
  if depth > #sizes then
    return visit(value)
  end
  local head, tail = shown(sizes[depth], elide)
  for i = 1, head do
    each_shown(value[i], sizes, depth + 1, elide, visit)
  end
  for i = sizes[depth] - tail + 1, sizes[depth] do
    each_shown(value[i], sizes, depth + 1, elide, visit)
  end
end

--- How to write the numbers: whole ones without digits, a wide range with an exponent.
local function choose_format(value, sizes, elide, floating)
  if not floating then
    return '%d'
  end
  local whole, low, high = true, math.huge, 0
  each_shown(value, sizes, 1, elide, function(x)
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
  local head, tail = shown(sizes[depth], elide)
  local parts = {}
  for i = 1, head do
    parts[#parts + 1] = rows(value[i], sizes, depth + 1, elide, text, indent .. ' ')
  end
  if tail > 0 then
    parts[#parts + 1] = '...'
  end
  for i = sizes[depth] - tail + 1, sizes[depth] do
    parts[#parts + 1] = rows(value[i], sizes, depth + 1, elide, text, indent .. ' ')
  end
  return '[' .. table.concat(parts, separator) .. ']'
end

--- The text of a nested table of values.
---@param value number|boolean|ffi.cdata*|table  as t:totable() gives it, or int64_t
---@param sizes integer[]
---@param floating boolean
---@return string
return function(value, sizes, floating)
  local elide = util.product(sizes) > THRESHOLD
  local pattern = choose_format(value, sizes, elide, floating)
  local width = 0
  each_shown(value, sizes, 1, elide, function(x)
    width = math.max(width, #number_text(x, pattern))
  end)
  return rows(value, sizes, 1, elide, function(x)
    local text = number_text(x, pattern)
    return #sizes > 0 and (' '):rep(width - #text) .. text or text
  end, (' '):rep(#'tensor('))
end
