--- Finds the module call that an error came from, by reading the Lua stack, so calls cost nothing.

local errors = require 'moonshard_ffi.errors'
local interrupt = require 'moonshard_ffi.interrupt'

local trace = {}

local marked = {}

--- Mark a function that may call a module.
---@param fn function
---@param at integer  index of the parameter that may be the module
function trace.mark(fn, at)
  marked[fn] = at
end

local function label(module)
  local path = module._scope
  return path == module._name and path or ('%s (%s)'):format(path, module._name)
end

--- The innermost module that is being called, or nil.
---@param deepest? integer  level at which to stop looking (default: the outermost)
---@return ms.nn.Module?
function trace.module(deepest)
  for level = 2, deepest or math.huge do
    local info = debug.getinfo(level, 'f')
    if not info then
      return nil
    elseif marked[info.func] then
      local _, module = debug.getlocal(level, marked[info.func])
      if type(module) == 'table' and rawget(module, '_scope') then
        return module
      end
    end
  end
end

-- Lua's own errors begin with a position, except a stack overflow in the interpreter; other strings
-- without one were raised by the script.
local POSITION, OVERFLOW = '^[^\n:]+:%d+: ', 'stack overflow'

-- Getting a level counts from the innermost one, so scanning a deep recursion would take seconds.
local DEEPEST = 1000

local function is_deep()
  return debug.getinfo(DEEPEST + 1, 'l') ~= nil
end

local function explained(err)
  local is_lua = type(err) == 'string' and (err:find(POSITION) or err == OVERFLOW)
    and not interrupt.is(err)
  if not is_lua and not (errors.is(err) and err.forward == nil) then
    return err
  end
  local module = trace.module(DEEPEST)
  if not module and (is_lua or is_deep()) then
    return err
  end
  if is_lua then
    err = errors.new('RuntimeError', err)
    err.traceback = debug.traceback('', 2):gsub('^\n', '')
  end
  err.forward = module and label(module) or false
  if module then
    err.message = ('%s (in forward of %s%s)'):format(err.message, err.forward,
      err.where ~= '' and ', ' .. err.where or '')
  end
  return err
end

--- Message handler of xpcall: adds the module that raised the error, once, and the stack at that
--- point. An error of the library stays the same object, an error of Lua becomes an error of the
--- library, and other values are not changed. After a deep recursion an outer call does this,
--- because an overflown stack has no room.
---@param err any
---@return any
function trace.on_error(err)
  if type(err) == 'string' and err:find(OVERFLOW, 1, true) and is_deep() then
    return err
  end
  return explained(err)
end

return trace
