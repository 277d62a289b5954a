--- The parameters that are gathered together, as a script sees what they are used for.

local class = require 'moonshard.base.class'
local errors = require 'moonshard.base.errors'
local arguments = require 'moonshard_ffi.arguments'
local finally = require 'moonshard.base.finally'
local runtime = require 'moonshard_ffi.fsdp'

---@alias ms.fsdp.TrainingState 'IDLE'|'FORWARD'|'PRE_BACKWARD'|'POST_BACKWARD'

---@class ms.fsdp.ParamGroup
---@overload fun(opts: {}): ms.fsdp.ParamGroup  without parameters
local ParamGroup = class 'fsdp.ParamGroup'

local STATES = { 'IDLE', 'FORWARD', 'PRE_BACKWARD', 'POST_BACKWARD' }

---@param opts? {}
function ParamGroup:init(opts)
  errors.options('ParamGroup', opts, {})
end

--- Is it used by a forward, or by a backward that still needs it or has finished with it?
---@return ms.fsdp.TrainingState
function ParamGroup:training_state()
  local unit = self._state and self._state._unit
  return self._shown or unit and runtime.info(unit).training or 'IDLE'
end

local function restore(before)
  before.group._shown = before.shown
end

--- Run `fn(...)` while training_state() gives `state`. Changes nothing else.
---@param state ms.fsdp.TrainingState
---@param fn fun(...): ...
---@return ...
function ParamGroup:use_training_state(state, fn, ...)
  errors.choice('use_training_state', 'state', state, STATES)
  arguments.fn('use_training_state', 'fn', fn)
  local before = { group = self, shown = self._shown }
  self._shown = state
  return finally.run(restore, before, fn, ...)
end

--- The group of a sharded module.
---@param state ms.fsdp.State
---@return ms.fsdp.ParamGroup
function ParamGroup._of_state(state)
  local group = ParamGroup {}
  group._state = state
  return group
end

return ParamGroup
