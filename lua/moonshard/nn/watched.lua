--- Detects assignments to fields of parameters: an outermost module compares the fields before each
--- call. (For FSDP models see fsdp/watch.lua.)

local tree = require 'moonshard.nn.tree'

local watched = {}

---@class ms.nn.Watched
---@field module ms.nn.Module
---@field param table

local function params_of(top)
  local out = {}
  for _, entry in ipairs(tree.walk(top)) do
    for _, param in ipairs(entry.module._params) do
      out[#out + 1] = { module = entry.module, param = param }
    end
  end
  return out
end

--- The parameters to compare, or nil. They are listed again after tree.changed().
---@param module ms.nn.Module
---@return ms.nn.Watched[]?
function watched.by(module)
  local list = rawget(module, '_fields')
  if list == false then
    local is_top = not rawget(module, '_owner') and not tree.manager(module)
    list = is_top and params_of(module) or nil
    rawset(module, '_fields', list)
  end
  return list
end

---@param list ms.nn.Watched[]
function watched.check(list)
  for i = 1, #list do
    local module, p = list[i].module, list[i].param
    if not rawequal(rawget(module, p.name), p.tensor) then
      tree.param(module, p)
    end
  end
end

return watched
