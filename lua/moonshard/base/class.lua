--- Classes: single inheritance by metatables.
---
---   local Linear = class('nn.Linear', Module)
---   function Linear:init(width) Module.init(self) ... end
---   local layer = Linear(3)
---
--- `Class(...)` makes an object and calls `init`. Metamethods (`__call`, `__tostring`, ...) are
--- copied from the parent, so they work on objects of subclasses. A parent's
--- `_init_subclass(class)` is called with each new subclass. A mixin is a table of methods with a
--- `_name`: a class that has it has copies of the methods, before its parent's.

local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard_ffi.errors'

---@class ms.Class
---@field _name string  used in errors, printing and checkpoints
---@field _parent ms.Class?
---@field _mixin table?
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

-- The class as a call: "class nn.Linear(in_features, out_features, opts)".
local function describe(cls)
  local names, info = {}, debug.getinfo(cls.init, 'u')
  for i = 2, info.nparams do
    names[#names + 1] = debug.getlocal(cls.init, i)
  end
  names[#names + 1] = info.isvararg and '...' or nil
  return ('class %s(%s)'):format(cls._name, table.concat(names, ', '))
end

local function describe_object(object)
  return 'a ' .. getmetatable(object)._name
end

-- The default methods of classes without a parent.
local BASE = { init = function() end, __tostring = describe_object }

-- How objects look up names: in the class, and of one whose parent has a function of its own for
-- that, by the function.
local function index_of(cls, parent)
  local inherited = parent and parent.__index
  if not parent or inherited == parent then
    return cls
  end
  return function(object, key)
    local own = rawget(cls, key)
    if own ~= nil then
      return own
    end
    return inherited(object, key)
  end
end

--- Make a class.
---@param name string
---@param parent? ms.Class
---@param mixin? table
---@return ms.Class
local function class(name, parent, mixin)
  arguments.text('class', 'name', name)
  if parent ~= nil and (type(parent) ~= 'table' or type(rawget(parent, '_name')) ~= 'string') then
    arguments.refuse('class', 'parent', parent, 'a class')
  end
  local cls = { _parent = parent }
  for key, value in next, parent or BASE do
    if key == 'init' or key:sub(1, 2) == '__' then
      cls[key] = value
    end
  end
  for key, method in next, mixin or {} do
    cls[key] = method
  end
  cls._name, cls._mixin = name, mixin
  cls.__index = index_of(cls, parent)
  setmetatable(cls, { __index = parent, __call = construct, __tostring = describe })
  if cls._init_subclass then
    cls._init_subclass(cls)
  end
  return cls
end

return class
