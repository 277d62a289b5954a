--- Communication hooks for register_comm_hook(): the mean that the runtime computes without a hook,
--- and the same in a low precision.

local arguments = require 'moonshard_ffi.arguments'
local class = require 'moonshard.base.class'
local dist = require 'moonshard.dist'
local errors = require 'moonshard.base.errors'
local namespace = require 'moonshard.base.namespace'

---@class ms.fsdp.comm_hooks
local comm_hooks = {}

-- The largest power of two whose square does not exceed the number of ranks it divides.
local function predivide_factor(world)
  local factor = 1
  while world % factor == 0 and world / factor > factor do
    factor = factor * 2
  end
  return factor
end

--- What the default hooks take: the group, and by what gradients are divided before and after the
--- sum.
---@class ms.fsdp.DefaultState
---@field process_group ms.dist.Group
---@field world_size integer
---@field gradient_predivide_factor number
---@field gradient_postdivide_factor number
local DefaultState = class('fsdp.DefaultState')

---@param process_group ms.dist.Group
function DefaultState:init(process_group)
  self.process_group = arguments.group(self._name, 'process_group', process_group)
  self.world_size = dist.get_world_size(process_group)
  self.gradient_predivide_factor = predivide_factor(self.world_size)
  self.gradient_postdivide_factor = self.world_size / self.gradient_predivide_factor
end

--- The same for sums in a low precision.
---@class ms.fsdp.LowPrecisionState: ms.fsdp.DefaultState
local LowPrecisionState = class('fsdp.LowPrecisionState', DefaultState)

comm_hooks.DefaultState, comm_hooks.LowPrecisionState = DefaultState, LowPrecisionState

local function check(what, state)
  if type(state) ~= 'table' or type(state.gradient_predivide_factor) ~= 'number' then
    arguments.refuse(what, 'state', state, 'a comm_hooks.DefaultState')
  end
end

local function divide(t, factor)
  if factor > 1 then
    t:mul_(1 / factor)
  end
end

--- The mean of `grad` over the ranks, in place: for NO_SHARD. TypeError for a sharded unit.
---@param state ms.fsdp.DefaultState
---@param grad ms.Tensor
function comm_hooks.allreduce_hook(state, grad, out)
  check('allreduce_hook', state)
  if out ~= nil then
    errors.raise('TypeError', 'allreduce_hook reduces gradients of units with NO_SHARD, got one of '
      .. 'a sharded unit; register reduce_scatter_hook')
  end
  divide(grad, state.gradient_predivide_factor)
  dist.all_reduce(grad, 'sum', state.process_group)
  divide(grad, state.gradient_postdivide_factor)
end

--- This rank's part of the mean over the ranks.
---@param state ms.fsdp.DefaultState
---@param grad ms.Tensor  (W n)
---@param out ms.Tensor  (n)
function comm_hooks.reduce_scatter_hook(state, grad, out)
  check('reduce_scatter_hook', state)
  if out == nil then
    errors.raise('TypeError', 'reduce_scatter_hook reduces gradients of sharded units, got one of '
      .. 'a unit with NO_SHARD; register allreduce_hook')
  end
  divide(grad, state.gradient_predivide_factor)
  dist.reduce_scatter(out, grad, 'sum', state.process_group)
  divide(out, state.gradient_postdivide_factor)
end

local function compress(dtype, state, grad, out)
  local low = grad:to(dtype)
  if not out then
    comm_hooks.allreduce_hook(state, low)
    grad:copy_(low)
    return
  end
  local part = out:to(dtype)
  comm_hooks.reduce_scatter_hook(state, low, part)
  out:copy_(part)
end

--- The default hooks with gradients in f16.
---@param state ms.fsdp.LowPrecisionState
---@param grad ms.Tensor
---@param out? ms.Tensor
function comm_hooks.fp16_compress_hook(state, grad, out)
  compress('f16', state, grad, out)
end

--- The default hooks with gradients in bf16.
---@param state ms.fsdp.LowPrecisionState
---@param grad ms.Tensor
---@param out? ms.Tensor
function comm_hooks.bf16_compress_hook(state, grad, out)
  compress('bf16', state, grad, out)
end

return namespace.space('fsdp.comm_hooks', comm_hooks)
