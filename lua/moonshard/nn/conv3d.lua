--- Convolution of (N, C, D, H, W), see moonshard.nn.conv.

local Conv = require 'moonshard.nn.conv'

---@class ms.nn.Conv3d: ms.nn._ConvNd
---@overload fun(inputs: integer, outputs: integer, kernel_size: ms.ops.Sizes, opts?: table): any
local Conv3d = Conv.extend('nn.Conv3d')

Conv3d._spatial, Conv3d._operator = 3, 'conv3d'

return Conv3d
