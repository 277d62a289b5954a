--- The base of averages over windows that give a result of one size.
---
--- Shapes: x (N, C, ...) or (C, ...)

local Module = require 'moonshard.nn.module'
local ops = require 'moonshard.ops'
local spatial = require 'moonshard.internal.spatial'

---@class ms.nn._AdaptiveAvgPool: ms.nn.Module
---@field output_size integer[]
local AdaptiveAvgPool = Module.extend('nn._AdaptiveAvgPool')

---@param output_size integer|integer[]
function AdaptiveAvgPool:init(output_size)
  self.output_size = spatial.sizes(self._name, 'output_size', output_size, self._spatial, nil, 1)
end

---@param x ms.Tensor  (N, C, ...) or (C, ...)
---@return ms.Tensor
function AdaptiveAvgPool:forward(x)
  return ops[self._operator](x, self.output_size)
end

function AdaptiveAvgPool:extra_repr()
  return ('output_size=(%s)'):format(table.concat(self.output_size, ', '))
end

return AdaptiveAvgPool
