--- Methods of a state for parameters of its unit as sharded tensors: ms.Tensor calls them.

local B = require 'moonshard_ffi'
local ShardedTensor = require 'moonshard.dist.sharded_tensor'
local create = require 'moonshard.base.create'
local errors = require 'moonshard.base.errors'
local meshes = require 'moonshard.dist.mesh'
local parameter = require 'moonshard_ffi.parameter'
local placement = require 'moonshard.dist.placement'
local util = require 'moonshard.base.util'

---@class ms.fsdp.Placed
local placed = {}

local function is_flat(self, tensor)
  return rawequal(self._flat, tensor) or self._flat ~= nil
    and parameter.key(self._flat) == parameter.key(tensor)
end

-- This rank's elements, and the shape of the whole.
local function part_of(self, tensor)
  if not is_flat(self, tensor) then
    local part, extent = parameter.part(tensor)
    return part, extent.shape
  end
  local own = self:_local_state()
  local whole = self.sharding_strategy == 'NO_SHARD' and tensor:detach():narrow(1, 1, own:numel())
  return whole or own.local_tensor, own:shape()
end

-- This rank's elements of a tensor of this shape, as its placements divide it.
local function shaped(self, part, shape)
  if self.sharding_strategy == 'NO_SHARD' then
    return part:reshape(shape)
  elseif self.shard_layout == 'rows' then
    local row = util.product(util.slice(shape, 2))
    return part:reshape { row > 0 and part:numel() / row or 0, unpack(shape, 2) }
  end
  return part
end

--- This rank's elements, in the shape that the sharded handle shows.
---@param tensor ms.Tensor  a parameter of the unit, or its flat parameter
---@return ms.Tensor
function placed:_local_value(tensor)
  local part, shape = part_of(self, tensor)
  return shaped(self, part or create.zeros({ 0 }, { dtype = tensor:dtype() }), shape)
end

--- A sharded tensor of the placements of a parameter: of its values, or of others such as a state
--- of the optimizer. It shares their memory.
---@param tensor ms.Tensor  a parameter of the unit
---@param elements ms.Tensor?  (elements of this rank); nil if it has none
---@param dtype ms.DType
---@return ms.dist.ShardedTensor
function placed:_sharded(tensor, elements, dtype)
  local _, extent = parameter.part(tensor)
  if self.shard_layout == 'flat' and self.sharding_strategy ~= 'NO_SHARD' then
    return ShardedTensor(extent.shape, dtype, extent.start + 1, elements, self.shard_group,
      self.replica)
  end
  local value = shaped(self, elements or create.zeros({ 0 }, { dtype = dtype }), extent.shape)
  return ShardedTensor.from_local(value, self:_mesh(), self:_placements(),
    { shape = extent.shape })
end

--- A full copy in the parameter's own dtype. Collective.
---@param tensor ms.Tensor
---@return ms.Tensor
function placed:_full_value(tensor)
  if B.C.ms_comm_is_fake(self.process_group) then
    errors.raise('RuntimeError', 'full_tensor: the model is sharded over a fake group, expected a '
      .. 'group of ranks that exist')
  elseif not is_flat(self, tensor) then
    return B.calls.fsdp_unit_gather(self._unit, self._index_of[parameter.key(tensor)] - 1)
  elseif self.sharding_strategy == 'NO_SHARD' then
    return part_of(self, tensor):clone()
  end
  return self:_local_state():full_tensor()
end

---@param tensor ms.Tensor
---@return integer[]
function placed:_global_shape(tensor)
  local _, shape = part_of(self, tensor)
  return { unpack(shape) }
end

---@return ms.dist.Placement[]  one for each dimension of _mesh()
function placed:_placements()
  local list = self.hybrid_groups and { placement.Replicate() } or {}
  list[#list + 1] = self.sharding_strategy == 'NO_SHARD' and placement.Replicate()
    or self.shard_layout == 'rows' and placement.Shard(1) or placement.Flat()
  return list
end

--- The ranks of its unit: with hybrid sharding replicas by ranks of a shard group.
---@return ms.dist.DeviceMesh
function placed:_mesh()
  if self.device_mesh then
    return self.device_mesh
  end
  local shard, replicate = unpack(self.hybrid_groups or { self.process_group })
  return meshes.of_groups(replicate and { replicate, shard } or { shard })
end

return placed
