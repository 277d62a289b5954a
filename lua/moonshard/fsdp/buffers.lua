--- The dtype of an instance's buffers under mixed precision.

local parameter = require 'moonshard_ffi.parameter'
local tree = require 'moonshard.nn.tree'

local buffers = {}

local function visit(instance, module, dtype)
  if instance._ignored.modules[module] then
    return
  end
  for _, b in ipairs(tree.own_buffers(module)) do
    if not dtype then
      b:restore()
    elseif parameter.facts(b.value.tensor).floating then
      b:cast(dtype)
    end
  end
  for _, child in ipairs(module:children()) do
    if not tree.manager(child) then
      visit(instance, child, dtype)
    end
  end
end

--- Let the buffers of an instance have its buffer_dtype, or with full precision in evaluation the
--- dtypes that they were declared in. Those of ignored modules and of instances below stay.
---@param instance ms.fsdp.State
function buffers.cast(instance)
  local dtype = instance.mixed_precision.buffer_dtype
  local full = instance.full_precision_in_eval and not instance.outer_module.training
  if not dtype or instance._full_buffers == full then
    return
  end
  visit(instance, instance:wrapped(), not full and dtype or nil)
  instance._full_buffers = full
end

return buffers
