--- How a plain parameter is divided among ranks: it holds this rank's part. Of a parameter that
--- FSDP divides further, that part is what FSDP gathers.

local ShardedTensor = require 'moonshard.dist.sharded_tensor'
local class = require 'moonshard.base.class'
local meshes = require 'moonshard.dist.mesh'
local parameter = require 'moonshard_ffi.parameter'

---@class ms.dist.Divided
local Divided = class('dist.Divided')

--- Register the layout of a parameter, for the methods of tensors.
---@param tensor ms.Tensor  this rank's part
---@param mesh ms.dist.DeviceMesh
---@param placements ms.dist.Placement[]
---@param shape integer[]  of the whole parameter
function Divided:init(tensor, mesh, placements, shape)
  self.tensor = tensor -- its key stays valid as long as this is registered
  self.mesh, self.placements, self.shape = mesh, placements, shape
  parameter.divide(tensor, self)
end

---@return integer[]
function Divided:_global_shape()
  return { unpack(self.shape) }
end

--- The placements, after those of the manager.
---@param outer? ms.dist.Placement[]
---@return ms.dist.Placement[]
function Divided:_placements_after(outer)
  local list = { unpack(outer or {}) }
  for _, one in ipairs(self.placements) do
    list[#list + 1] = one
  end
  return list
end

--- The dimensions of the mesh, after those of the manager.
---@param outer? ms.dist.DeviceMesh
---@return ms.dist.DeviceMesh
function Divided:_mesh_after(outer)
  return outer and meshes.joined(outer, self.mesh) or self.mesh
end

--- The whole parameter. Collective over the mesh.
---@param part ms.Tensor  this rank's part, whole on each rank
---@return ms.Tensor
function Divided:_whole(part)
  return ShardedTensor.from_local(part, self.mesh, self.placements, { shape = self.shape })
    :full_tensor()
end

return Divided
