--- Methods that say what is wrong when they are called without their object: `opt.step()`.

local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.errors'
local util = require 'moonshard.util'

local receiver = {}

local function refuse(cls, base, name, self)
  errors.raise('TypeError', "%s:%s: 'self' is %s, expected a %s; call it as object:%s(...)",
    cls._name:match('[^.]*$'), name, arguments.noun(self), base._name, name)
end

-- Classes seen to inherit from `base`, so that most calls ask one table.
local function family(base)
  return setmetatable({}, { __mode = 'k', __index = function(known, cls)
    known[cls] = util.inherits(cls, base)
    return known[cls]
  end })
end

-- Few arguments are spelled out: the compiler of traces does not begin at a `...`.
local function guarded(cls, base, known, name, method)
  local takes = debug.getinfo(method, 'u')
  if takes.isvararg or takes.nparams > 4 then
    return function(self, ...)
      if type(self) ~= 'table' or not known[getmetatable(self) or false] then
        refuse(cls, base, name, self)
      end
      return method(self, ...)
    end
  end
  return function(self, a, b, c)
    if type(self) ~= 'table' or not known[getmetatable(self) or false] then
      refuse(cls, base, name, self)
    end
    return method(self, a, b, c)
  end
end

--- Let the public methods of a class look at what they are called on. Those that begin with '_',
--- and what a class only gives to the library (forward, extra_repr), stay as they are.
---@param cls ms.Class
---@param base? ms.Class  what the object must be (default: cls); methods are borrowed within it
---@return ms.Class cls
function receiver.check(cls, base)
  base = base or cls
  local known = family(base)
  for name, method in next, cls do
    if type(method) == 'function' and name:sub(1, 1) ~= '_' and name ~= 'init'
      and name ~= 'forward' and name ~= 'extra_repr' and name ~= 'extend' then
      cls[name] = guarded(cls, base, known, name, method)
    end
  end
  return cls
end

return receiver
