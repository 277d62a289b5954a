--- max(x, 0), elementwise.

local Module = require 'moonshard.nn.module'
local check = require 'moonshard.nn.check'
local ops = require 'moonshard.ops'

---@class ms.nn.ReLU: ms.nn.Module
---@overload fun(): ms.nn.ReLU
local ReLU = Module.extend('nn.ReLU')

function ReLU:init(...)
  check.none(self._name, ...)
end

---@param x ms.Tensor
---@return ms.Tensor
function ReLU:forward(x)
  return ops.relu(x)
end

return ReLU
