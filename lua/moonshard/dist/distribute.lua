--- Tensors that the ranks of a mesh divide: making them, and parameters that are divided.

local ShardedTensor = require 'moonshard.dist.sharded_tensor'
local arguments = require 'moonshard_ffi.arguments'
local collectives = require 'moonshard.dist.collectives'
local meshes = require 'moonshard.dist.mesh'
local placement = require 'moonshard.dist.placement'
local redistribute = require 'moonshard.dist.redistribute'

local distribute = {}

--- Divide a tensor among the ranks of a mesh. Every rank gets its part of the first rank's values.
--- Collective over the mesh.
---@param value ms.Tensor  of the same shape and dtype on all ranks
---@param mesh ms.dist.DeviceMesh
---@param placements? ms.dist.Placement[]  default: Replicate() in each dimension of the mesh
---@return ms.dist.ShardedTensor
function distribute.distribute_tensor(value, mesh, placements)
  local what = 'distribute_tensor'
  arguments.tensor(what, 'value', value)
  local whole = placement._replicated(meshes.checked(what, mesh))
  placements = placement._checked(what, mesh, placements or whole, value:dim())
  local copy, shape = value:detach():clone(), value:shape()
  for d = 1, mesh.ndim do
    collectives.broadcast(copy, 0, mesh:get_group(d))
  end
  return ShardedTensor.from_local(redistribute.over(copy, mesh, whole, placements, shape), mesh,
    placements, { shape = shape })
end

return distribute
