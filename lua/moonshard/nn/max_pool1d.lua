--- Largest elements of (N, C, L), see moonshard.nn.pool.

local Pool = require 'moonshard.nn.pool'

---@class ms.nn.MaxPool1d: ms.nn._Pool
---@overload fun(kernel_size: integer|integer[], opts?: ms.ops.MaxPoolOptions): ms.nn.MaxPool1d
local MaxPool1d = Pool.extend('nn.MaxPool1d')

MaxPool1d._spatial, MaxPool1d._operator = 1, 'max_pool1d'
MaxPool1d.options = { 'stride', 'padding', 'dilation', 'ceil_mode' }

return MaxPool1d
