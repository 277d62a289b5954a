--- Dimensions and shapes in scripts' form: dimensions count from 1, negative ones from the end.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'

local dims = {}

local MAX = B.C.MS_MAX_DIMS
local LARGEST = 2 ^ 53
local shape_buffer = B.new('int64_t[?]', MAX)

-- Index i of n, counted from 0; nil if out of range. `noun` names it in the TypeError.
local function position(i, n, what, noun)
  if type(i) ~= 'number' then
    errors.raise('TypeError', '%s: %s %s is not an integer', what, noun,
      i == nil and 'nil' or arguments.noun(i))
  elseif i % 1 ~= 0 then
    errors.raise('TypeError', '%s: %s %.17g is not an integer', what, noun, i)
  elseif i >= 1 and i <= n then
    return i - 1
  elseif i < 0 and i >= -n then
    return i + n
  end
end

local function hint(i)
  return i == 0 and ' (they count from 1)' or ''
end

--- Dimension `d` of a tensor with `n` dimensions, converted to C's count from 0.
---@param d integer  1 .. n, or -n .. -1
---@param n integer
---@param what string
---@return integer
function dims.index(d, n, what)
  return position(d, n, what, 'dimension') or errors.raise('IndexError',
    '%s: dimension %d is out of range for %d dimensions%s', what, d, n, hint(d))
end

--- Entry `i` of a dimension with `size` entries, converted to C's count from 0.
---@param i integer  1 .. size, or -size .. -1
---@param size integer
---@param d integer  the dimension, counted from 1
---@param what string
---@return integer
function dims.entry(i, size, d, what)
  return position(i, size, what, 'entry') or errors.raise('IndexError',
    '%s: entry %d is out of range for dimension %d of size %d%s', what, i, d, size, hint(i))
end

--- Row `i` of n, counted from 0; negative values count from the end. ValueError if out of range.
---@param what string
---@param name string  the argument
---@param i integer
---@param n integer
---@return integer
function dims.row(what, name, i, n)
  if i < -n or i >= n then
    errors.raise('ValueError', "%s: '%s' is %d, expected %d to %d", what, name, i, -n, n - 1)
  end
  return i < 0 and n + i or i
end

--- A bit mask of a dimension or a list of dimensions; 0 (all) for nil.
---@param list integer|integer[]|nil
---@param n integer
---@param what string
---@return integer
function dims.mask(list, n, what)
  if list == nil then
    return 0
  elseif type(list) == 'number' then
    return 2 ^ dims.index(list, n, what)
  elseif type(list) ~= 'table' then
    arguments.refuse(what, 'dimensions', list, 'a dimension or a list of them')
  end
  local mask = 0
  for _, d in ipairs(arguments.array(what, 'dimensions', list)) do
    local bit = 2 ^ dims.index(d, n, what)
    if math.floor(mask / bit) % 2 == 1 then
      errors.raise('ValueError', '%s: dimension %d is given twice', what, d)
    end
    mask = mask + bit
  end
  return mask
end

local keepdim_option = { keepdim = 'flag' }

--- The option `keepdim` of a reduction, as a boolean or in a table; false by default.
---@param what string
---@param keepdim? boolean|{ keepdim: boolean }
---@return boolean
function dims.keepdim(what, keepdim)
  if keepdim == nil then
    return false
  elseif type(keepdim) == 'table' then
    keepdim = errors.options(what, keepdim, keepdim_option).keepdim
  end
  return arguments.flag(what, 'keepdim', keepdim, false)
end

local function bad_size(what, size, i)
  errors.raise('TypeError', '%s: size %s of dimension %d is not an integer', what,
    type(size) == 'number' and tostring(size) or size == nil and 'nil' or arguments.noun(size), i)
end

--- Write a list of sizes to a buffer for C. The buffer is reused by the next call.
---@param list integer[]
---@param what string
---@param least integer  lowest size: 0, or -1 if one size may be inferred
---@return integer n, ffi.cdata* sizes
function dims.shape(list, what, least)
  local n = #list
  if n > MAX then
    errors.raise('ValueError', '%s: %d dimensions, expected at most %d', what, n, MAX)
  end
  for i = 1, n do
    local size = list[i]
    if type(size) ~= 'number' or size % 1 ~= 0 then
      bad_size(what, size, i)
    elseif size > LARGEST or size < least then
      errors.raise('ValueError', '%s: size %.17g of dimension %d, expected %d to 2^53', what, size,
        i, least)
    end
    shape_buffer[i - 1] = size
  end
  return n, shape_buffer
end

--- Numbers as arguments, (2, 3), or as one list, ({2, 3}).
---@param what string
---@return integer[]
function dims.list(what, ...)
  local first, second = ...
  if type(first) ~= 'table' then
    return { ... }
  elseif second ~= nil then
    arguments.refuse(what, 'second argument', second, 'nothing after a list')
  end
  return arguments.array(what, 'list', first)
end

-- The named entries of a list: { 2, 3, dtype = 'f64' }.
local function named_in(list)
  local named
  for key, value in next, list do
    if type(key) ~= 'number' then
      named = named or {}
      named[key] = value
    end
  end
  return named
end

--- A list and its options, in the list or after it: ({2, 3, dtype = 'f64'}), ({2, 3}, {dtype =
--- 'f64'}).
---@param what string
---@param list table
---@param options? table
---@return table? options
function dims.list_options(what, list, options)
  local named = named_in(list)
  if named and options ~= nil then
    errors.raise('ValueError', '%s: options are in the list and after it, expected only one',
      what)
  end
  return named or options
end

--- Sizes as arguments or as one list, with options in or after it: (2, 3), ({2, 3}), (2, 3, {dtype
--- = 'f64'}), ({2, 3}, {dtype = 'f64'}), {2, 3, dtype = 'f64'}.
---@param what string
---@return integer[] sizes, table? options
function dims.arguments(what, ...)
  local n, first, second = select('#', ...), ...
  if type(first) == 'table' and (rawget(first, 1) ~= nil or next(first) == nil) then
    if n > 2 then
      errors.raise('TypeError', '%s: %d arguments, expected a list of sizes and options', what, n)
    end
    return first, dims.list_options(what, first, second)
  end
  local sizes = { ... }
  local options = sizes[n]
  if type(options) == 'table' or n > 1 and options == nil then
    sizes[n], n = nil, n - 1
  else
    options = nil
  end
  for i = 1, n do
    if type(sizes[i]) ~= 'number' then
      bad_size(what, sizes[i], i)
    end
  end
  return sizes, options
end

--- A shape as text: "(2, 3)".
---@param list integer[]
---@return string
function dims.text(list)
  return '(' .. table.concat(list, ', ') .. ')'
end

return dims
