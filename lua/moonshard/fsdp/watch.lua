--- Detects that a script replaced a module or parameter after units were planned over it.
---
--- Fields of modules are plain fields, so an assignment is not seen; their values are compared
--- before they are used.

local tree = require 'moonshard.nn.tree'

local watch = {}

---@class ms.fsdp.Watched  parallel arrays, so that comparing reads nothing else
---@field modules ms.nn.Module[]  that declared it
---@field holders ms.nn.Module[]  whose field holds it: the same, or a wrapper that shows it
---@field fields (string|integer)[]
---@field values any[]
---@field entries table[]  the declarations

--- Record the fields of these modules.
---@param modules ms.nn.Module[]
---@return ms.fsdp.Watched
function watch.of(modules)
  local w = { modules = {}, holders = {}, fields = {}, values = {}, entries = {} }
  local function add(module, holder, field, value, entry)
    local i = #w.modules + 1
    w.modules[i], w.holders[i], w.fields[i], w.values[i], w.entries[i] =
      module, holder, field, value, entry
  end
  for _, module in ipairs(modules) do
    for _, p in ipairs(module._params) do
      add(module, module, p.name, p.tensor, p)
    end
    for _, child in ipairs(module._children) do
      add(module, module, child.key, child.module, child)
      for _, wrapper in ipairs(tree.shown_by(module, child)) do
        add(module, wrapper, child.key, child.module, child)
      end
    end
  end
  return w
end

--- Look at all fields: values of replaced parameters are written back, other changes are an error.
---@param w ms.fsdp.Watched
function watch.check(w)
  local holders, fields, values = w.holders, w.fields, w.values
  for i = 1, #holders do
    if not rawequal(rawget(holders[i], fields[i]), values[i]) then
      local entry = w.entries[i]
      values[i] = (entry.key and tree.child or tree.param)(w.modules[i], entry)
    end
  end
end

--- Does a field of a parameter hold another tensor now?
---@param w ms.fsdp.Watched
---@return string? field
function watch.replaced(w)
  for i = 1, #w.holders do
    if not w.entries[i].key and not rawequal(rawget(w.holders[i], w.fields[i]), w.values[i]) then
      return w.fields[i]
    end
  end
end

return watch
