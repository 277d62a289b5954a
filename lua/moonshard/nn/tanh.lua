--- Hyperbolic tangent, elementwise.

local Module = require 'moonshard.nn.module'
local check = require 'moonshard.nn.check'
local ops = require 'moonshard.ops'

---@class ms.nn.Tanh: ms.nn.Module
---@overload fun(): ms.nn.Tanh
local Tanh = Module.extend('nn.Tanh')

function Tanh:init(...)
  check.none(self._name, ...)
end

---@param x ms.Tensor
---@return ms.Tensor
function Tanh:forward(x)
  return ops.tanh(x)
end

return Tanh
