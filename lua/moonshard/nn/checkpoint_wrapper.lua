--- A module whose calls are checkpointed: see moonshard.nn.checkpoint. Paths do not show it, and
--- reading or assigning a field that it does not have is of the wrapped module's.

local Module = require 'moonshard.nn.module'
local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.internal.errors'
local segments = require 'moonshard.internal.segments'
local tree = require 'moonshard.nn.tree'

---@class ms.nn.CheckpointWrapper: ms.nn.Module
---@field module ms.nn.Module
---@overload fun(module: ms.nn.Module): ms.nn.CheckpointWrapper
local CheckpointWrapper = Module.extend('nn.CheckpointWrapper')

CheckpointWrapper._shows_entries = true
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

-- As FSDP's: what its fields show of the wrapped module can be assigned through them, too.
function CheckpointWrapper.__newindex(self, name, value)
  local wrapped = rawget(self, '_checkpoint_wrapped_module')
  if not wrapped or type(name) == 'string' and name:byte() == 95 then
    rawset(self, name, value)
  elseif name == 'module' then
    errors.raise('KeyError', 'the module that checkpoint_wrapper wraps cannot be replaced: wrap '
      .. 'the other one')
  else
    wrapped[name] = value
  end
end

---@param module ms.nn.Module
function CheckpointWrapper:init(module)
  if not tree.is_module(module) then
    arguments.refuse('checkpoint_wrapper', 'module', module, 'a module')
  end
  self:child('_checkpoint_wrapped_module', module)
  tree.show_entries(self)
end

function CheckpointWrapper:forward(...)
  return segments.run(self._checkpoint_wrapped_module, ...)
end

return CheckpointWrapper
