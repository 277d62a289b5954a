--- Undoes a temporary change when a call ends, whether it returns or raises.

local trace = require 'moonshard.base.trace'

local finally = {}

local function after(restore, state, ok, ...)
  restore(state, ok, not ok and (...) or nil)
  if not ok then
    error((...), 0)
  end
  return ...
end

--- Run `fn(...)`, then `restore(state, ok, err)`. Return fn's results or raise its error again.
---@param restore fun(state: any, ok: boolean, err: any)
---@param state any
---@param fn fun(...): ...
---@return ...
function finally.run(restore, state, fn, ...)
  return after(restore, state, xpcall(fn, trace.on_error, ...))
end

return finally
