--- Runs code that is executed once (loading, making a model, its units and initial values) without
--- compiling it. Compiling its many small loops takes several times as long as running them:
--- milliseconds of every start.

local finally = require 'moonshard.base.finally'

local without_jit = {}

local function restore(was_on)
  if was_on then
    jit.on()
  end
end

local function interpreted(fn, ...)
  jit.off()
  return fn(...)
end

--- Run `fn(...)` with the trace compiler off. Do not call functions of the script that may loop.
---@param fn fun(...): ...
---@return ...
function without_jit.run(fn, ...)
  return finally.run(restore, (jit.status()), interpreted, fn, ...)
end

return without_jit
