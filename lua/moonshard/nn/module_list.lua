--- An array of modules. Children are named '0', '1', ..., as in PyTorch's checkpoints, and their
--- indices are 1, 2, ...: ipairs() iterates over them.

local Module = require 'moonshard.nn.module'
local errors = require 'moonshard.base.errors'

---@class ms.nn.ModuleList: ms.nn.Module
---@field [integer] ms.nn.Module
---@overload fun(...: ms.nn.Module): ms.nn.ModuleList
---@overload fun(modules: ms.nn.Module[]): ms.nn.ModuleList
local ModuleList = Module.extend('nn.ModuleList')

---@param ... ms.nn.Module|ms.nn.Module[]  modules, or one array of them
function ModuleList:init(...)
  local first = ...
  local modules, n = { ... }, select('#', ...)
  if n == 1 and type(first) == 'table' and getmetatable(first) == nil then
    modules, n = first, #first
    for key in next, first do
      if type(key) ~= 'number' or key < 1 or key > n then
        errors.raise('TypeError', "%s takes an array of modules, got the key '%s'", self._name,
          tostring(key))
      end
    end
  end
  for i = 1, n do
    self:append(modules[i])
  end
end

--- Let a class with such entries raise an IndexError for indices below 1.
---@param cls ms.Class
function ModuleList._count_entries(cls)
  local parent = getmetatable(cls).__index
  getmetatable(cls).__index = function(_, key)
    if type(key) == 'number' and key < 1 then
      errors.raise('IndexError', '%s has no entry %s: they count from 1', cls._name, tostring(key))
    end
    return parent[key]
  end
end

ModuleList._count_entries(ModuleList)

---@param module ms.nn.Module
---@return self
function ModuleList:append(module)
  if module == nil and not self.append then -- called with a dot, on what should be appended
    errors.raise('TypeError', "append: 'module' is nil, expected a module; call it as "
      .. 'list:append(module)')
  end
  if self._shows_entries then
    self.module:append(module)
    return self
  end
  local n = #self._children
  self:child(tostring(n), module, n + 1)
  return self
end

---@return integer
function ModuleList:len()
  local n = 0
  while self[n + 1] ~= nil do -- reads fields only, so that it works through a wrapper
    n = n + 1
  end
  return n
end

-- Neighbours that print alike share a line: '(0-11): 12 x TransformerBlock(...)'.
function ModuleList:_repr_children()
  local lines, i = {}, 1
  local children = self:children()
  while i <= #children do
    local text, last = tostring(children[i]), i
    while children[last + 1] and tostring(children[last + 1]) == text do
      last = last + 1
    end
    local label = last > i and ('(%d-%d): %d x '):format(i - 1, last - 1, last - i + 1)
      or ('(%d): '):format(i - 1)
    lines[#lines + 1] = '  ' .. label .. text:gsub('\n', '\n  ')
    i = last + 1
  end
  return lines
end

return ModuleList
