--- Classes: single inheritance by metatables, and nothing hidden.
---
---   local Linear = class('nn.Linear', Module)
---   function Linear:init(width) Module.init(self) ... end
---   local layer = Linear(3)
---
--- `Class(...)` makes an object and calls `init`. Metamethods (`__call`, `__tostring`, ...) are
--- copied from the parent, so a parent's `__call` works on the objects of its children.

local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard_ffi.errors'

---@class ms.Class
---@field _name string  for errors, printing and checkpoints
---@field _parent ms.Class?
---@overload fun(...): any

local function construct(cls, ...)
  if cls.__init or cls.__init__ then
    errors.raise('TypeError', "class %s has '%s', which nothing calls: name it init", cls._name,
      cls.__init and '__init' or '__init__')
  end
  local object = setmetatable({}, cls)
  object:init(...)
  return object
end

local function describe(cls)
  return 'class ' .. cls._name
end

--- Make a class.
---@param name string
---@param parent? ms.Class
---@return ms.Class
local function class(name, parent)
  arguments.text('class', 'name', name)
  if parent ~= nil and (type(parent) ~= 'table' or type(rawget(parent, '_name')) ~= 'string') then
    arguments.refuse('class', 'parent', parent, 'a class')
  end
  local cls = { _name = name, _parent = parent }
  for key, value in next, parent or { init = function() end } do
    if key == 'init' or key:sub(1, 2) == '__' then
      cls[key] = value
    end
  end
  if not parent or parent.__index == parent then
    cls.__index = cls
  end
  return setmetatable(cls, { __index = parent, __call = construct, __tostring = describe })
end

return class
