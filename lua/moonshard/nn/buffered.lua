--- What a call of a module runs that has buffers, or below which there are some.

local hooks = require 'moonshard.nn.hooks'
local tree = require 'moonshard.nn.tree'

local function keep(module, ...)
  tree.keep_buffers(module)
  return ...
end

local function forward(module, ...)
  if hooks.any(module) then
    return hooks.forward(module, ...)
  end
  return module:forward(...)
end

--- `module:forward(...)` between its hooks; what they assigned to fields of buffers outlives it,
--- unless it fails.
---@param module ms.nn.Module
---@return ...
return function(module, ...)
  tree.save_buffers(module)
  return keep(module, forward(module, ...))
end
