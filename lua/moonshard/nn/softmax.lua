--- exp(x) / sum(exp(x)), the sum over one dimension.

local Module = require 'moonshard.nn.module'
local arguments = require 'moonshard_ffi.arguments'
local ops = require 'moonshard.ops'

---@class ms.nn.Softmax: ms.nn.Module
---@field dim integer
---@overload fun(dim: integer): ms.nn.Softmax
local Softmax = Module.extend('nn.Softmax')

Softmax._settings = { 'dim' }

---@param dim integer  from 1, or from the end
function Softmax:init(dim)
  self.dim = arguments.whole(self._name, 'dim', dim)
end

---@param x ms.Tensor
---@return ms.Tensor
function Softmax:forward(x)
  return ops.softmax(x, self.dim)
end

function Softmax:extra_repr()
  return ('dim=%d'):format(self.dim)
end

return Softmax
