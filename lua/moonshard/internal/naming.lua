--- Names that do not exist: the error gives the nearest name that does.
--- (What is wrong with an argument's value is in moonshard_ffi.arguments.)

local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.internal.errors'
local once = require 'moonshard.internal.once'
local util = require 'moonshard.internal.util'

local naming = {}

--- Raise a KeyError.
---@param owner string  what has no such name: 'ms.nn', 'a tensor'
---@param name any
---@param known string[]  the names it has
---@param instead? string  what to write
function naming.missing(owner, name, known, instead)
  name = tostring(name)
  local near = not instead and errors.nearest(name, known)
  errors.raise('KeyError', "%s has no '%s'%s", owner, name:sub(1, 80),
    instead and '; write ' .. instead or near and (", did you mean '%s'?"):format(near) or '')
end

--- Make a table raise for names that it does not have. A nil field would be taken for an option
--- that nobody gave.
---@generic T: table
---@param name string  what scripts call it
---@param members T
---@param lazy? table<string, string>  files to require when a name is first used; one that returns
---  a plain table holds several values by their names
---@return T members
function naming.space(name, members, lazy)
  lazy = lazy or {}
  return setmetatable(members, {
    _namespace = name,
    _names = function()
      return util.sorted_keys(util.merged(lazy, members))
    end,
    __tostring = function()
      return ('%s: %s'):format(name,
        table.concat(util.sorted_keys(util.merged(lazy, members)), ' '))
    end,
    __index = function(_, key)
      if lazy[key] then
        local value = once.run(name .. '.' .. key, require, lazy[key])
        if type(value) == 'table' and getmetatable(value) == nil and value[key] ~= nil then
          value = value[key]
        end
        rawset(members, key, value)
        return value
      end
      naming.missing(name, key, util.sorted_keys(util.merged(lazy, members)))
    end,
  })
end

-- Methods that scripts do not call with a colon, or that run for every call of a module.
local UNCHECKED = { extend = true, extra_repr = true, forward = true, init = true }

--- Make the public methods of a class raise when they are called without an object: `opt.step()`.
---@param cls ms.Class
---@return ms.Class cls
function naming.methods(cls)
  for name, method in next, cls do
    if type(method) == 'function' and name:sub(1, 1) ~= '_' and not UNCHECKED[name] then
      cls[name] = function(self, ...)
        if not util.is(self, cls) then
          arguments.refuse(name, 'self', self, ('an object of %s; write object:%s(...)')
            :format(cls._name, name))
        end
        return method(self, ...)
      end
    end
  end
  return cls
end

--- Make the objects of a class raise for fields that they do not have, and for setting a field that
--- has no effect there, and check what its methods are called on. Names that begin with '_' are the
--- library's own.
---@param cls ms.Class
---@param fields table  the public fields as a list; by name, what to write instead of a field
---@param loop? string  the loop over its objects, for those that take them for lists or iterators
---@return ms.Class cls
function naming.close(cls, fields, loop)
  local known = util.sorted_keys(cls)
  for _, field in ipairs(fields) do
    known[#known + 1] = field
  end
  cls.__newindex = function(object, name, value)
    if type(name) == 'string' and fields[name] then
      naming.missing(cls._name, name, known, fields[name])
    end
    rawset(object, name, value)
  end
  getmetatable(cls).__index = function(_, name)
    if type(name) ~= 'string' then
      naming.missing(cls._name, name, known, loop)
    elseif name:sub(1, 1) ~= '_' then
      naming.missing(cls._name, name, known, fields[name])
    end
  end
  if loop then
    cls.__call = function()
      errors.raise('TypeError', 'a %s is no iterator; write: %s', cls._name, loop)
    end
  end
  return naming.methods(cls)
end

--- What was raised; where Lua called a method that does not exist, with the nearest method of
--- modules. A module's fields are the script's own, so a missing one is nil.
---@param err any
---@return any
function naming.suggest(err)
  local name = type(err) == 'string'
    and err:match("^[^\n]*attempt to call method '([%w_]+)' %(a nil value%)$")
  local near = name and errors.nearest(name, util.sorted_keys(require 'moonshard.nn.module'))
  return near and ("%s, did you mean '%s'?"):format(err, near) or err
end

return naming
