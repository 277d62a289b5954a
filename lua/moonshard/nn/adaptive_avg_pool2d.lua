--- Averages of (N, C, H, W), see moonshard.nn.adaptive_pool.

local AdaptiveAvgPool = require 'moonshard.nn.adaptive_pool'

---@class ms.nn.AdaptiveAvgPool2d: ms.nn._AdaptiveAvgPool
---@overload fun(output_size: integer|integer[]): ms.nn.AdaptiveAvgPool2d
local AdaptiveAvgPool2d = AdaptiveAvgPool.extend('nn.AdaptiveAvgPool2d')

AdaptiveAvgPool2d._spatial, AdaptiveAvgPool2d._operator = 2, 'adaptive_avg_pool2d'

return AdaptiveAvgPool2d
