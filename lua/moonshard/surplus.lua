--- Refusing arguments that nobody would look at: `x:sum(1, true, 3)`, and the namespace that a
--- colon in place of a dot gives to functions: `ms:zeros(2)`. Nils may be surplus.
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
---@param first any  the first one: a module that calls a layer in a field of its own by a colon
---                  gives itself
function surplus.refuse(name, names, value, first)
  local meta = type(first) == 'table' and getmetatable(first)
  errors.raise('TypeError', '%s(%s): %s is one argument too many%s', name,
    table.concat(names, ', '), arguments.noun(value), type(meta) == 'table' and meta._is_module
      and '; the first is the module itself, which a colon gives: write self.layer(x), with a dot'
      or '')
end

--- Tables whose functions, and classes, are called with a dot.
surplus.namespaces = setmetatable({}, { __mode = 'k' })

--- Raise a TypeError when a function was called with a colon.
---@param name string  what scripts call it
---@param first any  its first argument
function surplus.check_dot(name, first)
  if surplus.namespaces[first] then
    errors.raise('TypeError', '%s is no method: write %s(...), with a dot', name, name)
  end
end

-- [Note: prototypes] The compiler of traces tells functions apart by their prototypes, and begins
-- no trace at a `...`. So each wrapper is loaded by itself, with its parameters spelled out and one
-- more, which costs nothing as long as it is not given.
local CLOSED = [[
local fn, refuse, check, owner = ...
return function(PARAMETERS surplus)
  CHECK
  if surplus ~= nil then refuse(surplus REST) end
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

-- What is asked of the first argument: of a method's by a function, of a namespace's in place.
local CHECKS = {
  method = function() return 'check(p1)' end,
  namespace = function(n)
    return ('if %s == owner then check(owner) end'):format(n > 0 and 'p1' or 'surplus')
  end,
  none = function() return '' end,
}

-- A function that makes a wrapper, with a prototype of its own each time.
local function maker(n, is_vararg, kind)
  local key = ('%s %d%s'):format(kind, n, is_vararg and ' ...' or '')
  if not compiled[key] then
    local list = {}
    for i = 1, n do
      list[i] = 'p' .. i
    end
    local text = (is_vararg and OPEN or CLOSED):gsub('%u%u%u+', {
      PARAMETERS = table.concat(list, ', ') .. (n > 0 and ',' or ''),
      ARGUMENTS = table.concat(list, ', '),
      REST = n > 0 and ', ' .. table.concat(list, ', ') or '',
      CHECK = CHECKS[kind](n),
    })
    compiled[key] = string.dump(assert(loadstring(text, SOURCE)))
  end
  return loadstring(compiled[key])
end

local function wrapped(kind, name, fn, check, owner)
  local info = debug.getinfo(fn, 'u')
  if info.isvararg and kind ~= 'method' then -- a wrapper would cost a trace
    return fn
  end
  local function refuse(value, _, first)
    local names = surplus.parameters(fn)
    if kind == 'method' or names[1] == 'self' then
      surplus.refuse(name, { unpack(names, 2) }, value, kind == 'none' and first)
    end
    surplus.refuse(name, names, value)
  end
  return maker(info.nparams, info.isvararg, kind)(fn, refuse, check, owner)
end

--- The function, but that it refuses a surplus argument.
---@param name string  what scripts call it
---@param fn function
---@return function
function surplus.closed(name, fn)
  return wrapped('none', name, fn)
end

--- The same of a method.
---@param check fun(self: any)  raises unless it is called on what it should be
function surplus.method(name, fn, check)
  return wrapped('method', name, fn, check)
end

--- The same of a function of a namespace, which refuses to be called with a colon.
---@param namespace table  one of surplus.namespaces
function surplus.member(name, fn, namespace)
  return wrapped('namespace', name, fn, function(first) surplus.check_dot(name, first) end,
    namespace)
end

return surplus
