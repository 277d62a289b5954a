--- Methods that say what is wrong when they are called without their object: `opt.step()`.

local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.errors'
local util = require 'moonshard.util'

local receiver = {}

local function guarded(cls, base, name, method)
  local what = cls._name:match('[^.]*$') .. ':' .. name
  return function(self, ...)
    if not util.is(self, base) then
      errors.raise('TypeError', "%s: 'self' is %s, expected a %s; call it as object:%s(...)", what,
        arguments.noun(self), base._name, name)
    end
    return method(self, ...)
  end
end

--- Let the public methods of a class look at what they are called on. Those that begin with '_',
--- and what a class only gives to the library (forward, extra_repr), stay as they are.
---@param cls ms.Class
---@param base? ms.Class  what the object must be (default: cls); methods are borrowed within it
---@return ms.Class cls
function receiver.check(cls, base)
  for name, method in next, cls do
    if type(method) == 'function' and name:sub(1, 1) ~= '_' and name ~= 'init'
      and name ~= 'forward' and name ~= 'extra_repr' and name ~= 'extend' then
      cls[name] = guarded(cls, base or cls, name, method)
    end
  end
  return cls
end

return receiver
