--- Methods of modules that are not there. A module's fields are the script's own, and one that
--- nobody has set is nil, so only what Lua says of calling it can name the nearest method.

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

--- What was raised, with the nearest method where it is that an object has none of that name.
---@param err any
---@return any
return function(err)
  local name = type(err) == 'string'
    and err:match("^[^\n]*attempt to call method '([%w_]+)' %(a nil value%)$")
  local near = name and errors.nearest(name, methods())
  return near and ("%s, did you mean '%s'?"):format(err, near) or err
end
