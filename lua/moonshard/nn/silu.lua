--- x sigmoid(x), elementwise (arXiv:1606.08415).

local Module = require 'moonshard.nn.module'
local check = require 'moonshard.nn.check'
local ops = require 'moonshard.ops'

---@class ms.nn.SiLU: ms.nn.Module
---@overload fun(): ms.nn.SiLU
local SiLU = Module.extend('nn.SiLU')

function SiLU:init(...)
  check.none(self._name, ...)
end

---@param x ms.Tensor
---@return ms.Tensor
function SiLU:forward(x)
  return ops.silu(x)
end

return SiLU
