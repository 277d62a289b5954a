--- Convolution of (N, C, H, W), see moonshard.nn.conv.

local Conv = require 'moonshard.nn.conv'

---@class ms.nn.Conv2d: ms.nn._ConvNd
---@overload fun(inputs: integer, outputs: integer, kernel_size: ms.ops.Sizes, opts?: table): any
local Conv2d = Conv.extend('nn.Conv2d')

Conv2d._spatial, Conv2d._operator = 2, 'conv2d'

return Conv2d
