--- Hyperbolic tangent, elementwise.

local Module = require 'moonshard.nn.module'

---@class ms.nn.Tanh: ms.nn.Module
---@overload fun(): ms.nn.Tanh
local Tanh = Module.extend('nn.Tanh')

---@param x ms.Tensor
---@return ms.Tensor
function Tanh:forward(x)
  return x:tanh()
end

return Tanh
