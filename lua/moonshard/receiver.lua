--- Methods that say what is wrong when they are called without their object, `opt.step()`, or with
--- more arguments than they take.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.errors'
local missing = require 'moonshard.missing'
local surplus = require 'moonshard.surplus'
local util = require 'moonshard.util'

local receiver = {}

-- The method, but that it looks at what it is called on.
---@param owner string  what messages call its objects: 'SGD', 't'
---@param expected string
local function guarded(owner, name, method, expected, is_object)
  return surplus.method(owner .. ':' .. name, method, function(self)
    if not is_object(self) then
      errors.raise('TypeError', "%s:%s: 'self' is %s, expected %s; call it as %s:%s(...)", owner,
        name, arguments.noun(self), expected, owner == 't' and 't' or 'object', name)
    end
  end)
end

-- Classes seen to inherit from `base`, so that most calls ask one table.
local function family(base)
  return setmetatable({}, { __mode = 'k', __index = function(known, cls)
    known[cls] = util.inherits(cls, base)
    return known[cls]
  end })
end

-- What no object of the class has is an error, and so is setting what stands elsewhere. Names that
-- begin with '_' are the library's own.
local function close(cls, fields)
  local names = util.sorted_keys(cls)
  for _, field in ipairs(fields) do
    names[#names + 1] = field
  end
  cls.__newindex = function(object, name, value)
    if type(name) == 'string' and fields[name] then
      missing(cls._name, name, names, fields[name])
    end
    rawset(object, name, value)
  end
  getmetatable(cls).__index = function(_, name)
    if type(name) ~= 'string' then
      errors.raise('KeyError', '%s has no entry %s', cls._name, tostring(name))
    elseif name:sub(1, 1) ~= '_' then
      missing(cls._name, name, names, fields[name])
    end
  end
end

--- Let the public methods of a class look at what they are called on and with. Those that begin
--- with '_', and what a class only gives to the library (forward, extra_repr), stay as they are.
---@param cls ms.Class
---@param base? ms.Class  what the object must be (default: cls); methods are borrowed within it
---@param fields? table  of objects that have no others: the public ones as a list, and by name what
---                      to write in place of names that are looked for here
---@return ms.Class cls
function receiver.check(cls, base, fields)
  base = base or cls
  if fields then
    close(cls, fields)
  end
  local known, short = family(base), cls._name:match('[^.]*$')
  local function is_object(self)
    return type(self) == 'table' and known[getmetatable(self) or false]
  end
  for name, method in next, cls do
    if type(method) == 'function' and name:sub(1, 1) ~= '_' and name ~= 'init'
      and name ~= 'forward' and name ~= 'extra_repr'
      and name ~= 'extend' then -- called with a dot
      cls[name] = guarded(short, name, method, 'a ' .. base._name, is_object)
    end
  end
  return cls
end

--- The same for the methods of tensors.
---@param methods table<string, function>
function receiver.check_tensors(methods)
  for name, method in next, methods do
    methods[name] = guarded('t', name, method, 'a tensor', B.is_ref)
  end
end

return receiver
