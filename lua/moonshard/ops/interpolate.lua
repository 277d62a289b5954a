--- ops.interpolate: each spatial dimension is resampled on its own, as a weighted sum of one
--- (nearest), two (linear) or four (cubic) selections of its entries.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local create = require 'moonshard.base.create'
local dtypes = require 'moonshard.base.dtype'
local errors = require 'moonshard.base.errors'
local positions = require 'moonshard.ops.positions'
local spatial = require 'moonshard.ops.spatial'

local interpolate = {}

local function f32(x)
  return tonumber(B.cast('float', x))
end

local function clamp(i, n)
  return math.max(0, math.min(i, n - 1))
end

-- -- entries and weights of one position ---------------------------------------------------------

-- Each function maps index i (from 0) of the result to the n entries (from 0) that contribute to
-- it, and their weights. nearest computes in f32 as PyTorch does, because rounding decides between
-- entries near integer positions.

local function nearest(shift)
  return function(i, scale, n)
    return { clamp(math.floor(f32((i + shift) * f32(scale))), n) }
  end
end

local function source(i, scale, align_corners)
  return align_corners and i * scale or (i + 0.5) * scale - 0.5
end

local function linear(i, scale, n, align_corners)
  local at = math.max(source(i, scale, align_corners), 0)
  local first = clamp(math.floor(at), n)
  local t = math.min(at - first, 1)
  return { first, clamp(first + 1, n) }, { 1 - t, t }
end

local A = -0.75 -- parameter of Keys' cubic convolution (1981)

local function near(t) -- 0 <= t <= 1
  return ((A + 2) * t - (A + 3)) * t * t + 1
end

local function far(t) -- 1 <= t <= 2
  return ((A * t - 5 * A) * t + 8 * A) * t - 4 * A
end

local function cubic(i, scale, n, align_corners)
  local at = source(i, scale, align_corners)
  local first = math.floor(at)
  local t = at - first
  return { clamp(first - 1, n), clamp(first, n), clamp(first + 1, n), clamp(first + 2, n) },
    { far(t + 1), near(t), near(1 - t), far(2 - t) }
end

-- dims: numbers of input dimensions that the mode accepts.
local MODES = {
  nearest = { entries = nearest(0) },
  ['nearest-exact'] = { entries = nearest(0.5) },
  linear = { dims = 3, entries = linear, weighted = true },
  bilinear = { dims = 4, entries = linear, weighted = true },
  trilinear = { dims = 5, entries = linear, weighted = true },
  bicubic = { dims = 4, entries = cubic, weighted = true },
  area = {},
}

local NAMES = {
  'nearest', 'nearest-exact', 'linear', 'bilinear', 'trilinear', 'bicubic', 'area',
}

-- -- resampling ----------------------------------------------------------------------------------

-- Resample a dimension to `size` entries; `scale` is their distance in the input.
local function resample(x, dim, size, scale, mode, align_corners)
  local taps, n = {}, x:size(dim)
  for i = 0, size - 1 do
    local entries, weights = mode.entries(i, scale, n, align_corners)
    for k, entry in ipairs(entries) do
      local tap = taps[k] or { positions = {}, weights = {} }
      tap.positions[i + 1], tap.weights[i + 1] = entry + 1, weights and weights[k]
      taps[k] = tap
    end
  end
  local shape, sum = { size }, nil
  for d = dim + 1, x:dim() do
    shape[d - dim + 1] = 1
  end
  for _, tap in ipairs(taps) do
    local part = positions.index_select(x, dim, create.tensor(tap.positions, { dtype = 'i64' }))
    if mode.weighted then
      part = part * create.tensor(tap.weights, { dtype = x:dtype() }):reshape(shape)
    end
    sum = sum and sum + part or part
  end
  return sum
end

---@class ms.ops.InterpolateOptions
---@field size? integer|integer[]  of the spatial dimensions
---@field scale_factor? number|number[]  alternative to size
---@field mode? string  'nearest', 'nearest-exact', 'area', 'linear' for (N, C, L), 'bilinear' and
---  'bicubic' for (N, C, H, W), 'trilinear' for (N, C, D, H, W); default 'nearest'
---@field align_corners? boolean  the corner positions of input and result coincide; not for
---  nearest and area (default false)
---@field recompute_scale_factor? boolean  compute positions from the rounded sizes, not from
---  scale_factor (default false)

local OPTIONS = { 'size', 'scale_factor', 'mode', 'align_corners', 'recompute_scale_factor' }

-- One factor for each of n spatial dimensions.
local function factors(what, given, n)
  local list = type(given) == 'table' and arguments.array(what, 'scale_factor', given) or {}
  if type(given) == 'table' and #list ~= n then
    errors.raise('ValueError', "%s: 'scale_factor' has %d numbers, expected one or %d", what, #list,
      n)
  end
  local out = {}
  for d = 1, n do
    out[d] = arguments.number(what, 'scale_factor', list[d] or given)
    if not (out[d] > 0 and out[d] < math.huge) then
      errors.raise('ValueError', "%s: 'scale_factor' is %g, expected a finite number above 0", what,
        out[d])
    end
  end
  return out
end

--- Check options as far as possible without an input.
---@param what string  the function or class
---@param opts? ms.ops.InterpolateOptions
---@return ms.ops.InterpolateOptions
function interpolate.options(what, opts)
  opts = errors.options(what, opts, OPTIONS)
  if opts.mode ~= nil then
    errors.choice(what, 'mode', opts.mode, NAMES)
  end
  arguments.flag(what, 'align_corners', opts.align_corners, false)
  arguments.flag(what, 'recompute_scale_factor', opts.recompute_scale_factor, false)
  if (opts.size == nil) == (opts.scale_factor == nil) then
    errors.raise('ValueError', "%s: %s of 'size' and 'scale_factor' are given, expected one", what,
      opts.size == nil and 'none' or 'both')
  elseif opts.align_corners ~= nil and not MODES[opts.mode or 'nearest'].weighted then
    errors.raise('ValueError', "%s: 'align_corners' is given in mode '%s', which has no weights; "
      .. 'expected linear, bilinear, bicubic or trilinear', what, opts.mode or 'nearest')
  end
  return opts
end

local WHAT = 'interpolate'

--- Resample the spatial dimensions of x (PyTorch's F.interpolate, without antialias).
---@param x ms.Tensor  (N, C, L), (N, C, H, W) or (N, C, D, H, W)
---@param opts ms.ops.InterpolateOptions
---@return ms.Tensor
local function run(x, opts)
  opts = interpolate.options(WHAT, opts)
  local sizes = arguments.tensor(WHAT, 'x', x):shape()
  local n, name = #sizes - 2, opts.mode or 'nearest'
  local mode = MODES[name]
  if n < 1 or n > 3 or mode.dims and mode.dims ~= #sizes then
    errors.raise('ValueError', "%s: x has %d dimensions, expected %s in mode '%s'", WHAT, #sizes,
      mode.dims or '3 to 5', name)
  end
  local by = opts.scale_factor and factors(WHAT, opts.scale_factor, n)
  local size = opts.size and spatial.sizes(WHAT, 'size', opts.size, n, nil, 1) or {}
  for d = 1, n do
    size[d] = size[d] or math.floor(sizes[d + 2] * by[d])
    if size[d] < 1 or sizes[d + 2] < 1 then
      errors.raise('ValueError', '%s: spatial dimension %d has size %d and would have %d, expected '
        .. '1 or more', WHAT, d, sizes[d + 2], size[d])
    end
  end
  if name == 'area' then
    return spatial.functions[('adaptive_avg_pool%dd'):format(n)](x, size)
  end
  local dtype, out = x:dtype(), x
  if mode.weighted and not dtypes.is_floating(dtype) then
    errors.raise('TypeError', "%s: x is %s, expected a floating dtype in mode '%s'", WHAT, dtype,
      name)
  elseif mode.weighted and dtype ~= 'f64' and dtype ~= 'f32' then
    out = x:f32() -- so that an f16 or bf16 result is rounded once
  end
  for d = 1, n do
    local from, to = sizes[d + 2], size[d]
    local scale = by and not opts.recompute_scale_factor and 1 / by[d] or from / to
    if opts.align_corners then
      scale = to > 1 and (from - 1) / (to - 1) or 0
    end
    if scale ~= 1 or from ~= to then
      out = resample(out, d + 2, to, scale, mode, opts.align_corners)
    end
  end
  return rawequal(out, x) and x:clone() or out:to(dtype)
end

interpolate.functions = { interpolate = run }

return interpolate
