--- A tensor of which each rank holds a shard. State dicts of type SHARDED_STATE_DICT and
--- LOCAL_STATE_DICT contain it for sharded parameters.
---
--- This rank has the elements [start, start + length) in row-major order, counted from 1, in
--- `local_tensor` (1-D), which is nil if the shard is empty.

local autograd = require 'moonshard.autograd'
local class = require 'moonshard.base.class'
local create = require 'moonshard.base.create'
local dist = require 'moonshard.dist'
local runtime = require 'moonshard_ffi.fsdp'
local util = require 'moonshard.base.util'

---@class ms.fsdp.ShardedTensor
---@field start integer  from 1
---@field length integer
---@field local_tensor ms.Tensor?  (length)
---@field process_group ms.dist.Group  whose ranks have the other shards
---@field replica integer  0; with hybrid sharding the number of the group
local ShardedTensor = class('fsdp.ShardedTensor')

---@param shape integer[]  of the whole tensor
---@param dtype ms.DType
---@param start integer  from 1
---@param local_tensor ms.Tensor?  1-D
---@param group ms.dist.Group
---@param replica? integer  number of the group among those with equal shards (default 0)
function ShardedTensor:init(shape, dtype, start, local_tensor, group, replica)
  self._shape, self._dtype = shape, dtype
  self.start, self.local_tensor = start, local_tensor
  self.length = local_tensor and local_tensor:numel() or 0
  self.process_group, self.replica = group, replica or 0
end

--- Shape of the whole tensor.
---@return integer[]
function ShardedTensor:shape()
  return { unpack(self._shape) }
end

---@return ms.DType
function ShardedTensor:dtype()
  return self._dtype
end

--- Number of elements of the whole tensor.
---@return integer
function ShardedTensor:numel()
  return util.product(self._shape)
end

local function gathered(self)
  local group, options = self.process_group, { dtype = self._dtype }
  local starts, lengths = unpack(runtime.exchange(group, 'full_tensor',
    { self.start, self.length }))
  local full, part = create.empty(self:numel(), options),
    create.zeros(math.max(1, unpack(lengths)), options)
  if self.local_tensor then
    part:narrow(1, 1, self.length):copy_(self.local_tensor)
  end
  for rank, one in ipairs(dist.all_gather(part, nil, group)) do
    if lengths[rank] > 0 then
      full:narrow(1, starts[rank], lengths[rank]):copy_(one:narrow(1, 1, lengths[rank]))
    end
  end
  return full:reshape(self._shape)
end

--- Gather the whole tensor on every rank. Collective in `process_group`.
---@return ms.Tensor
function ShardedTensor:full_tensor()
  return autograd.no_grad(gathered, self)
end

function ShardedTensor:__tostring()
  return ('ShardedTensor(shape=(%s), dtype=%s, elements %d to %d here)'):format(
    table.concat(self._shape, ', '), self._dtype, self.start, self.start + self.length - 1)
end

return ShardedTensor
