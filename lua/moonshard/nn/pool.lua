--- Pooling over windows, in one to three spatial dimensions.
---
--- Shapes: x (N, C, ...) or (C, ...)

local Module = require 'moonshard.nn.module'
local errors = require 'moonshard.base.errors'
local ops = require 'moonshard.ops'
local spatial = require 'moonshard.ops.spatial'

--- Maximum or average over windows.
---@class ms.nn._Pool: ms.nn.Module
---@field kernel_size integer[]
---@field stride integer[]
---@field padding integer[]
local Pool = Module.extend('nn._Pool')

--- TypeError or ValueError for invalid arguments.
---@param kernel_size integer|integer[]
---@param opts? ms.ops.MaxPoolOptions|ms.ops.AvgPoolOptions
function Pool:init(kernel_size, opts)
  local name, n = self._name, self._spatial
  opts = errors.options(name, opts, self.options)
  self.kernel_size = spatial.sizes(name, 'kernel_size', kernel_size, n, nil, 1)
  self.stride = spatial.sizes(name, 'stride', opts.stride, n, self.kernel_size, 1)
  self.padding = spatial.sizes(name, 'padding', opts.padding, n, 0, 0)
  self._others = {}
  for _, key in ipairs(self.options) do
    if self[key] == nil then
      self._others[key] = opts[key]
    end
  end
end

---@param x ms.Tensor  (N, C, ...) or (C, ...)
---@return ms.Tensor
function Pool:forward(x)
  local opts = { stride = self.stride, padding = self.padding }
  for key, value in next, self._others do
    opts[key] = value
  end
  return ops[self._operator](x, self.kernel_size, opts)
end

function Pool:extra_repr()
  local function tuple(list) return ('(%s)'):format(table.concat(list, ', ')) end
  return ('kernel_size=%s, stride=%s, padding=%s'):format(tuple(self.kernel_size),
    tuple(self.stride), tuple(self.padding))
end

--- Averages over windows chosen to give the requested output size.
---@class ms.nn._AdaptiveAvgPool: ms.nn.Module
---@field output_size (integer|false)[]
local AdaptiveAvgPool = Module.extend('nn._AdaptiveAvgPool')

---@param output_size integer|(integer|false)[]  false: the size of the input
function AdaptiveAvgPool:init(output_size)
  self.output_size = spatial.output_size(self._name, output_size, self._spatial)
end

---@param x ms.Tensor  (N, C, ...) or (C, ...)
---@return ms.Tensor
function AdaptiveAvgPool:forward(x)
  return ops[self._operator](x, self.output_size)
end

function AdaptiveAvgPool:extra_repr()
  local sizes = {}
  for d, size in ipairs(self.output_size) do
    sizes[d] = size or 'None'
  end
  return ('output_size=(%s)'):format(table.concat(sizes, ', '))
end

local classes = {}

--- Maximum pooling of (N, C, L).
---@class ms.nn.MaxPool1d: ms.nn._Pool
---@overload fun(kernel_size: integer|integer[], opts?: ms.ops.MaxPoolOptions): ms.nn.MaxPool1d
classes.MaxPool1d = Pool.extend('nn.MaxPool1d')

--- Maximum pooling of (N, C, H, W).
---@class ms.nn.MaxPool2d: ms.nn._Pool
---@overload fun(kernel_size: integer|integer[], opts?: ms.ops.MaxPoolOptions): ms.nn.MaxPool2d
classes.MaxPool2d = Pool.extend('nn.MaxPool2d')

--- Maximum pooling of (N, C, D, H, W).
---@class ms.nn.MaxPool3d: ms.nn._Pool
---@overload fun(kernel_size: integer|integer[], opts?: ms.ops.MaxPoolOptions): ms.nn.MaxPool3d
classes.MaxPool3d = Pool.extend('nn.MaxPool3d')

--- Average pooling of (N, C, L).
---@class ms.nn.AvgPool1d: ms.nn._Pool
---@overload fun(kernel_size: integer|integer[], opts?: ms.ops.AvgPoolOptions): ms.nn.AvgPool1d
classes.AvgPool1d = Pool.extend('nn.AvgPool1d')

--- Average pooling of (N, C, H, W).
---@class ms.nn.AvgPool2d: ms.nn._Pool
---@overload fun(kernel_size: integer|integer[], opts?: ms.ops.AvgPoolOptions): ms.nn.AvgPool2d
classes.AvgPool2d = Pool.extend('nn.AvgPool2d')

--- Average pooling of (N, C, D, H, W).
---@class ms.nn.AvgPool3d: ms.nn._Pool
---@overload fun(kernel_size: integer|integer[], opts?: ms.ops.AvgPoolOptions): ms.nn.AvgPool3d
classes.AvgPool3d = Pool.extend('nn.AvgPool3d')

--- Average pooling of (N, C, L).
---@class ms.nn.AdaptiveAvgPool1d: ms.nn._AdaptiveAvgPool
---@overload fun(output_size: integer|integer[]): ms.nn.AdaptiveAvgPool1d
classes.AdaptiveAvgPool1d = AdaptiveAvgPool.extend('nn.AdaptiveAvgPool1d')

--- Average pooling of (N, C, H, W).
---@class ms.nn.AdaptiveAvgPool2d: ms.nn._AdaptiveAvgPool
---@overload fun(output_size: integer|integer[]): ms.nn.AdaptiveAvgPool2d
classes.AdaptiveAvgPool2d = AdaptiveAvgPool.extend('nn.AdaptiveAvgPool2d')

--- Average pooling of (N, C, D, H, W).
---@class ms.nn.AdaptiveAvgPool3d: ms.nn._AdaptiveAvgPool
---@overload fun(output_size: integer|integer[]): ms.nn.AdaptiveAvgPool3d
classes.AdaptiveAvgPool3d = AdaptiveAvgPool.extend('nn.AdaptiveAvgPool3d')

local AVERAGE = { 'stride', 'padding', 'ceil_mode', 'count_include_pad', 'divisor_override' }

for n = 1, 3 do
  for name, row in next, {
    MaxPool = { 'max_pool', { 'stride', 'padding', 'dilation', 'ceil_mode' } },
    AvgPool = { 'avg_pool', { unpack(AVERAGE, 1, n > 1 and 5 or 4) } },
    AdaptiveAvgPool = { 'adaptive_avg_pool' },
  } do
    local cls = classes[('%s%dd'):format(name, n)]
    cls._spatial, cls._operator, cls.options = n, ('%s%dd'):format(row[1], n), row[2]
  end
end

return classes
