--- What the Lua stack says: which module call is running, and what may not be left for another
--- coroutine. Read only when something is raised or yielded, so that calls cost nothing.
---
--- Functions that hold something until they return (an open scope, a switched-off tape) are marked
--- here.

local errors = require 'moonshard_ffi.errors'
local interrupt = require 'moonshard_ffi.interrupt'

local trace = {}

local marked = {}

--- From now on a frame of this function holds something until it returns. Its first parameter is
--- the name of that.
---@param fn fun(name: string, ...)
---@param at? integer  which of its parameters may be a module that it calls
function trace.mark(fn, at)
  marked[fn] = at or 0
end

local function label(module)
  local path = module._scope
  return path == module._name and path or ('%s (%s)'):format(path, module._name)
end

-- The innermost name held on the stack, and the innermost module that is called there.
local function innermost(deepest)
  local first
  for level = 2, deepest or math.huge do
    local info = debug.getinfo(level, 'f')
    if not info then
      return first, nil
    end
    local at = marked[info.func]
    if at then
      local _, name = debug.getlocal(level, 1)
      local _, module = debug.getlocal(level, at)
      first = first or name
      if type(module) == 'table' and rawget(module, '_scope') then
        return first, module
      end
    end
  end
end

--- The innermost module that is being called, or nil.
---@param deepest? integer  level at which to stop looking (default: the outermost)
---@return ms.nn.Module?
function trace.module(deepest)
  local _, module = innermost(deepest)
  return module
end

-- Lua's own errors begin with a position, but for one where only the interpreter runs; another text
-- without one is a value that the script chose.
local POSITION, OVERFLOW = '^[^\n:]+:%d+: ', 'stack overflow'

-- Finding a level counts from the innermost: all of a deep recursion would take seconds.
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
  local said = is_lua and require('moonshard.internal.naming').suggest(err)
  if not module and (said == err or is_deep()) then
    return err
  end
  if is_lua then
    err = errors.new('RuntimeError', said)
    err.traceback = debug.traceback('', 2):gsub('^\n', '')
  end
  err.forward = module and label(module) or false
  if module then
    err.message = ('%s (in forward of %s%s)'):format(err.message, err.forward,
      err.where ~= '' and ', ' .. err.where or '')
  end
  return err
end

--- A handler for xpcall: an error on its way out of a forward says which module's, once, and keeps
--- the stack it was raised on. Errors of the library stay the same object; those of Lua itself
--- become one, outside of a forward only where there is more to say of them; all other values stay
--- what they are. Of what comes out of a deep recursion it is the call around the innermost one
--- that says it: a stack that has overflown has no room to look.
---@param err any
---@return any
function trace.on_error(err)
  if type(err) == 'string' and err:find(OVERFLOW, 1, true) and is_deep() then
    return err
  end
  return explained(err)
end

-- [Note: yields] There is one stack of scopes and one switch of the tape, not one per coroutine. A
-- coroutine that yielded in the middle of a module call would leave its scope on top, and what
-- others make would be released with it. A call through C could not be yielded across, but costs
-- more than the whole call; so the library takes coroutine.yield over and looks at the stack of
-- the coroutine that yields: one that was begun inside the call may.
local yield = coroutine.yield

function coroutine.yield(...) -- luacheck: ignore 122
  local name, module = innermost()
  if name then
    errors.raise('RuntimeError', 'coroutine.yield inside %s: what it holds would be lost to other '
      .. 'coroutines; yield before or after it', module and 'a call of ' .. label(module) or name)
  end
  return yield(...)
end

return trace
