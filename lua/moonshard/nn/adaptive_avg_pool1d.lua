--- Averages of (N, C, L), see moonshard.nn.adaptive_pool.

local AdaptiveAvgPool = require 'moonshard.nn.adaptive_pool'

---@class ms.nn.AdaptiveAvgPool1d: ms.nn._AdaptiveAvgPool
---@overload fun(output_size: integer|integer[]): ms.nn.AdaptiveAvgPool1d
local AdaptiveAvgPool1d = AdaptiveAvgPool.extend('nn.AdaptiveAvgPool1d')

AdaptiveAvgPool1d._spatial, AdaptiveAvgPool1d._operator = 1, 'adaptive_avg_pool1d'

return AdaptiveAvgPool1d
