--- 1 / (1 + exp(-x)), elementwise.

local Module = require 'moonshard.nn.module'
local check = require 'moonshard.nn.check'
local ops = require 'moonshard.ops'

---@class ms.nn.Sigmoid: ms.nn.Module
---@overload fun(): ms.nn.Sigmoid
local Sigmoid = Module.extend('nn.Sigmoid')

function Sigmoid:init(...)
  check.none(self._name, ...)
end

---@param x ms.Tensor
---@return ms.Tensor
function Sigmoid:forward(x)
  return ops.sigmoid(x)
end

return Sigmoid
