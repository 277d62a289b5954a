--- Largest elements of (N, C, H, W), see moonshard.nn.pool.

local Pool = require 'moonshard.nn.pool'

---@class ms.nn.MaxPool2d: ms.nn._Pool
---@overload fun(kernel_size: integer|integer[], opts?: ms.ops.MaxPoolOptions): ms.nn.MaxPool2d
local MaxPool2d = Pool.extend('nn.MaxPool2d')

MaxPool2d._spatial, MaxPool2d._operator = 2, 'max_pool2d'
MaxPool2d.options = { 'stride', 'padding', 'dilation', 'ceil_mode' }

return MaxPool2d
