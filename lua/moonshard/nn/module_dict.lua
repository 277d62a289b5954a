--- Modules by name, in order of insertion. They are also fields: dict.name, dict['name'].

local Module = require 'moonshard.nn.module'
local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'
local tree = require 'moonshard.nn.tree'
local util = require 'moonshard.base.util'

---@class ms.nn.ModuleDict: ms.nn.Module
---@field [string] ms.nn.Module
---@overload fun(modules?: table): ms.nn.ModuleDict
local ModuleDict = Module.extend('nn.ModuleDict')

---@alias ms.nn.NamedModules table<string, ms.nn.Module>|{ [1]: string, [2]: ms.nn.Module }[]

--- A plain table is inserted in sorted order of its names, a list of pairs in its own order.
---@param modules? ms.nn.NamedModules
function ModuleDict:init(modules)
  if modules ~= nil then
    self:update(modules)
  end
end

-- The module inside FSDP wrappers holds the entries.
local function unwrapped(self)
  while self._shows_entries do
    self = self.module
  end
  return self
end

--- Add modules, or replace those of the same names.
---@param modules ms.nn.NamedModules
---@return self
function ModuleDict:update(modules)
  if arguments.noun(modules) ~= 'a table' then
    arguments.refuse(self._name, 'modules', modules, 'a table of modules')
  end
  local pairs_of = modules
  if modules[1] == nil then
    pairs_of = {}
    for key in next, modules do
      arguments.text(self._name, 'name', key)
    end
    for i, name in ipairs(util.sorted_keys(modules)) do
      pairs_of[i] = { name, modules[name] }
    end
  end
  local own = unwrapped(self)
  for i, entry in ipairs(pairs_of) do
    if type(entry) ~= 'table' or getmetatable(entry) ~= nil then
      arguments.refuse(self._name, ('modules[%d]'):format(i), entry, "a pair { 'name', module }")
    end
    local name, module = entry[1], entry[2]
    if not tree.is_module(module) then
      errors.raise('TypeError', "child '%s' of %s is %s, expected a module", tostring(name),
        self._name, arguments.noun(module))
    elseif tree.is_module(own[name]) then
      own:set_child(name, module)
    else
      own:child(name, module)
    end
  end
  return self
end

--- Iterate over (name, module), in order of insertion. Also an array of { name, module }.
function ModuleDict:items()
  return unwrapped(self):named_children()
end

--- The names in order of insertion.
---@return string[]
function ModuleDict:keys()
  local names = {}
  for i, entry in ipairs(tree.children(unwrapped(self))) do
    names[i] = entry.name
  end
  return tree.iterable(names)
end

--- The modules in order of insertion.
---@return ms.nn.Module[]
function ModuleDict:values()
  return unwrapped(self):children()
end

---@return integer
function ModuleDict:len()
  return #tree.children(unwrapped(self))
end

return ModuleDict
