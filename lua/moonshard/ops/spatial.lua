--- Convolutions and pooling over the spatial dimensions of (N, C, ...) or (C, ...).

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'

local calls = B.calls

local spatial = { functions = {} }
local functions = spatial.functions

--- Integers for n spatial dimensions, given as a list of n numbers or as one number for all.
---@param what string  the function
---@param name string  the argument
---@param value integer|integer[]|nil
---@param n integer
---@param default integer|integer[]|nil
---@param lowest integer
---@return integer[]
function spatial.sizes(what, name, value, n, default, lowest)
  if value == nil then
    value = default
  end
  local is_list = type(value) == 'table'
  if is_list and #arguments.array(what, name, value) ~= n then
    errors.raise('ValueError', "%s: '%s' has %d numbers, expected one or %d", what, name, #value, n)
  end
  local list = {}
  for d = 1, n do
    list[d] = arguments.whole(what, name, is_list and value[d] or value, nil, lowest)
  end
  return list
end

local sizes = spatial.sizes

--- Check the output size of adaptive pooling.
---@param what string
---@param value integer|(integer|false)[]  false: the size of the input
---@param n integer  number of spatial dimensions
---@return (integer|false)[]
function spatial.output_size(what, value, n)
  if type(value) ~= 'table' then
    return sizes(what, 'output_size', value, n, nil, 1)
  end
  local known, list = {}, {}
  for d, size in ipairs(arguments.array(what, 'output_size', value)) do
    known[d] = size or 1
  end
  for d, size in ipairs(sizes(what, 'output_size', known, n, nil, 1)) do
    list[d] = value[d] and size
  end
  return list
end

local function buffer(list)
  return B.new('int64_t[?]', #list, list)
end

-- x with a batch dimension, and whether it was added.
local function batched(what, x, n)
  local dim = arguments.tensor(what, 'x', x):dim()
  if dim == n + 1 then
    return x:unsqueeze(1), true
  elseif dim ~= n + 2 then
    errors.raise('ValueError', '%s: x has %d dimensions, expected %d (N, C, ...) or %d (C, ...)',
      what, dim, n + 2, n + 1)
  end
  return x, false
end

--- Padding before and after each dimension: 2 n numbers.
---@param what string
---@param padding integer|integer[]|'same'|'valid'|nil
---@param kernel integer[]
---@param stride integer[]
---@param dilation integer[]
---@return integer[]
function spatial.padding(what, padding, kernel, stride, dilation)
  local n, list = #kernel, {}
  if type(padding) == 'string' then
    errors.choice(what, 'padding', padding, { 'same', 'valid' })
    for d = 1, n do
      local all = padding == 'same' and dilation[d] * (kernel[d] - 1) or 0
      if padding == 'same' and stride[d] ~= 1 then
        errors.raise('ValueError', "%s: 'padding' is 'same' and 'stride' %d, expected stride 1",
          what, stride[d])
      end
      list[2 * d - 1] = math.floor(all / 2)
      list[2 * d] = all - list[2 * d - 1]
    end
    return list
  end
  padding = sizes(what, 'padding', padding, n, 0, 0)
  for d = 1, n do
    list[2 * d - 1], list[2 * d] = padding[d], padding[d]
  end
  return list
end

-- -- convolutions --------------------------------------------------------------------------------

---@class ms.ops.ConvOptions
---@field stride? integer|integer[]  default 1; a list has one number per spatial dimension
---@field padding? integer|integer[]|'same'|'valid'  zeros on both sides (default 0)
---@field dilation? integer|integer[]  distance of the filter's taps (default 1)
---@field groups? integer  number of channel groups, each with its own filters (default 1)

---@class ms.ops.ConvTransposeOptions
---@field stride? integer|integer[]  default 1
---@field padding? integer|integer[]  positions removed on both sides (default 0)
---@field output_padding? integer|integer[]  positions added at the end; less than stride or
---  dilation (default 0)
---@field dilation? integer|integer[]  default 1
---@field groups? integer  default 1

local conv_options = { 'stride', 'padding', 'dilation', 'groups' }
local transpose_options = { 'stride', 'padding', 'output_padding', 'dilation', 'groups' }

-- Sizes of the filter w.
local function kernel_of(what, w, n, shape)
  if arguments.tensor(what, 'w', w):dim() ~= n + 2 then
    errors.raise('ValueError', '%s: w has %d dimensions, expected %d %s', what, w:dim(), n + 2,
      shape)
  end
  local kernel = {}
  for d = 1, n do
    kernel[d] = w:size(d + 2)
  end
  return kernel
end

for n = 1, 3 do
  local what, transpose = ('conv%dd'):format(n), ('conv_transpose%dd'):format(n)

  functions[what] = function(x, w, bias, opts)
    opts = errors.options(what, opts, conv_options)
    local input, alone = batched(what, x, n)
    local kernel = kernel_of(what, w, n, '(O, C / groups, ...)')
    local stride = sizes(what, 'stride', opts.stride, n, 1, 1)
    local dilation = sizes(what, 'dilation', opts.dilation, n, 1, 1)
    local padding = spatial.padding(what, opts.padding, kernel, stride, dilation)
    local y = calls.conv(input, w, bias, n, buffer(stride), buffer(padding), buffer(dilation),
      arguments.whole(what, 'groups', opts.groups, 1, 1))
    return alone and y:squeeze(1) or y
  end

  functions[transpose] = function(x, w, bias, opts)
    opts = errors.options(transpose, opts, transpose_options)
    local input, alone = batched(transpose, x, n)
    kernel_of(transpose, w, n, '(C, O / groups, ...)')
    local function numbers(name, default, lowest)
      return buffer(sizes(transpose, name, opts[name], n, default, lowest))
    end
    local y = calls.conv_transpose(input, w, bias, n, numbers('stride', 1, 1),
      numbers('padding', 0, 0), numbers('output_padding', 0, 0), numbers('dilation', 1, 1),
      arguments.whole(transpose, 'groups', opts.groups, 1, 1))
    return alone and y:squeeze(1) or y
  end
end

-- -- pooling -------------------------------------------------------------------------------------

---@class ms.ops.PoolOptions
---@field stride? integer|integer[]  default: kernel_size
---@field padding? integer|integer[]  on both sides, at most half of the window (default 0)
---@field ceil_mode? boolean  the last window may extend beyond the padding (default false)

---@class ms.ops.MaxPoolOptions: ms.ops.PoolOptions
---@field dilation? integer|integer[]  distance of the elements of a window (default 1)

---@class ms.ops.AvgPoolOptions: ms.ops.PoolOptions
---@field count_include_pad? boolean  include zeros of the padding in averages (default true)
---@field divisor_override? integer  divisor of the sums

local max_pool_options = { 'stride', 'padding', 'dilation', 'ceil_mode' }
local avg_pool_options = { 'stride', 'padding', 'ceil_mode', 'count_include_pad',
  'divisor_override' }

local function window(what, n, kernel_size, opts)
  local kernel = sizes(what, 'kernel_size', kernel_size, n, nil, 1)
  return buffer(kernel), buffer(sizes(what, 'stride', opts.stride, n, kernel, 1)),
    buffer(sizes(what, 'padding', opts.padding, n, 0, 0))
end

for n = 1, 3 do
  local max, avg = ('max_pool%dd'):format(n), ('avg_pool%dd'):format(n)
  local adaptive = ('adaptive_avg_pool%dd'):format(n)

  functions[max] = function(x, kernel_size, opts)
    opts = errors.options(max, opts, max_pool_options)
    local input, alone = batched(max, x, n)
    local kernel, stride, padding = window(max, n, kernel_size, opts)
    local y = calls.max_pool(input, n, kernel, stride, padding,
      buffer(sizes(max, 'dilation', opts.dilation, n, 1, 1)),
      arguments.flag(max, 'ceil_mode', opts.ceil_mode, false))
    return alone and y:squeeze(1) or y
  end

  functions[avg] = function(x, kernel_size, opts)
    opts = errors.options(avg, opts, avg_pool_options)
    local input, alone = batched(avg, x, n)
    local kernel, stride, padding = window(avg, n, kernel_size, opts)
    local y = calls.avg_pool(input, n, kernel, stride, padding,
      arguments.flag(avg, 'ceil_mode', opts.ceil_mode, false),
      arguments.flag(avg, 'count_include_pad', opts.count_include_pad, true),
      opts.divisor_override == nil and 0
        or arguments.whole(avg, 'divisor_override', opts.divisor_override, nil, 1))
    return alone and y:squeeze(1) or y
  end

  functions[adaptive] = function(x, output_size)
    local input, alone = batched(adaptive, x, n)
    local size = spatial.output_size(adaptive, output_size, n)
    for d = 1, n do
      size[d] = size[d] or input:size(d + 2)
    end
    local y = calls.adaptive_avg_pool(input, n, buffer(size))
    return alone and y:squeeze(1) or y
  end
end

-- -- types ---------------------------------------------------------------------------------------

---@alias ms.ops.Sizes integer|integer[]  one for all spatial dimensions, or one for each
---@alias ms.ops.Conv
---| fun(x: ms.Tensor, w: ms.Tensor, bias?: ms.Tensor, opts?: ms.ops.ConvOptions): ms.Tensor
---@alias ms.ops.ConvTranspose
---| fun(x: ms.Tensor, w: ms.Tensor, b?: ms.Tensor, opts?: ms.ops.ConvTransposeOptions): ms.Tensor
---@alias ms.ops.MaxPool
---| fun(x: ms.Tensor, kernel_size: ms.ops.Sizes, opts?: ms.ops.MaxPoolOptions): ms.Tensor
---@alias ms.ops.AvgPool
---| fun(x: ms.Tensor, kernel_size: ms.ops.Sizes, opts?: ms.ops.AvgPoolOptions): ms.Tensor
--- false: the size of the input
---@alias ms.ops.AdaptiveAvgPool
---| fun(x: ms.Tensor, output_size: integer|(integer|false)[]): ms.Tensor

--- x (N, C, ...) or (C, ...), w (O, C / groups, ...), bias (O). For conv_transpose w is (C, O /
--- groups, ...); it is the gradient of a convolution with respect to its input, and its result has
--- (size - 1) stride - 2 padding + dilation (kernel - 1) + output_padding + 1 positions. ValueError
--- for other shapes.
---@class ms.ops.Spatial
---@field conv1d ms.ops.Conv
---@field conv2d ms.ops.Conv
---@field conv3d ms.ops.Conv
---@field conv_transpose1d ms.ops.ConvTranspose
---@field conv_transpose2d ms.ops.ConvTranspose
---@field conv_transpose3d ms.ops.ConvTranspose
---@field max_pool1d ms.ops.MaxPool
---@field max_pool2d ms.ops.MaxPool
---@field max_pool3d ms.ops.MaxPool
---@field avg_pool1d ms.ops.AvgPool
---@field avg_pool2d ms.ops.AvgPool
---@field avg_pool3d ms.ops.AvgPool
---@field adaptive_avg_pool1d ms.ops.AdaptiveAvgPool
---@field adaptive_avg_pool2d ms.ops.AdaptiveAvgPool
---@field adaptive_avg_pool3d ms.ops.AdaptiveAvgPool

return spatial
