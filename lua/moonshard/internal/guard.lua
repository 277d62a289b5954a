--- Undo a temporary change when a call ends, whether it returns or raises.

local trace = require 'moonshard.internal.trace'

local guard = {}

local function after(restore, state, ok, ...)
  restore(state, ok, not ok and (...) or nil)
  if not ok then
    error((...), 0)
  end
  return ...
end

--- Run `fn(...)`, then `restore(state, ok, err)`, and return what fn returned or raise what it
--- raised.
---@param name string  what is changed meanwhile, for the error of a coroutine that yields in it
---@param restore fun(state: any, ok: boolean, err: any)
---@param state any
---@param fn fun(...): ...
---@return ...
function guard.run(name, restore, state, fn, ...) -- luacheck: no unused args
  return after(restore, state, xpcall(fn, trace.on_error, ...))
end

trace.mark(guard.run)

return guard
