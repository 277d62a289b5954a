--- Checked fields of config.json and adapter_config.json.

local errors = require 'moonshard.base.errors'
local json = require 'moonshard.base.json'
local util = require 'moonshard.base.util'

local config_fields = {}

local function is_number(value)
  return type(value) == 'number'
end

local function is_object(value)
  return type(value) == 'table' and value ~= json.null and getmetatable(value) ~= json.array
end

local function is_names(value)
  for i = 1, type(value) == 'table' and #value or 0 do
    if type(value[i]) ~= 'string' then
      return false
    end
  end
  return type(value) == 'string' or getmetatable(value) == json.array
end

---@alias ms.models.FieldKind 'count'|'number'|'size'|'share'|'flag'|'word'|'names'|'object'

local KINDS = {
  count = { 'a whole number above 0', function(v)
    return is_number(v) and v >= 1 and v % 1 == 0
  end },
  number = { 'a number', is_number },
  size = { 'a number of at least 0', function(v) return is_number(v) and v >= 0 end },
  share = { 'a number from 0 to 1', function(v) return is_number(v) and v >= 0 and v <= 1 end },
  flag = { 'true or false', function(v) return type(v) == 'boolean' end },
  word = { 'a string', function(v) return type(v) == 'string' end },
  names = { 'a string or a list of strings', is_names },
  object = { 'an object', is_object },
}

local function shown(value)
  return type(value) == 'string' and "'" .. value:sub(1, 80) .. "'" or value == json.null and 'null'
    or is_object(value) and 'an object' or type(value) == 'table' and json.encode(value):sub(1, 80)
    or tostring(value)
end

--- Raise a FormatError unless a value is of this kind.
---@generic T
---@param from string  the file
---@param name string
---@param kind ms.models.FieldKind
---@param value T
---@return T
function config_fields.check(from, name, kind, value)
  local expected, is_valid = unpack(KINDS[kind])
  if not is_valid(value) then
    errors.raise('FormatError', '%s: %s is %s, expected %s', from, name, shown(value), expected)
  end
  return value
end

--- The value of a field.
---@param from string
---@param config table
---@param name string
---@param kind ms.models.FieldKind
---@param absent any  the value without the field
---@param null any  the value of null (default: `absent`)
---@return any
function config_fields.value(from, config, name, kind, absent, null)
  local value = config[name]
  if value == json.null and null ~= nil then
    value = null
  elseif value == nil or value == json.null then
    value = absent
  end
  if value == nil or value == json.null then
    return nil
  end
  return config_fields.check(from, name, kind, value)
end

--- Raise a NotImplementedError for a field with another value than its only supported one. A field
--- that is null or empty is not used.
---@param from string
---@param config table
---@param only table<string, any>  values by name
function config_fields.refuse(from, config, only)
  for _, name in ipairs(util.sorted_keys(only)) do
    local value = config[name]
    local unused = value == nil or value == json.null
      or type(value) == 'table' and next(value) == nil
    if value ~= only[name] and not unused then
      errors.raise('NotImplementedError', '%s: %s is %s, which is not supported, expected %s', from,
        name, shown(value), shown(only[name]))
    end
  end
end

return config_fields
