--- Assignment to fields of a module.
---
--- A module becomes a child and a parameter a parameter of this module, in order of assignment, as
--- if declared. A plain table that contains modules is refused: the order of its keys may differ
--- between ranks. Every other value is stored in the field.

local arguments = require 'moonshard_ffi.arguments'
local capture = require 'moonshard.base.capture'
local declared = require 'moonshard.nn.declared'
local errors = require 'moonshard.base.errors'
local parameter = require 'moonshard_ffi.parameter'
local tree = require 'moonshard.nn.tree'

local fields = {}

-- True if the plain table contains a module, at any depth.
local function holds_module(value, seen)
  if type(value) ~= 'table' or getmetatable(value) ~= nil or seen[value] then
    return false
  end
  seen[value] = true
  for _, entry in next, value do
    if tree.is_module(entry) or holds_module(entry, seen) then
      return true
    end
  end
  return false
end

local function refuse_table(module, name)
  errors.raise('TypeError', "field '%s' of %s is a plain table of modules, which registers none of "
    .. "them: write self.%s = nn.ModuleList { ... }, or self:child('name', module) for each",
    tostring(name), module._name, tostring(name))
end

-- A child's name in checkpoints, where entries of lists count from 0.
local function child_name(self, field)
  if type(field) ~= 'number' then
    return field
  end
  local n = #self._children
  if field ~= n + 1 then
    errors.raise('IndexError', 'a module is assigned to entry %s of %s, the next is %d',
      tostring(field), self._name, n + 1)
  end
  return tostring(n)
end

-- Refuse or warn about fields whose meaning differs from PyTorch's.
local function check_known(self, field, value)
  if field == 'requires_grad' then
    errors.raise('TypeError', "%s has no field 'requires_grad': write module:requires_grad_(%s)",
      self._name, tostring(value))
  elseif field == 'training' then
    arguments.flag(self._name, field, value)
  elseif field == 'forward' and value ~= nil then
    arguments.fn(self._name, field, value)
  end
end

-- A declared entry that was set to nil keeps its position when it is assigned again.
local function assign_module(self, field, module)
  local entry = declared(self._children, 'key', field)
  if entry then
    self:set_child(entry.name, module)
  else
    self:child(child_name(self, field), module, field)
  end
end

local function assign_parameter(self, field, tensor)
  if declared(self._params, 'name', field) then
    tree.check_unsealed(self, 'parameter', field)
    rawset(self, field, tensor)
  else
    self:tie(field, tensor)
  end
end

--- The `__newindex` of modules. Assignments to fields that exist do not reach it.
---@param self ms.nn.Module
function fields.assign(self, field, value)
  capture.fields_added = capture.fields_added + 1
  if tree.is_module(value) then
    assign_module(self, field, value)
  elseif type(field) == 'string' and parameter.is_parameter(value) then
    assign_parameter(self, field, value)
  elseif holds_module(value, {}) then
    refuse_table(self, field)
  else
    check_known(self, field, value)
    rawset(self, field, value)
  end
end

-- Fields of the module tree itself.
local PRIVATE = {
  _owner = true, _home = true, _children = true, _params = true, _buffers = true,
  _fields = true,
}

--- Refuse modules that no assignment registered: those put into a plain table later, and those that
--- replaced another value.
---@param module ms.nn.Module
function fields.check(module)
  local tables, strays = {}, {}
  for field, value in next, module do
    if not PRIVATE[field] and holds_module(value, {}) then
      tables[#tables + 1] = tostring(field)
    elseif not PRIVATE[field] and tree.is_module(value)
      and not declared(module._children, 'key', field)
      and not tree.contains(tree.outermost(module), value) then
      strays[#strays + 1] = tostring(field)
    end
  end
  table.sort(tables)
  table.sort(strays)
  if tables[1] then
    refuse_table(module, tables[1])
  elseif strays[1] then
    errors.raise('TypeError', "field '%s' of %s became a module after it had held another value, "
      .. 'and is not registered: set it to nil first', strays[1], module._name)
  end
end

return fields
