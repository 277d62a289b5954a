--- Batch normalisation of (N, C) or (N, C, L), see moonshard.nn.batch_norm.

local BatchNorm = require 'moonshard.nn.batch_norm'

---@class ms.nn.BatchNorm1d: ms.nn._BatchNorm
---@overload fun(num_features: integer, opts?: ms.nn.BatchNorm.Options): ms.nn.BatchNorm1d
local BatchNorm1d = BatchNorm.extend('nn.BatchNorm1d')

BatchNorm1d._least_dims, BatchNorm1d._most_dims, BatchNorm1d._expected_dims = 2, 3, '2 or 3'

return BatchNorm1d
