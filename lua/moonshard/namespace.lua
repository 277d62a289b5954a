--- Tables of names that load their members when first used and say what they do not have: a field
--- that is nil would be an option that nobody gave.

local errors = require 'moonshard.errors'

local function names_of(...)
  local names = {}
  for i = 1, select('#', ...) do
    for name in next, (select(i, ...)) do
      if type(name) == 'string' then
        names[#names + 1] = name
      end
    end
  end
  table.sort(names)
  return names
end

--- Make `members` refuse names it does not have: KeyError names the nearest one, and
--- NotImplementedError what is planned.
---@generic T: table
---@param name string  what scripts call it
---@param members T
---@param lazy? table<string, string>  files to require when a name is first used
---@param planned? table<string, string>  names of what is to come, and what that is
---@return T members
local function namespace(name, members, lazy, planned)
  lazy, planned = lazy or {}, planned or {}
  return setmetatable(members, {
    __index = function(_, key)
      if lazy[key] then
        local value = require(lazy[key])
        rawset(members, key, value)
        return value
      elseif planned[key] then
        errors.raise('NotImplementedError', '%s.%s: %s is not supported yet', name, key,
          planned[key])
      end
      local near = type(key) == 'string' and errors.nearest(key, names_of(members, lazy))
      errors.raise('KeyError', "%s has no '%s'%s", name, tostring(key),
        near and (", did you mean '%s'?"):format(near) or '')
    end,
  })
end

return namespace
