--- Tables of figures, of which one that is not there is no nil, which would be one of nothing.

local naming = require 'moonshard.internal.naming'
local util = require 'moonshard.internal.util'

--- A function that closes tables of one kind: reading what they have not is a KeyError.
---@param owner string  what they are called
---@return fun(t: table<string, any>): table<string, any>
return function(owner)
  local metatable = {}
  function metatable.__index(t, name)
    if type(name) == 'string' then -- of a list whoever counts it asks for one more
      naming.missing(owner, name, util.sorted_keys(t))
    end
  end
  return function(t) return setmetatable(t, metatable) end
end
