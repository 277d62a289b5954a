--- What a call of a module with buffers runs.

local hooks = require 'moonshard.nn.hooks'
local tree = require 'moonshard.nn.tree'

local function keep(module, ...)
  tree.keep_buffers(module)
  return ...
end

--- `module:forward(...)` between its hooks; what they assigned to fields of buffers outlives it.
---@param module ms.nn.Module
---@return ...
return function(module, ...)
  tree.keep_buffers(module) -- the module above may have assigned some
  if hooks.any(module) then
    return keep(module, hooks.forward(module, ...))
  end
  return keep(module, module:forward(...))
end
