--- Averages of (N, C, L), see moonshard.nn.pool.

local Pool = require 'moonshard.nn.pool'

---@class ms.nn.AvgPool1d: ms.nn._Pool
---@overload fun(kernel_size: integer|integer[], opts?: ms.ops.AvgPoolOptions): ms.nn.AvgPool1d
local AvgPool1d = Pool.extend('nn.AvgPool1d')

AvgPool1d._spatial, AvgPool1d._operator = 1, 'avg_pool1d'
AvgPool1d.options = { 'stride', 'padding', 'ceil_mode', 'count_include_pad' }

return AvgPool1d
