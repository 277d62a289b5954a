--- Batch normalisation of (N, C, H, W), see moonshard.nn.batch_norm.

local BatchNorm = require 'moonshard.nn.batch_norm'

---@class ms.nn.BatchNorm2d: ms.nn._BatchNorm
---@overload fun(num_features: integer, opts?: ms.nn.BatchNorm.Options): ms.nn.BatchNorm2d
local BatchNorm2d = BatchNorm.extend('nn.BatchNorm2d')

BatchNorm2d._least_dims, BatchNorm2d._most_dims, BatchNorm2d._expected_dims = 4, 4, '4'

return BatchNorm2d
