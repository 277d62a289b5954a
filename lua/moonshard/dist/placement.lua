--- How the ranks along one dimension of a mesh divide a tensor. A sharded tensor has one placement
--- for each dimension of its mesh.

local arguments = require 'moonshard_ffi.arguments'
local class = require 'moonshard.base.class'
local errors = require 'moonshard.base.errors'
local util = require 'moonshard.base.util'

---@class ms.dist.Placement  placements with equal fields are equal (==)
---@field kind 'Shard'|'Replicate'|'Partial'|'Flat'
---@field dim integer?  of Shard: the divided dimension, from 1
---@field op ms.dist.Reduction?  of Partial
local Placement = class('dist.Placement')

function Placement:init(kind, dim, op)
  self.kind, self.dim, self.op = kind, dim, op
end

--- Is it Shard (of this dimension)?
---@param dim? integer
---@return boolean
function Placement:is_shard(dim)
  return self.kind == 'Shard' and (dim == nil or self.dim == dim)
end

---@return boolean
function Placement:is_replicate()
  return self.kind == 'Replicate'
end

--- Is it Partial (of this reduction)?
---@param op? ms.dist.Reduction
---@return boolean
function Placement:is_partial(op)
  return self.kind == 'Partial' and (op == nil or self.op == op)
end

function Placement.__eq(a, b)
  return a.kind == b.kind and a.dim == b.dim and a.op == b.op
end

function Placement:__tostring()
  return ('%s(%s)'):format(self.kind, self.dim or self.op or '')
end

local placement = {}

--- Each rank has a chunk of dimension `dim`, as torch.chunk divides it: ceil(n / W) entries, the
--- last ranks fewer or none.
---@param dim integer  from 1; negative ones count from the end
---@return ms.dist.Placement
function placement.Shard(dim)
  arguments.whole('Shard', 'dim', dim)
  if dim == 0 then
    errors.raise('ValueError', "Shard: 'dim' is 0, expected 1 or more, or a negative number")
  end
  return Placement('Shard', dim)
end

--- Each rank has the whole tensor.
---@return ms.dist.Placement
function placement.Replicate()
  return Placement('Replicate')
end

--- Each rank has a tensor of the whole shape; the value is their reduction.
---@param op? ms.dist.Reduction  default 'sum'
---@return ms.dist.Placement
function placement.Partial(op)
  return Placement('Partial', nil,
    errors.choice('Partial', 'op', op or 'sum', { 'sum', 'avg', 'max', 'min' }))
end

--- Each rank has a range of the elements in row-major order: parameters that FSDP keeps in a flat
--- parameter.
---@return ms.dist.Placement
function placement.Flat()
  return Placement('Flat')
end

--- Replicate() for each dimension of a mesh.
---@param mesh ms.dist.DeviceMesh
---@return ms.dist.Placement[]
function placement._replicated(mesh)
  local list = {}
  for d = 1, mesh.ndim do
    list[d] = placement.Replicate()
  end
  return list
end

---@return boolean
function placement._is(value)
  return util.is(value, Placement)
end

--- Check placements for a tensor of `ndim` dimensions: one for each dimension of the mesh. Returns
--- them with the dimensions of Shard counted from 1.
---@param what string
---@param mesh ms.dist.DeviceMesh
---@param list ms.dist.Placement[]
---@param ndim integer
---@return ms.dist.Placement[]
function placement._checked(what, mesh, list, ndim)
  if #arguments.array(what, 'placements', list) ~= mesh.ndim then
    errors.raise('ValueError', '%s: %d placements, expected one for each of the %d dimensions of '
      .. 'the mesh', what, #list, mesh.ndim)
  end
  local out = {}
  for i, one in ipairs(list) do
    local name = ('placements[%d]'):format(i)
    if not placement._is(one) then
      arguments.refuse(what, name, one, 'dist.Shard(dim), dist.Replicate() or dist.Partial(op)')
    elseif one.kind == 'Flat' then
      errors.raise('ValueError', '%s: %s is Flat(), which FSDP makes; expected Shard, Replicate or '
        .. 'Partial', what, name)
    elseif one.dim and (one.dim > ndim or one.dim < -ndim) then
      errors.raise('IndexError', '%s: %s is %s, but the tensor has %d dimensions', what, name,
        tostring(one), ndim)
    end
    out[i] = one.dim and one.dim < 0 and Placement('Shard', one.dim + ndim + 1) or one
  end
  return out
end

--- "(Shard(1), Replicate())"
---@param list ms.dist.Placement[]
---@return string
function placement._text(list)
  local parts = {}
  for i, one in ipairs(list) do
    parts[i] = tostring(one)
  end
  return '(' .. table.concat(parts, ', ') .. ')'
end

return placement
