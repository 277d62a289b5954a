--- Argument checks of public functions. Each returns the value, or raises a TypeError (ValueError
--- if the type is right) with function, argument, found and expected value.

local ffi = require 'ffi'
local errors = require 'moonshard_ffi.errors'
local C = require('moonshard_ffi.library').C

local arguments = {}

local Ref, Group = ffi.typeof 'ms_ref', ffi.typeof 'ms_comm *'
local LARGEST = 2 ^ 53 -- larger doubles do not represent every integer

--- A value's description for messages: "a tensor", "a nn.Linear", "the class nn.Linear", "nil".
---@param value any
---@return string
function arguments.noun(value)
  local kind = type(value)
  if kind == 'cdata' then
    return ffi.istype(Ref, value) and 'a tensor' or ffi.istype(Group, value) and 'a group of ranks'
      or 'a cdata of another type'
  end
  local class = kind == 'table' and (rawget(value, '_name') or getmetatable(value))
  if type(class) == 'table' and rawget(class, '_namespace') then
    return class._namespace .. ' itself (given by a colon; write a dot)'
  elseif type(class) == 'string' then
    return 'the class ' .. class
  elseif type(class) == 'table' and type(rawget(class, '_name')) == 'string' then
    return 'a ' .. rawget(class, '_name')
  end
  return errors.noun(value)
end

---@param what string  the function
---@param name string  the argument
---@param expected string
function arguments.refuse(what, name, value, expected)
  errors.raise('TypeError', "%s: '%s' is %s, expected %s", what, name, arguments.noun(value),
    expected)
end

local refuse = arguments.refuse

--- Check a value's Lua type. nil becomes `default`, unless that is nil too.
local function of_type(kind, expected)
  return function(what, name, value, default)
    if value == nil and default ~= nil then
      return default
    elseif type(value) ~= kind then
      refuse(what, name, value, expected)
    end
    return value
  end
end

---@type fun(what: string, name: string, value: any, default?: number): number
arguments.number = of_type('number', 'a number')
---@type fun(what: string, name: string, value: any, default?: boolean): boolean
arguments.flag = of_type('boolean', 'true or false')
---@type fun(what: string, name: string, value: any, default?: table): table
arguments.list = of_type('table', 'a list')

--- Accept any value: for options that the function checks itself.
function arguments.any(_, _, value)
  return value
end

--- Check a list: entries with names, at index 0 or after a gap would be ignored.
---@param what string  the function
---@param name string  the argument
---@param value any
---@return table
function arguments.array(what, name, value)
  if arguments.noun(value) ~= 'a table' then
    refuse(what, name, value, 'a list')
  end
  local n = #value
  for key in next, value do
    if type(key) == 'number' then
      if key < 1 or key > n or key % 1 ~= 0 then
        errors.raise('TypeError', "%s: '%s' has an entry %.17g, expected a plain list, from 1 on "
          .. 'without a gap', what, name, key)
      end
    else
      errors.raise('TypeError', "%s: '%s' has a field '%s', expected a plain list; what is no part "
        .. 'of it follows by place, not by name', what, name,
        type(key) == 'string' and key:sub(1, 80) or arguments.noun(key))
    end
  end
  return value
end

local text = of_type('string', 'a string')

--- Check a string. It must not contain zero bytes, because C would stop at the first one.
---@param default? string
---@return string
function arguments.text(what, name, value, default)
  value = text(what, name, value, default)
  if value:find('\0', 1, true) then
    errors.raise('ValueError', "%s: '%s' holds a NUL byte, expected text without", what, name)
  end
  return value
end

--- Check a function or a callable object.
---@return fun(...): ...
function arguments.fn(what, name, value)
  local meta = type(value) == 'table' and getmetatable(value)
  if type(value) ~= 'function' and not (type(meta) == 'table' and meta.__call) then
    refuse(what, name, value, 'a function')
  end
  return value
end

---@return ms.Tensor
function arguments.tensor(what, name, value)
  if not ffi.istype(Ref, value) then
    refuse(what, name, value, 'a tensor')
  end
  return value
end

---@return boolean
function arguments.is_group(value)
  return ffi.istype(Group, value) and value ~= nil
end

-- Serial numbers of freed groups by handle: a new group may have the same address.
local freed = setmetatable({}, { __mode = 'k' })

--- Destroy a group when its last owner releases it.
---@param group ms.dist.Group
function arguments.free_group(group)
  freed[group] = freed[group] or C.ms_comm_serial(group)
  C.ms_comm_free(group)
end

--- Was the group destroyed by close() or destroy_process_group()?
---@param group ms.dist.Group
---@return boolean
function arguments.is_gone(group)
  local serial = C.ms_comm_serial(group)
  return serial == 0 or freed[group] ~= nil and freed[group] ~= serial
end

---@return ms.dist.Group
function arguments.group(what, name, value)
  if value == false then
    errors.raise('ValueError', '%s: this rank is in none of the groups that dist.split() or '
      .. 'new_group() made here, and only their members call', what)
  elseif not ffi.istype(Group, value) or value == nil then
    refuse(what, name, value, 'a group of ranks')
  elseif arguments.is_gone(value) then
    errors.raise('ValueError', "%s: '%s' is a group that is gone: %s() ended it", what, name,
      freed[value] and 'destroy_process_group' or 'close')
  end
  return value
end

--- Check an integer of at least `lowest` (default: no limit).
---@param lowest? integer
---@return integer
function arguments.whole(what, name, value, default, lowest)
  if value == nil and default ~= nil then
    return default
  elseif type(value) ~= 'number' then
    refuse(what, name, value, 'a whole number')
  elseif value % 1 ~= 0 then
    errors.raise('TypeError', "%s: '%s' is %.17g, expected a whole number", what, name, value)
  elseif value < (lowest or -LARGEST) or value > LARGEST then
    errors.raise('ValueError', "%s: '%s' is %.17g, expected %s", what, name, value,
      lowest and ('%d or more'):format(lowest) or 'a number up to 2^53')
  end
  return value
end

--- Check an integer from 0 to the largest int32_t.
---@return integer
function arguments.count(what, name, value)
  if arguments.whole(what, name, value, nil, 0) > 0x7fffffff then
    errors.raise('ValueError', "%s: '%s' is %.17g, expected at most 2^31 - 1", what, name, value)
  end
  return value
end

-- -- errors of the generated callers ------------------------------------------------------------

function arguments.no_tensor(what, name, value)
  refuse(what, name, value, 'a tensor')
end

function arguments.bad_handle(what, name, value, struct)
  refuse(what, name, value, struct == 'ms_comm' and 'a group of ranks' or 'a ' .. struct)
end

--- Raise the error for a scalar that C cannot accept.
function arguments.bad_scalar(what, name, value, type_name)
  if type_name == 'double' or type_name == 'float' then
    refuse(what, name, value, 'a number')
  elseif type_name == 'bool' then
    refuse(what, name, value, 'true or false')
  elseif type_name == 'char' then
    return arguments.text(what, name, value)
  end
  arguments.whole(what, name, value)
  errors.raise('ValueError', "%s: '%s' is %.17g, which is out of range", what, name, value)
end

return arguments
