--- Padding of a tensor, and rolling along dimensions.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local dims = require 'moonshard.base.dims'
local errors = require 'moonshard.base.errors'
local positions = require 'moonshard.ops.positions'

local C, calls = B.C, B.calls
local type = type

local padding = {}

local info = B.new('ms_tensor_info')

local function sizes_of(what, x)
  if type(x) ~= 'cdata' then
    arguments.no_tensor(what, 'x', x)
  end
  calls.tensor_describe(x, info)
  local sizes = {}
  for i = 1, info.ndim do
    sizes[i] = tonumber(info.shape[i - 1])
  end
  return sizes, info.dtype
end

-- -- pad -----------------------------------------------------------------------------------------

-- The source index (from 1) of padded entry i, which may be below 1 or above n.
local SOURCE = {
  reflect = function(i, n)
    return i < 1 and 2 - i or i > n and 2 * n - i or i
  end,
  replicate = function(i, n)
    return math.max(1, math.min(i, n))
  end,
  circular = function(i, n, before, after)
    local first = 1 + math.max(-before, 0) -- removed entries are not a source
    return (i - first) % (n + math.min(before, 0) + math.min(after, 0)) + first
  end,
}

-- Maximum padding at each end.
local MOST = {
  reflect = function(n) return n - 1 end,
  replicate = function(n) return n > 0 and math.huge or 0 end,
  circular = function(n) return n end,
}

local function constant(x, sizes, d, before, after, code, value)
  local kept = sizes[d] + math.min(before, 0) + math.min(after, 0)
  local parts = { calls.narrow(x, d - 1, math.max(-before, 0), kept) }
  local function fill(n)
    sizes[d] = n
    return calls.tensor_full(code, #sizes, select(2, dims.shape(sizes, 'pad', 0)), value)
  end
  if before > 0 then
    table.insert(parts, 1, fill(before))
  end
  if after > 0 then
    parts[#parts + 1] = fill(after)
  end
  sizes[d] = kept + math.max(before, 0) + math.max(after, 0)
  return calls.cat(B.array(parts, 'pad'), #parts, d - 1)
end

local function shown(x, sizes, d, before, after, mode)
  local n = sizes[d]
  local list = B.new('double[?]', math.max(n + before + after, 1))
  for i = 1, n + before + after do
    list[i - 1] = SOURCE[mode](i - before, n, before, after)
  end
  sizes[d] = n + before + after
  local _, shape = dims.shape({ sizes[d] }, 'pad', 0)
  local index = calls.tensor_from_doubles(C.MS_DTYPE_I64, 1, shape, list, sizes[d])
  return positions.index_select(x, d, index)
end

local function check_pair(mode, d, n, before, after)
  if mode == 'constant' then
    if n + math.min(before, 0) + math.min(after, 0) < 0 then
      errors.raise('ValueError', 'pad: (%d, %d) leaves a negative size of dimension %d of size %d',
        before, after, d, n)
    end
  elseif n + before + after < 0 or math.max(before, after) > MOST[mode](n) then
    errors.raise('ValueError', "pad: (%d, %d) for dimension %d of size %d, expected at most %d in "
      .. "mode '%s'", before, after, d, n, MOST[mode](n), mode)
  end
end

local pad_options = { 'mode', 'value' }

--- Pad x at both ends of the last dimension, then of the one before it, ... (PyTorch's pairs).
--- Negative numbers remove entries.
---@param x ms.Tensor
---@param pad integer[]  before and after for the last dimension, for the one before it, ...
---@param opts? { mode?: 'constant'|'reflect'|'replicate'|'circular', value?: number }  default:
---  'constant', 0
---@return ms.Tensor
function padding.pad(x, pad, opts)
  local sizes, code = sizes_of('pad', x)
  opts = errors.options('pad', opts, pad_options)
  local mode = opts.mode == nil and 'constant' or opts.mode
  if mode ~= 'constant' and not (type(mode) == 'string' and SOURCE[mode]) then
    errors.choice('pad', 'mode', mode, { 'constant', 'reflect', 'replicate', 'circular' })
  end
  local value = arguments.number('pad', 'value', opts.value, 0)
  B.check(C.ms_dtype_check('pad', code, value))
  arguments.array('pad', 'pad', pad)
  if #pad % 2 ~= 0 or #pad / 2 > #sizes then
    errors.raise('ValueError', "pad: %d numbers for %d dimensions, expected a pair for each of the "
      .. 'last ones', #pad, #sizes)
  end
  local out = x
  for k = 1, #pad / 2 do
    local d = #sizes + 1 - k
    local before = arguments.whole('pad', 'pad', pad[2 * k - 1])
    local after = arguments.whole('pad', 'pad', pad[2 * k])
    check_pair(mode, d, sizes[d], before, after)
    if before ~= 0 or after ~= 0 then
      out = mode == 'constant' and constant(out, sizes, d, before, after, code, value)
        or shown(out, sizes, d, before, after, mode)
    end
  end
  return out == x and calls.clone(x) or out
end

-- -- roll ----------------------------------------------------------------------------------------

local function roll_one(x, d, shift, size)
  shift = size > 0 and shift % size or 0
  if shift == 0 then
    return x
  end
  local parts = {
    calls.narrow(x, d, size - shift, shift), calls.narrow(x, d, 0, size - shift),
  }
  local out = calls.cat(B.array(parts, 'roll'), 2, d)
  C.ms_ref_release(parts[1])
  C.ms_ref_release(parts[2])
  return out
end

local function as_list(value)
  return type(value) == 'table' and value or { value }
end

--- Shift entries towards the end; those shifted out come in at the start. Without `over` the
--- flattened x is rolled.
---@param x ms.Tensor
---@param shifts integer|integer[]
---@param over? integer|integer[]  dimensions, one for each shift
---@return ms.Tensor
function padding.roll(x, shifts, over)
  local sizes = sizes_of('roll', x)
  local list = arguments.array('roll', 'shifts', as_list(shifts))
  if over == nil then
    local n = tonumber(info.numel)
    local row = calls.reshape(x, dims.shape({ n }, 'roll', 0))
    local rolled = roll_one(row, 0, arguments.whole('roll', 'shifts', list[1]), n)
    return calls.clone(calls.reshape(rolled, dims.shape(sizes, 'roll', 0)))
  end
  local places = arguments.array('roll', 'dimensions', as_list(over))
  if #places ~= #list then
    errors.raise('ValueError', 'roll: %d shifts for %d dimensions, expected as many', #list,
      #places)
  end
  local out = x
  for i, dim in ipairs(places) do
    local d = dims.index(dim, #sizes, 'roll')
    out = roll_one(out, d, arguments.whole('roll', 'shifts', list[i]), sizes[d + 1])
  end
  return out == x and calls.clone(x) or out
end

return padding
