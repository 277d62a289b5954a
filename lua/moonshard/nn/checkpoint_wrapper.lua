--- A module whose calls are checkpointed: see moonshard.nn.checkpoint. The wrapper adds nothing to
--- paths. Reading or assigning a field that it does not have accesses the wrapped module.

local Module = require 'moonshard.nn.module'
local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'
local segments = require 'moonshard.autograd.segments'
local tree = require 'moonshard.nn.tree'

---@class ms.nn.CheckpointWrapper: ms.nn.Module
---@field module ms.nn.Module
---@overload fun(module: ms.nn.Module, opts?: ms.nn.CheckpointOptions): ms.nn.CheckpointWrapper
local CheckpointWrapper = Module.extend('nn.CheckpointWrapper')

CheckpointWrapper._shows_entries = true
CheckpointWrapper._transparent = true
CheckpointWrapper._is_checkpoint = true

function CheckpointWrapper.__index(self, name)
  local value = getmetatable(self)[name] -- of a derived class, as fully_shard() makes
  if value ~= nil then
    return value
  end
  local wrapped = rawget(self, '_checkpoint_wrapped_module')
  if name == 'module' or type(name) == 'string' and name:byte() == 95 then -- '_'
    return name == 'module' and wrapped or nil
  end
  return wrapped and wrapped[name]
end

-- As in FSDP's wrapper, an assignment sets the wrapped module's field.
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

---@class ms.nn.CheckpointOptions
---@field offload_to_cpu? boolean  keep the arguments that backward needs in host memory until
---  then, if the process has a device (default false); parameters are not moved

---@param module ms.nn.Module
---@param opts? ms.nn.CheckpointOptions
function CheckpointWrapper:init(module, opts)
  opts = errors.options('checkpoint_wrapper', opts, { offload_to_cpu = 'flag' })
  if not tree.is_module(module) then
    arguments.refuse('checkpoint_wrapper', 'module', module, 'a module')
  end
  rawset(self, '_offloads', opts.offload_to_cpu or false)
  self:child('_checkpoint_wrapped_module', module)
  tree.show_entries(self)
end

function CheckpointWrapper:forward(...)
  return segments.run(self._checkpoint_wrapped_module, self._offloads, ...)
end

return CheckpointWrapper
