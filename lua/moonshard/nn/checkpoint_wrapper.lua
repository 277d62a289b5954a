--- A module whose calls are checkpointed: see moonshard.nn.checkpoint. Paths do not show it, and
--- reading a field that it does not have reads the wrapped module's.

local Module = require 'moonshard.nn.module'
local arguments = require 'moonshard_ffi.arguments'
local segments = require 'moonshard.internal.segments'
local tree = require 'moonshard.nn.tree'

---@class ms.nn.CheckpointWrapper: ms.nn.Module
---@field module ms.nn.Module
---@overload fun(module: ms.nn.Module): ms.nn.CheckpointWrapper
local CheckpointWrapper = Module.extend('nn.CheckpointWrapper')

CheckpointWrapper._transparent = true
CheckpointWrapper._is_checkpoint = true

function CheckpointWrapper.__index(self, name)
  local value = CheckpointWrapper[name]
  if value ~= nil then
    return value
  end
  local wrapped = rawget(self, '_checkpoint_wrapped_module')
  if name == 'module' or type(name) == 'string' and name:byte() == 95 then -- '_'
    return name == 'module' and wrapped or nil
  end
  return wrapped and wrapped[name]
end

---@param module ms.nn.Module
function CheckpointWrapper:init(module)
  if not tree.is_module(module) then
    arguments.refuse('checkpoint_wrapper', 'module', module, 'a module')
  end
  self:child('_checkpoint_wrapped_module', module)
end

function CheckpointWrapper:forward(...)
  return segments.run(self._checkpoint_wrapped_module, ...)
end

return CheckpointWrapper
