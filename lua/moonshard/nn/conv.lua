--- Convolutions (cross-correlations, as in PyTorch) in one to three spatial dimensions.
---
--- Shapes: x (N, in, ...) or (in, ...)  weight (out, in / groups, ...)  bias (out)
--- Init:   both uniform in [-1/sqrt(fan_in), 1/sqrt(fan_in)), as PyTorch; fan_in is the weight's
---         second size times the filter's elements.

local Module = require 'moonshard.nn.module'
local check = require 'moonshard.nn.check'
local errors = require 'moonshard.base.errors'
local ops = require 'moonshard.ops'
local rules = require 'moonshard.nn.rules'
local spatial = require 'moonshard.ops.spatial'

---@class ms.nn._ConvNd: ms.nn.Module
---@field in_channels integer
---@field out_channels integer
---@field kernel_size integer[]
---@field stride integer[]
---@field padding integer[]|'same'|'valid'
---@field dilation integer[]
---@field groups integer
---@field padding_mode string
---@field weight ms.Tensor  (out, in / groups, ...)
---@field bias ms.Tensor?  (out)
local Conv = Module.extend('nn._ConvNd')

---@class ms.nn.Conv.Options
---@field stride? integer|integer[]  default 1
---@field padding? integer|integer[]|'same'|'valid'  default 0
---@field dilation? integer|integer[]  default 1
---@field groups? integer  default 1
---@field bias? boolean  default true
---@field padding_mode? 'zeros'|'reflect'|'replicate'|'circular'  default 'zeros'
---@field dtype? ms.DType  of the master weights (default 'f32')

local MODES = { 'zeros', 'reflect', 'replicate', 'circular' }

Conv._modes = MODES
Conv.options = { 'stride', 'padding', 'dilation', 'groups', 'bias', 'padding_mode', 'device',
  'dtype' }

local checks = { bias = 'flag', device = 'device', dtype = 'floating' }

-- The first two sizes of the weight.
function Conv:_channels()
  return self.out_channels, self.in_channels / self.groups
end

--- ValueError if `groups` does not divide the channels.
---@param in_channels integer
---@param out_channels integer
---@param kernel_size integer|integer[]
---@param opts? ms.nn.Conv.Options
function Conv:init(in_channels, out_channels, kernel_size, opts)
  local name, n = self._name, self._spatial
  check.sizes(name, 1, { 'in_channels', 'out_channels' }, in_channels, out_channels)
  opts = errors.options(name, opts, self.options)
  local checked = {}
  for key in next, checks do
    checked[key] = opts[key]
  end
  errors.options(name, checked, checks)
  if opts.padding_mode ~= nil then
    errors.choice(name, 'padding_mode', opts.padding_mode, self._modes)
  end
  self.in_channels, self.out_channels = in_channels, out_channels
  self.groups = spatial.sizes(name, 'groups', opts.groups, 1, 1, 1)[1]
  for _, key in ipairs { 'in_channels', 'out_channels' } do
    if self[key] % self.groups ~= 0 then
      errors.raise('ValueError', "%s: '%s' is %d, expected a multiple of 'groups' = %d", name, key,
        self[key], self.groups)
    end
  end
  self.kernel_size = spatial.sizes(name, 'kernel_size', kernel_size, n, nil, 1)
  self.stride = spatial.sizes(name, 'stride', opts.stride, n, 1, 1)
  self.dilation = spatial.sizes(name, 'dilation', opts.dilation, n, 1, 1)
  self.padding_mode = opts.padding_mode or 'zeros'
  self.padding = type(opts.padding) == 'string' and opts.padding
    or spatial.sizes(name, 'padding', opts.padding, n, 0, 0)
  self._around = spatial.padding(name, self.padding, self.kernel_size, self.stride, self.dilation)

  local first, second = self:_channels()
  local fan_in = second
  for _, size in ipairs(self.kernel_size) do
    fan_in = fan_in * size
  end
  local rule, dtype = rules.fan_in_uniform(fan_in), { dtype = opts.dtype }
  self:param('weight', { first, second, unpack(self.kernel_size) }, rule, dtype)
  if opts.bias ~= false then
    self:param('bias', { out_channels }, rule, dtype)
  end
end

-- What each padding mode adds before and after a dimension.
local EDGES = {
  reflect = function(x, dim, front, back)
    local n = x:size(dim)
    return x:narrow(dim, 2, front):flip(dim), x:narrow(dim, n - back, back):flip(dim)
  end,
  circular = function(x, dim, front, back)
    local n = x:size(dim)
    return x:narrow(dim, n - front + 1, front), x:narrow(dim, 1, back)
  end,
  replicate = function(x, dim, front, back)
    local before, after = x:shape(), x:shape()
    before[dim], after[dim] = front, back
    return x:narrow(dim, 1, 1):expand(before), x:narrow(dim, x:size(dim), 1):expand(after)
  end,
}

local function pad(x, around, mode)
  local n = #around / 2
  for d = 1, n do
    local front, back = around[2 * d - 1], around[2 * d]
    if front + back > 0 then
      local dim = x:dim() - n + d
      local before, after = EDGES[mode](x, dim, front, back)
      x = ops.cat({ before, x, after }, dim)
    end
  end
  return x
end

---@param x ms.Tensor  (N, in, ...) or (in, ...)
---@return ms.Tensor  (N, out, ...) or (out, ...)
function Conv:forward(x)
  local padding = self.padding
  if self.padding_mode ~= 'zeros' then
    x, padding = pad(x, self._around, self.padding_mode), 0
  end
  return ops[self._operator](x, self.weight, self.bias, {
    stride = self.stride, padding = padding, dilation = self.dilation, groups = self.groups,
  })
end

local function tuple(value)
  if type(value) == 'string' then
    return value
  end
  return ('(%s%s)'):format(table.concat(value, ', '), #value == 1 and ',' or '')
end

function Conv:extra_repr()
  local parts = { ('%d, %d, kernel_size=%s, stride=%s'):format(self.in_channels, self.out_channels,
    tuple(self.kernel_size), tuple(self.stride)) }
  local function add(name, value, default)
    if value ~= default then
      parts[#parts + 1] = ('%s=%s'):format(name, value)
    end
  end
  local none = tuple(spatial.sizes('', '', 0, self._spatial, nil, 0))
  add('padding', tuple(self.padding), none)
  add('dilation', tuple(self.dilation), tuple(spatial.sizes('', '', 1, self._spatial, nil, 0)))
  if self.output_padding then
    add('output_padding', tuple(self.output_padding), none)
  end
  add('groups', self.groups, 1)
  add('bias', self.bias == nil and 'False' or nil)
  add('padding_mode', self.padding_mode, 'zeros')
  return table.concat(parts, ', ')
end

local classes = { _ConvNd = Conv }

--- Convolution of (N, C, L).
---@class ms.nn.Conv1d: ms.nn._ConvNd
---@overload fun(inputs: integer, outputs: integer, kernel_size: ms.ops.Sizes, opts?: table): any
classes.Conv1d = Conv.extend('nn.Conv1d')

--- Convolution of (N, C, H, W).
---@class ms.nn.Conv2d: ms.nn._ConvNd
---@overload fun(inputs: integer, outputs: integer, kernel_size: ms.ops.Sizes, opts?: table): any
classes.Conv2d = Conv.extend('nn.Conv2d')

--- Convolution of (N, C, D, H, W).
---@class ms.nn.Conv3d: ms.nn._ConvNd
---@overload fun(inputs: integer, outputs: integer, kernel_size: ms.ops.Sizes, opts?: table): any
classes.Conv3d = Conv.extend('nn.Conv3d')

for n = 1, 3 do
  local cls = classes[('Conv%dd'):format(n)]
  cls._spatial, cls._operator = n, ('conv%dd'):format(n)
end

return classes
