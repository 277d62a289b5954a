--- Merges dimensions `start_dim` to `end_dim` into one.

local Module = require 'moonshard.nn.module'
local arguments = require 'moonshard_ffi.arguments'
local ops = require 'moonshard.ops'

---@class ms.nn.Flatten: ms.nn.Module
---@field start_dim integer
---@field end_dim integer
---@overload fun(start_dim?: integer, end_dim?: integer): ms.nn.Flatten
local Flatten = Module.extend('nn.Flatten')

Flatten._settings = { 'start_dim', 'end_dim' }

---@param start_dim? integer  default 2
---@param end_dim? integer  default -1, the last
function Flatten:init(start_dim, end_dim)
  self.start_dim = arguments.whole(self._name, 'start_dim', start_dim, 2)
  self.end_dim = arguments.whole(self._name, 'end_dim', end_dim, -1)
end

---@param x ms.Tensor
---@return ms.Tensor
function Flatten:forward(x)
  return ops.flatten(x, self.start_dim, self.end_dim)
end

function Flatten:extra_repr()
  return ('start_dim=%d, end_dim=%d'):format(self.start_dim, self.end_dim)
end

return Flatten
