--- The base of averages over windows that give a result of one size.
---
--- Shapes: x (N, C, ...) or (C, ...)

local Module = require 'moonshard.nn.module'
local ops = require 'moonshard.ops'
local spatial = require 'moonshard.ops.spatial'

---@class ms.nn._AdaptiveAvgPool: ms.nn.Module
---@field output_size (integer|false)[]
local AdaptiveAvgPool = Module.extend('nn._AdaptiveAvgPool')

---@param output_size integer|(integer|false)[]  false: the size of the input
function AdaptiveAvgPool:init(output_size)
  self.output_size = spatial.output_size(self._name, output_size, self._spatial)
end

---@param x ms.Tensor  (N, C, ...) or (C, ...)
---@return ms.Tensor
function AdaptiveAvgPool:forward(x)
  return ops[self._operator](x, self.output_size)
end

function AdaptiveAvgPool:extra_repr()
  local sizes = {}
  for d, size in ipairs(self.output_size) do
    sizes[d] = size or 'None'
  end
  return ('output_size=(%s)'):format(table.concat(sizes, ', '))
end

return AdaptiveAvgPool
