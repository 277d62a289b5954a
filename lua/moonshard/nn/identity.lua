--- Returns its first argument. The constructor accepts and ignores any arguments.

local Module = require 'moonshard.nn.module'

---@class ms.nn.Identity: ms.nn.Module
---@overload fun(...): ms.nn.Identity
local Identity = Module.extend('nn.Identity')

function Identity:init() end

---@generic T
---@param x T
---@return T
function Identity:forward(x)
  return x
end

return Identity
