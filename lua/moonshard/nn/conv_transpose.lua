--- Transposed convolutions: the gradient of a convolution with respect to its input, as a layer.
---
--- Shapes: x (N, in, ...) or (in, ...)  weight (in, out / groups, ...)  bias (out)
---         y has (size - 1) stride - 2 padding + dilation (kernel - 1) + output_padding + 1
---         positions
--- Init:   as nn.Conv2d; fan_in is out / groups times the filter's elements, as PyTorch.

local Conv = require('moonshard.nn.conv')._ConvNd
local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'
local ops = require 'moonshard.ops'
local spatial = require 'moonshard.ops.spatial'

---@class ms.nn._ConvTransposeNd: ms.nn._ConvNd
---@field output_padding integer[]
---@field padding integer[]
---@field weight ms.Tensor  (in, out / groups, ...)
local ConvTranspose = Conv.extend('nn._ConvTransposeNd')

---@class ms.nn.ConvTranspose.Options
---@field stride? integer|integer[]  default 1
---@field padding? integer|integer[]  positions removed on both sides (default 0)
---@field output_padding? integer|integer[]  positions added at the end; less than stride or
---  dilation (default 0)
---@field groups? integer  default 1
---@field bias? boolean  default true
---@field dilation? integer|integer[]  default 1
---@field padding_mode? 'zeros'
---@field dtype? ms.DType  of the master weights (default 'f32')

ConvTranspose._modes = { 'zeros' }
ConvTranspose.options = { 'output_padding', unpack(Conv.options) }

function ConvTranspose:_channels()
  return self.in_channels, self.out_channels / self.groups
end

---@param in_channels integer
---@param out_channels integer
---@param kernel_size integer|integer[]
---@param opts? ms.nn.ConvTranspose.Options
function ConvTranspose:init(in_channels, out_channels, kernel_size, opts)
  Conv.init(self, in_channels, out_channels, kernel_size, opts)
  local name, n = self._name, self._spatial
  if type(self.padding) == 'string' then
    arguments.refuse(name, 'padding', self.padding, 'whole numbers')
  end
  self.output_padding = spatial.sizes(name, 'output_padding', opts and opts.output_padding, n, 0, 0)
end

-- The output_padding that gives this output size. The size may include batch and channels.
local function padding_for(self, x, output_size)
  local name, n, list = self._name, self._spatial, {}
  local given = arguments.array(name, 'output_size', output_size)
  local size = #given == n + 2 and { unpack(given, 3) } or given
  size = spatial.sizes(name, 'output_size', size, n, nil, 0)
  for d = 1, n do
    local least = (x:size(x:dim() - n + d) - 1) * self.stride[d] - 2 * self.padding[d]
      + self.dilation[d] * (self.kernel_size[d] - 1) + 1
    list[d] = size[d] - least
    if list[d] < 0 or list[d] >= self.stride[d] then
      errors.raise('ValueError', "%s: 'output_size' is %d in spatial dimension %d, expected %d to "
        .. '%d for x (%s)', name, size[d], d, least, least + self.stride[d] - 1,
        table.concat(x:shape(), ', '))
    end
  end
  return list
end

---@param x ms.Tensor  (N, in, ...) or (in, ...)
---@param output_size? integer[]  sizes of the spatial or of all dimensions; replaces
---  output_padding
---@return ms.Tensor  (N, out, ...) or (out, ...)
function ConvTranspose:forward(x, output_size)
  arguments.tensor(self._name, 'x', x)
  return ops[self._operator](x, self.weight, self.bias, {
    stride = self.stride, padding = self.padding, dilation = self.dilation, groups = self.groups,
    output_padding = output_size and padding_for(self, x, output_size) or self.output_padding,
  })
end

local classes = {}

---@class ms.nn.ConvTranspose1d: ms.nn._ConvTransposeNd
---@overload fun(inputs: integer, outputs: integer, kernel_size: ms.ops.Sizes, opts?: table): any
classes.ConvTranspose1d = ConvTranspose.extend('nn.ConvTranspose1d')

---@class ms.nn.ConvTranspose2d: ms.nn._ConvTransposeNd
---@overload fun(inputs: integer, outputs: integer, kernel_size: ms.ops.Sizes, opts?: table): any
classes.ConvTranspose2d = ConvTranspose.extend('nn.ConvTranspose2d')

---@class ms.nn.ConvTranspose3d: ms.nn._ConvTransposeNd
---@overload fun(inputs: integer, outputs: integer, kernel_size: ms.ops.Sizes, opts?: table): any
classes.ConvTranspose3d = ConvTranspose.extend('nn.ConvTranspose3d')

for n = 1, 3 do
  local cls = classes[('ConvTranspose%dd'):format(n)]
  cls._spatial, cls._operator = n, ('conv_transpose%dd'):format(n)
end

return classes
