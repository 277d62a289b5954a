--- What code that runs inside a compiled function declares, so that a replay repeats it: steps of
--- the host, and reasons why a function cannot be replayed. Nothing is declared while no function
--- is captured (see moonshard.compile).

local B = require 'moonshard_ffi'

local capture = {
  --- Number of fields that were added to modules in this process.
  fields_added = 0,
  ---@type fun(module: ms.nn.Module, opts?: table): ms.nn.Module  set by moonshard.ms
  compile_module = nil,
}

local active ---@type ms.compile.Recording?

--- The recording of the function that is being captured.
---@return ms.compile.Recording?
function capture.active()
  return active
end

---@param recording ms.compile.Recording?
function capture.set_active(recording)
  active = recording
  B.state.at = recording and recording.at or false
end

--- Call `fn(a, b, c)` now, and at this point of each replay. Tensors among the arguments, also
--- inside plain arrays, are those of the replay, and so are tensors that it returns. Other results
--- of operators that it runs must not be used later.
---@param name string
---@param fn fun(a: any, b: any, c: any)
function capture.step(name, fn, a, b, c)
  if active then
    return active:step(name, fn, a, b, c)
  end
  return fn(a, b, c)
end

--- An operator drew a random mask: in a replay its call number is `number(stream)`.
---@param number fun(stream: any): integer
---@param stream any
function capture.drew(number, stream)
  if active then
    active:drew(number, stream)
  end
end

--- What runs until end_checkpoint() is an activation checkpoint: replays compute it again in
--- backward.
function capture.begin_checkpoint()
  if active then
    active:begin_checkpoint()
  end
end

function capture.end_checkpoint()
  if active then
    active:end_checkpoint()
  end
end

--- A replay that fails after this point calls `restore(state, false, err)`.
---@param restore fun(state: any, ok: boolean, err: any)
---@param state any
function capture.on_failure(restore, state)
  if active then
    active:on_failure(restore, state)
  end
end

--- The function that is being captured, if any, cannot be replayed.
---@param reason string  completes "it cannot be replayed: "
function capture.breaks(reason)
  if active then
    active:breaks(reason)
  end
end

return capture
