--- Work that a script waits for once: loading, making a model, its units and first values. Its many
--- small loops would be taken for hot ones, and compiling them takes several times as long as
--- running them does: milliseconds of every start.

local guard = require 'moonshard.internal.guard'

local once = {}

local function restore(was_on)
  if was_on then
    jit.on()
  end
end

local function interpreted(fn, ...)
  jit.off()
  return fn(...)
end

--- Run `fn(...)` without the compiler of traces. It must not be long: nothing a script gives that
--- may loop runs in it.
---@param name string  for the error of a coroutine that yields in it
---@param fn fun(...): ...
---@return ...
function once.run(name, fn, ...)
  return guard.run(name, restore, (jit.status()), interpreted, fn, ...)
end

return once
