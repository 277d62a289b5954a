--- Averages of (N, C, D, H, W), see moonshard.nn.pool.

local Pool = require 'moonshard.nn.pool'

---@class ms.nn.AvgPool3d: ms.nn._Pool
---@overload fun(kernel_size: integer|integer[], opts?: ms.ops.AvgPoolOptions): ms.nn.AvgPool3d
local AvgPool3d = Pool.extend('nn.AvgPool3d')

AvgPool3d._spatial, AvgPool3d._operator = 3, 'avg_pool3d'
AvgPool3d.options = { 'stride', 'padding', 'ceil_mode', 'count_include_pad', 'divisor_override' }

return AvgPool3d
