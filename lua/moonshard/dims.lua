--- Dimensions and shapes as scripts write them: counted from 1, negative ones from the end.

local B = require 'moonshard_ffi'
local errors = require 'moonshard.errors'

local dims = {}

local MAX = B.C.MS_MAX_DIMS
local shape_buffer = B.new('int64_t[?]', MAX)

-- Position i of n, counted from 0; nil when there is none. `noun` names it in the other error.
local function position(i, n, what, noun)
  if type(i) ~= 'number' or i % 1 ~= 0 then
    errors.raise('TypeError', '%s: %s %s is not an integer', what, noun, tostring(i))
  elseif i >= 1 and i <= n then
    return i - 1
  elseif i < 0 and i >= -n then
    return i + n
  end
end

local function hint(i)
  return i == 0 and ' (they count from 1)' or ''
end

--- Dimension `d` of a tensor with `n` dimensions, counted from 0 for C.
---@param d integer  1 .. n, or -n .. -1
---@param n integer
---@param what string
---@return integer
function dims.index(d, n, what)
  return position(d, n, what, 'dimension') or errors.raise('IndexError',
    '%s: dimension %d is out of range for %d dimensions%s', what, d, n, hint(d))
end

--- Entry `i` of a dimension with `size` entries, counted from 0 for C.
---@param i integer  1 .. size, or -size .. -1
---@param size integer
---@param d integer  the dimension, counted from 1
---@param what string
---@return integer
function dims.entry(i, size, d, what)
  return position(i, size, what, 'entry') or errors.raise('IndexError',
    '%s: entry %d is out of range for dimension %d of size %d%s', what, i, d, size, hint(i))
end

--- Bits of a number or a list of dimensions; 0 (all) for nil.
---@param list integer|integer[]|nil
---@param n integer
---@param what string
---@return integer
function dims.mask(list, n, what)
  if list == nil then
    return 0
  elseif type(list) == 'number' then
    return 2 ^ dims.index(list, n, what)
  end
  local mask = 0
  for _, d in ipairs(list) do
    local bit = 2 ^ dims.index(d, n, what)
    if math.floor(mask / bit) % 2 == 1 then
      errors.raise('ValueError', '%s: dimension %d is given twice', what, d)
    end
    mask = mask + bit
  end
  return mask
end

--- Put a list of sizes where C reads them. The buffer is reused: use it at once.
---@param list integer[]
---@param what string
---@return integer n, ffi.cdata* sizes
function dims.shape(list, what)
  local n = #list
  if n > MAX then
    errors.raise('ValueError', '%s: %d dimensions, expected at most %d', what, n, MAX)
  end
  for i = 1, n do
    local size = list[i]
    if type(size) ~= 'number' or size % 1 ~= 0 then
      errors.raise('TypeError', '%s: size %s of dimension %d is not an integer', what,
        tostring(size), i)
    end
    shape_buffer[i - 1] = size
  end
  return n, shape_buffer
end

--- Sizes given one by one or as one list, with options after them:
--- (2, 3), ({2, 3}), (2, 3, {dtype = 'f64'}), ({2, 3}, {dtype = 'f64'}).
---@return integer[] sizes, table? options
function dims.arguments(...)
  local first, second = ...
  if type(first) == 'table' and (first[1] ~= nil or next(first) == nil) then
    return first, second
  end
  local sizes = { ... }
  local last = sizes[#sizes]
  if type(last) == 'table' then
    sizes[#sizes] = nil
    return sizes, last
  end
  return sizes
end

--- "(2, 3)"
---@param list integer[]
---@return string
function dims.text(list)
  return '(' .. table.concat(list, ', ') .. ')'
end

return dims
