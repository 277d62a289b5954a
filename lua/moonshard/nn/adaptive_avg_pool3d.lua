--- Averages of (N, C, D, H, W), see moonshard.nn.adaptive_pool.

local AdaptiveAvgPool = require 'moonshard.nn.adaptive_pool'

---@class ms.nn.AdaptiveAvgPool3d: ms.nn._AdaptiveAvgPool
---@overload fun(output_size: integer|integer[]): ms.nn.AdaptiveAvgPool3d
local AdaptiveAvgPool3d = AdaptiveAvgPool.extend('nn.AdaptiveAvgPool3d')

AdaptiveAvgPool3d._spatial, AdaptiveAvgPool3d._operator = 3, 'adaptive_avg_pool3d'

return AdaptiveAvgPool3d
