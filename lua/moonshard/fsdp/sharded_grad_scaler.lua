--- A loss scale over sharded gradients: ms.amp.GradScaler with an explicit group.

local arguments = require 'moonshard_ffi.arguments'
local class = require 'moonshard.base.class'
local util = require 'moonshard.base.util'
local GradScaler = require 'moonshard.amp.grad_scaler'

---@class ms.fsdp.ShardedGradScaler: ms.amp.GradScaler
---@overload fun(opts?: ms.fsdp.ShardedGradScaler.Options): ms.fsdp.ShardedGradScaler
local ShardedGradScaler = class('fsdp.ShardedGradScaler', GradScaler)

---@class ms.fsdp.ShardedGradScaler.Options: ms.amp.GradScaler.Options
---@field process_group? ms.dist.Group  that agrees on what was found; default: the parameters' own

---@param opts? ms.fsdp.ShardedGradScaler.Options
function ShardedGradScaler:init(opts)
  local group = type(opts) == 'table' and opts.process_group
  if group then
    self._group = arguments.group(self._name, 'process_group', group)
    opts = util.merged(opts)
    opts.process_group = nil
  end
  GradScaler.init(self, opts)
end

function ShardedGradScaler:_group_of(params)
  return self._group or GradScaler._group_of(self, params)
end

return ShardedGradScaler
