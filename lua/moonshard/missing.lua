--- What is said of a name that is not there: the nearest one that is.

local errors = require 'moonshard.errors'

--- Raise a KeyError that says so.
---@param owner string  what has no such name: 'ms.nn', 'a tensor'
---@param name string
---@param known string[]  the names it has
---@param instead? string  what to write in its place, where that is known
return function(owner, name, known, instead)
  local near = not instead and errors.nearest(name, known)
  errors.raise('KeyError', "%s has no '%s'%s", owner, name:sub(1, 80),
    instead and '; ' .. instead or near and (", did you mean '%s'?"):format(near) or '')
end
