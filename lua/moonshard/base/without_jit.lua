--- Code that runs once: loading, making a model, its units and initial values. Compiling its many
--- small loops takes several times as long as running them, which is milliseconds of every start.

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

--- Run `fn(...)` without the trace compiler. No function of the script that may loop runs in it.
---@param fn fun(...): ...
---@return ...
function without_jit.run(fn, ...)
  return finally.run(restore, (jit.status()), interpreted, fn, ...)
end

return without_jit
