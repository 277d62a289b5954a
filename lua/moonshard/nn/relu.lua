--- max(x, 0), elementwise.

local Module = require 'moonshard.nn.module'

---@class ms.nn.ReLU: ms.nn.Module
---@overload fun(): ms.nn.ReLU
local ReLU = Module.extend('nn.ReLU')

---@param x ms.Tensor
---@return ms.Tensor
function ReLU:forward(x)
  return x:relu()
end

return ReLU
