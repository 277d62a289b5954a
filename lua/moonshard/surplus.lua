--- Refusing arguments that nobody would look at: `x:sum(1, true, 3)`. Nils may be surplus.
---
--- What scripts reach is closed where it becomes public: functions by moonshard.namespace, methods
--- by moonshard.receiver, constructors by moonshard.class. The library's own calls go to the
--- functions themselves.

local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard_ffi.errors'

local surplus = {}

--- Names of the parameters of a function, and whether `...` stands behind them.
---@param fn function
---@return string[] names, boolean is_vararg
function surplus.parameters(fn)
  local info, names = debug.getinfo(fn, 'u'), {}
  for i = 1, info.nparams do
    names[i] = debug.getlocal(fn, i)
  end
  return names, info.isvararg
end

--- Raise what is wrong with one argument more.
---@param name string  what scripts call the function: 'ms.full', 't:sum'
---@param names string[]  its parameters, without the object of a method
---@param value any  the argument
function surplus.refuse(name, names, value)
  errors.raise('TypeError', '%s(%s): %s is one argument too many', name,
    table.concat(names, ', '), arguments.noun(value))
end

-- [Note: prototypes] The compiler of traces tells functions apart by their prototypes, and begins
-- no trace at a `...`. So each wrapper is loaded by itself, with its parameters spelled out and one
-- more, which costs nothing as long as it is not given.
local CLOSED = [[
local fn, refuse, check = ...
return function(PARAMETERS surplus)
  CHECK
  if surplus ~= nil then refuse(surplus) end
  return fn(ARGUMENTS)
end]]
local OPEN = [[
local fn, _, check = ...
return function(PARAMETERS ...)
  CHECK
  return fn(PARAMETERS ...)
end]]

local SOURCE = debug.getinfo(1, 'S').source -- of the library: errors name the line that called it

local compiled = {} -- bytecode by kind of wrapper: loading it is quicker than compiling it again

-- A function that makes a wrapper, with a prototype of its own each time.
local function maker(n, is_vararg, checks)
  local key = n * 4 + (is_vararg and 2 or 0) + (checks and 1 or 0)
  if not compiled[key] then
    local list = {}
    for i = 1, n do
      list[i] = 'p' .. i
    end
    local text = (is_vararg and OPEN or CLOSED):gsub('%u%u%u+', {
      PARAMETERS = table.concat(list, ', ') .. (n > 0 and ',' or ''),
      ARGUMENTS = table.concat(list, ', '),
      CHECK = checks and 'check(p1)' or '',
    })
    compiled[key] = string.dump(assert(loadstring(text, SOURCE)))
  end
  return loadstring(compiled[key])
end

--- The function, but that it refuses a surplus argument.
---@param name string  what scripts call it
---@param fn function
---@param check? fun(self: any)  of a method: raises unless it is called on what it should be
---@return function
function surplus.closed(name, fn, check)
  local info = debug.getinfo(fn, 'u')
  if info.isvararg and not check then
    return fn
  end
  local function refuse(value)
    local names = surplus.parameters(fn)
    surplus.refuse(name, (check or names[1] == 'self') and { unpack(names, 2) } or names, value)
  end
  return maker(info.nparams, info.isvararg, check ~= nil)(fn, refuse, check)
end

return surplus
