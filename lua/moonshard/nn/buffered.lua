--- What a call of a module runs that has buffers, or below which there are some.

local hooks = require 'moonshard.nn.hooks'
local scope = require 'moonshard.scope'
local tree = require 'moonshard.nn.tree'
local watched = require 'moonshard.nn.watched'

-- If the scope that is open fails, buffers of this module are what they are now.
local function save(module)
  local buffers = module._buffers
  for i = 1, #buffers do
    local b = buffers[i]
    scope.on_failure(b, tree.buffer(b) and b.value or false)
  end
end

local function keep(module, ...)
  local buffers = module._buffers
  for i = 1, #buffers do
    tree.buffer(buffers[i])
  end
  return ...
end

local function forward(module, ...)
  if hooks.any(module) then
    return hooks.forward(module, ...)
  end
  return module:forward(...)
end

--- `module:forward(...)` between its hooks; what they assigned to fields of buffers outlives it,
--- unless it fails: then those of the module, and of all below, as it may assign some before it
--- calls theirs, are what they were.
---@param module ms.nn.Module
---@return ...
return function(module, ...)
  local lists = watched.by(module)
  local below = lists and lists.buffered
  save(module)
  for i = 1, below and #below or 0 do
    save(below[i])
  end
  return keep(module, forward(module, ...))
end
