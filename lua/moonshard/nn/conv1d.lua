--- Convolution of (N, C, L), see moonshard.nn.conv.

local Conv = require 'moonshard.nn.conv'

---@class ms.nn.Conv1d: ms.nn._ConvNd
---@overload fun(inputs: integer, outputs: integer, kernel_size: ms.ops.Sizes, opts?: table): any
local Conv1d = Conv.extend('nn.Conv1d')

Conv1d._spatial, Conv1d._operator = 1, 'conv1d'

return Conv1d
