--- Tables of names that load their members when first used and say what they do not have: a field
--- that is nil would be an option that nobody gave. Their functions take no surplus arguments.

local errors = require 'moonshard.errors'
local missing = require 'moonshard.missing'
local once = require 'moonshard.once'
local surplus = require 'moonshard.surplus'
local util = require 'moonshard.util'

-- What a layer of the library is called with ends in its forward; nn.Module's only says that there
-- is none.
local function close_forward(cls)
  local forward = rawget(cls, '_parent') and cls._is_module and rawget(cls, 'forward')
  if forward then
    cls.forward = surplus.closed(cls._name, forward)
  end
end

-- What to do in place of a name, after a semicolon.
local function hint(instead, key)
  if type(instead) == 'function' then
    return instead(key)
  end
  return instead and instead[key] and 'write ' .. instead[key]
end

--- Make `members` refuse names it does not have: KeyError names the nearest one, and
--- NotImplementedError what is planned; both say what to write instead where `instead` knows.
---@generic T: table
---@param name string  what scripts call it
---@param members T
---@param lazy? table<string, string>  files to require when a name is first used
---@param planned? table<string, string>  names of what is to come, and what that is
---@param instead? table<string, string>|fun(key: string): string?  what to write in place of a name
--- that stands elsewhere, or a function that says what to do
---@return T members
local function namespace(name, members, lazy, planned, instead)
  lazy, planned = lazy or {}, planned or {}
  surplus.namespaces[members] = true
  for key, value in next, members do
    if type(value) == 'function' then
      members[key] = surplus.member(name .. '.' .. key, value, members)
    end
  end
  return setmetatable(members, {
    _namespace = name,
    __tostring = function()
      return ('%s: %s'):format(name,
        table.concat(util.sorted_keys(util.merged(lazy, members)), ' '))
    end,
    __index = function(_, key)
      if lazy[key] then
        local value = once.run(name .. '.' .. key, require, lazy[key])
        close_forward(value)
        rawset(members, key, value)
        return value
      elseif planned[key] then
        local other = hint(instead, key)
        errors.raise('NotImplementedError', '%s.%s: %s is not supported yet%s', name, key,
          planned[key], other and '; ' .. other or '')
      end
      key = tostring(key)
      missing(name, key, util.sorted_keys(util.merged(lazy, members)), hint(instead, key))
    end,
  })
end

return namespace
