--- Namespaces: tables of public names that load files on first use and raise for unknown names.

local errors = require 'moonshard.base.errors'
local util = require 'moonshard.base.util'
local without_jit = require 'moonshard.base.without_jit'

local namespace = {}

--- Raise a KeyError that suggests the nearest known name.
---@param owner string  the table or object: 'ms.nn', 'a tensor'
---@param name any
---@param known string[]  its names
function namespace.missing(owner, name, known)
  name = tostring(name)
  local near = errors.nearest(name, known)
  errors.raise('KeyError', "%s has no '%s'%s", owner, name:sub(1, 80),
    near and (", did you mean '%s'?"):format(near) or '')
end

--- Make a table raise for unknown names, because a nil would be taken for an omitted option.
---@generic T: table
---@param name string  the table's name in scripts
---@param members T
---@param lazy? table<string, string>  modules to require when a name is first used; a module that
---  returns a plain table defines several names
---@return T members
function namespace.space(name, members, lazy)
  lazy = lazy or {}
  local function names()
    return util.sorted_keys(util.merged(lazy, members))
  end
  return setmetatable(members, {
    _namespace = name,
    _names = names,
    __tostring = function() return ('%s: %s'):format(name, table.concat(names(), ' ')) end,
    __index = function(_, key)
      if not lazy[key] then
        namespace.missing(name, key, names())
      end
      local value = without_jit.run(require, lazy[key])
      if type(value) == 'table' and getmetatable(value) == nil and value[key] ~= nil then
        value = value[key]
      end
      rawset(members, key, value)
      return value
    end,
  })
end

return namespace
