--- Largest elements of (N, C, D, H, W), see moonshard.nn.pool.

local Pool = require 'moonshard.nn.pool'

---@class ms.nn.MaxPool3d: ms.nn._Pool
---@overload fun(kernel_size: integer|integer[], opts?: ms.ops.MaxPoolOptions): ms.nn.MaxPool3d
local MaxPool3d = Pool.extend('nn.MaxPool3d')

MaxPool3d._spatial, MaxPool3d._operator = 3, 'max_pool3d'
MaxPool3d.options = { 'stride', 'padding', 'dilation', 'ceil_mode' }

return MaxPool3d
