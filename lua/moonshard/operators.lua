--- Operators that objects do not have: what Lua says of them names no object.

local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard_ffi.errors'

local operators = {}

local refused = {}

local function refuse(symbol, a, b)
  errors.raise('TypeError', "'%s' does not take %s and %s", symbol, arguments.noun(a),
    arguments.noun(b))
end

for name, symbol in next, {
  __add = '+', __sub = '-', __mul = '*', __div = '/', __mod = '%', __pow = '^', __concat = '..',
  __lt = '<',
} do
  refused[name] = function(a, b) refuse(symbol, a, b) end
end

local function order_of(object)
  local metatable = debug.getmetatable(object)
  return metatable and rawget(metatable, '__lt')
end

-- Where there is none, Lua takes `not (b < a)`: so does what stands in its place.
function refused.__le(a, b)
  local less = order_of(a)
  if less and less ~= refused.__lt and less == order_of(b) then
    return not less(b, a)
  end
  refuse('<=', a, b)
end

function refused.__unm(object)
  errors.raise('TypeError', "'-' does not take %s", arguments.noun(object))
end

function refused.__call(object)
  errors.raise('TypeError', '%s is no function: call its methods, object:method(...)',
    arguments.noun(object))
end
arguments.calls_nothing[refused.__call] = true

--- Let what has this metatable refuse all operators, and to be called. What has some sets them
--- later.
---@param metatable table
---@return table metatable
function operators.refuse(metatable)
  for name, handler in next, refused do
    metatable[name] = handler
  end
  return metatable
end

return operators
