--- Methods of modules that are not there, or were called without their object. A module's fields
--- are the script's own, and one that nobody has set is nil, so only what Lua says of calling it
--- can name the nearest method; and forward() is called too often to look at its object.

local errors = require 'moonshard.errors'
local util = require 'moonshard.util'

local function methods()
  local names = {}
  for name, value in next, require 'moonshard.nn.module' do
    if type(value) == 'function' and name:sub(1, 1) ~= '_' then
      names[name] = true
    end
  end
  return util.sorted_keys(names)
end

local SELFLESS = "^[^\n]*attempt to index local 'self' %(a nil value%)$"

--- What was raised, with the nearest method where it is that an object has none of that name, and
--- with what to write where a method has no object.
---@param err any
---@return any
return function(err)
  if type(err) == 'string' and err:find(SELFLESS) then
    return err .. '; a method was called without its object: write module(x), or give the module '
      .. 'in front, as in ms.no_grad(module.forward, module, x)'
  end
  local name = type(err) == 'string'
    and err:match("^[^\n]*attempt to call method '([%w_]+)' %(a nil value%)$")
  local near = name and errors.nearest(name, methods())
  return near and ("%s, did you mean '%s'?"):format(err, near) or err
end
