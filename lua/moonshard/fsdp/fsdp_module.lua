--- The class of a module that fully_shard() was called on: its methods come before those of the
--- module's own class.

local class = require 'moonshard.base.class'
local module_tree = require 'moonshard.nn.tree'

---@class ms.fsdp.FSDPModule: ms.nn.Module
local FSDPModule = {}

--- Free the full parameters of this module's group. RuntimeError during its forward or backward.
function FSDPModule:reshard()
  module_tree.manager(self):reshard()
end

-- -- classes -------------------------------------------------------------------------------------

local made = setmetatable({}, { __mode = 'k' }) -- by original class, then by prefix

-- The class of sharded modules of a class: one for all of them.
local function class_of(original, prefix)
  local classes = made[original] or {}
  made[original] = classes
  if not classes[prefix] then
    local cls = class(prefix .. original._name:match '[^.]*$', original)
    for name, method in next, FSDPModule do
      cls[name] = method
    end
    classes[prefix] = cls
  end
  return classes[prefix]
end

local fsdp_module = {}

--- Change the class of a module, in place, to one that derives from it.
---@param module ms.nn.Module
---@param prefix string  of the name
function fsdp_module.adopt(module, prefix)
  setmetatable(module, class_of(getmetatable(module), prefix))
end

return fsdp_module
