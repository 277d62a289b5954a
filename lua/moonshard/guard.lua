--- Putting back what was changed for the time of a call, whatever ends the call: its return, an
--- error, or an error between any two instructions (a debug hook, Ctrl-C in the interpreter).

local trace = require 'moonshard.trace'

local guard = {}

local function after(restore, state, ok, ...)
  restore(state, ok, not ok and (...) or nil)
  if not ok then
    error((...), 0)
  end
  return ...
end

local function once(_, restore, state, fn, ...)
  return after(restore, state, xpcall(fn, trace.on_error, ...))
end

trace.mark(once)

local function settle(restore, state, ok, ...)
  if not ok then
    -- again: what ended the call may have ended the first one as well
    pcall(restore, state, false, (...))
    error((...), 0)
  end
  return ...
end

--- Run `fn(...)`, then `restore(state, ok, err)`, and return what fn returned or raise what it
--- raised. What restore() puts back is changed inside `fn` alone; it runs once more after a
--- failure, and must do no harm then.
---@param name string  what is held meanwhile, for the error of a coroutine that yields in it
---@param restore fun(state: any, ok: boolean, err: any)
---@param state any
---@param fn fun(...): ...
---@return ...
function guard.run(name, restore, state, fn, ...)
  return settle(restore, state, xpcall(once, trace.on_error, name, restore, state, fn, ...))
end

return guard
