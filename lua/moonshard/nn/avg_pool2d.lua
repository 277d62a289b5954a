--- Averages of (N, C, H, W), see moonshard.nn.pool.

local Pool = require 'moonshard.nn.pool'

---@class ms.nn.AvgPool2d: ms.nn._Pool
---@overload fun(kernel_size: integer|integer[], opts?: ms.ops.AvgPoolOptions): ms.nn.AvgPool2d
local AvgPool2d = Pool.extend('nn.AvgPool2d')

AvgPool2d._spatial, AvgPool2d._operator = 2, 'avg_pool2d'
AvgPool2d.options = { 'stride', 'padding', 'ceil_mode', 'count_include_pad', 'divisor_override' }

return AvgPool2d
