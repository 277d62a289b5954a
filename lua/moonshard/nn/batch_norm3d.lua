--- Batch normalisation of (N, C, D, H, W), see moonshard.nn.batch_norm.

local BatchNorm = require 'moonshard.nn.batch_norm'

---@class ms.nn.BatchNorm3d: ms.nn._BatchNorm
---@overload fun(num_features: integer, opts?: ms.nn.BatchNorm.Options): ms.nn.BatchNorm3d
local BatchNorm3d = BatchNorm.extend('nn.BatchNorm3d')

BatchNorm3d._least_dims, BatchNorm3d._most_dims, BatchNorm3d._expected_dims = 5, 5, '5'

return BatchNorm3d
