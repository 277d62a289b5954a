--- x - log(sum(exp(x))), the sum over one dimension.

local Module = require 'moonshard.nn.module'
local arguments = require 'moonshard_ffi.arguments'
local ops = require 'moonshard.ops'

---@class ms.nn.LogSoftmax: ms.nn.Module
---@field dim integer
---@overload fun(dim: integer): ms.nn.LogSoftmax
local LogSoftmax = Module.extend('nn.LogSoftmax')

LogSoftmax._settings = { 'dim' }

---@param dim integer  from 1, or from the end
function LogSoftmax:init(dim)
  self.dim = arguments.whole(self._name, 'dim', dim)
end

---@param x ms.Tensor
---@return ms.Tensor
function LogSoftmax:forward(x)
  return ops.log_softmax(x, self.dim)
end

function LogSoftmax:extra_repr()
  return ('dim=%d'):format(self.dim)
end

return LogSoftmax
