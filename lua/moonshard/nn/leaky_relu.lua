--- x where x > 0, else negative_slope x.

local Module = require 'moonshard.nn.module'
local arguments = require 'moonshard_ffi.arguments'
local ops = require 'moonshard.ops'

---@class ms.nn.LeakyReLU: ms.nn.Module
---@field negative_slope number
---@overload fun(negative_slope?: number): ms.nn.LeakyReLU
local LeakyReLU = Module.extend('nn.LeakyReLU')

LeakyReLU._settings = { 'negative_slope' }

---@param negative_slope? number  default 0.01
function LeakyReLU:init(negative_slope)
  self.negative_slope = arguments.number(self._name, 'negative_slope', negative_slope, 0.01)
end

---@param x ms.Tensor
---@return ms.Tensor
function LeakyReLU:forward(x)
  return ops.leaky_relu(x, self.negative_slope)
end

function LeakyReLU:extra_repr()
  return ('negative_slope=%g'):format(self.negative_slope)
end

return LeakyReLU
