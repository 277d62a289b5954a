--- Operators that objects do not have: what Lua says of them names no object.

local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard_ffi.errors'

local operators = {}

local refused = {}

for name, symbol in next, {
  __add = '+', __sub = '-', __mul = '*', __div = '/', __mod = '%', __pow = '^', __concat = '..',
  __lt = '<', __le = '<=',
} do
  refused[name] = function(a, b)
    errors.raise('TypeError', "'%s' does not take %s and %s", symbol, arguments.noun(a),
      arguments.noun(b))
  end
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
  for name, refuse in next, refused do
    metatable[name] = refuse
  end
  return metatable
end

return operators
