--- Moves this rank's part of a tensor from one placement to another.
---
--- `between` moves along one dimension of a mesh, `over` along all of them. Later dimensions divide
--- what earlier ones left: with (Shard(1), Shard(1)) on a mesh (2, 2), rank 1 has the second
--- quarter.

local B = require 'moonshard_ffi'
local autograd = require 'moonshard.autograd'
local create = require 'moonshard.base.create'
local ops = require 'moonshard.ops'
local placement = require 'moonshard.dist.placement'
local util = require 'moonshard.base.util'
local validate = require 'moonshard.dist.validate'

local C, calls = B.C, B.calls

local redistribute = {}

local REPLICATE = placement.Replicate()

local first_out, count_out, padded_out = B.new('int64_t[1]'), B.new('int64_t[1]'),
  B.new('int64_t[1]')

--- The entries of a dimension of size n that a rank has: the first (from 1), their number, and that
--- of rank 0.
---@param n integer
---@param world_size integer
---@param rank integer  from 0
---@return integer first, integer count, integer padded
function redistribute.chunk(n, world_size, rank)
  B.check(C.ms_layout_rows(n, world_size, rank, first_out, count_out, padded_out))
  return tonumber(first_out[0]) + 1, tonumber(count_out[0]), tonumber(padded_out[0])
end

--- The shape of a rank's part, and its first entry (from 1) of each dimension of the tensor.
---@param shape integer[]  of the whole tensor
---@param mesh ms.dist.DeviceMesh
---@param placements ms.dist.Placement[]
---@param dims? integer  dimensions of the mesh to apply (default: all)
---@return integer[] sizes, integer[] firsts
function redistribute.local_shape(shape, mesh, placements, dims)
  local sizes, firsts, coordinate = { unpack(shape) }, {}, mesh:get_coordinate()
  for i = 1, #shape do
    firsts[i] = 1
  end
  for d = 1, dims or mesh.ndim do
    local dim = placements[d].dim
    if dim then
      local first, count = redistribute.chunk(sizes[dim], mesh.shape[d], coordinate[d])
      sizes[dim], firsts[dim] = count, firsts[dim] + first - 1
    end
  end
  return sizes, firsts
end

-- -- one dimension of a mesh ---------------------------------------------------------------------

-- A contiguous copy with dimension `dim` first, padded with zeros to n rows.
local function rows_first(x, dim, n)
  local moved = x:movedim(dim, 1):contiguous()
  local shape = moved:shape()
  if shape[1] == n then
    return moved
  end
  local rows = shape[1]
  shape[1] = n
  local padded = create.zeros(shape, { dtype = x:dtype() })
  padded:narrow(1, 1, rows):copy_(moved)
  return padded
end

local function rows_back(x, dim, n)
  return x:narrow(1, 1, n):movedim(1, dim):contiguous()
end

local function all_gather(x, group, dim, n)
  local _, _, padded = redistribute.chunk(n, group:size(), 0)
  local part = rows_first(x, dim, padded)
  local shape = part:shape()
  shape[1] = padded * group:size()
  local all = create.empty(shape, { dtype = x:dtype() })
  calls.comm_all_gather(group, all, part)
  return rows_back(all, dim, n) -- only the last chunks are padded
end

local function reduce_scatter(x, group, dim, op)
  local _, count, padded = redistribute.chunk(x:size(dim), group:size(), group:rank())
  local all = rows_first(x, dim, padded * group:size())
  local shape = all:shape()
  shape[1] = padded
  local part = create.empty(shape, { dtype = x:dtype() })
  calls.comm_reduce_scatter(group, part, all, validate.reduction('redistribute', op))
  return rows_back(part, dim, count)
end

local function all_reduce(x, group, op)
  local sum = x:contiguous():clone()
  calls.comm_all_reduce(group, sum, validate.reduction('redistribute', op))
  return sum
end

local function slice(x, group, dim)
  local first, count = redistribute.chunk(x:size(dim), group:size(), group:rank())
  return x:narrow(dim, count > 0 and first or 1, count):contiguous():clone()
end

-- From chunks of dimension `from`, of n entries in all, to chunks of dimension `to`.
local function all_to_all(x, group, from, to, n)
  local world_size, n_to = group:size(), x:size(to)
  local _, own = redistribute.chunk(n_to, world_size, group:rank())
  local shape, flat, sent, received = x:shape(), {}, {}, {}
  shape[to] = own
  for r = 1, world_size do
    local first, count = redistribute.chunk(n_to, world_size, r - 1)
    local part = x:narrow(to, count > 0 and first or 1, count)
    sent[r] = part:numel()
    flat[r] = part:reshape(sent[r])
    shape[from] = select(2, redistribute.chunk(n, world_size, r - 1))
    received[r] = util.product(shape)
  end
  shape[from] = n
  local all = create.empty({ util.product(shape) }, { dtype = x:dtype() })
  calls.comm_all_to_all(group, all, ops.cat(flat, 1),
    validate.splits('redistribute', 'received', received, world_size),
    validate.splits('redistribute', 'sent', sent, world_size))
  local parts, at = {}, 1
  for r = 1, world_size do
    shape[from] = select(2, redistribute.chunk(n, world_size, r - 1))
    parts[r], at = all:narrow(1, at, received[r]):reshape(shape), at + received[r]
  end
  return ops.cat(parts, from)
end

-- One rank has the value and the others zeros; averages, maxima and minima of equal values are that
-- value.
local function partial_of(x, group, op)
  return op == 'sum' and group:rank() > 0 and create.zeros(x:shape(), { dtype = x:dtype() })
    or x:clone()
end

-- Without elements nothing is sent.
local function empty_of(x, group, to, shape)
  local sizes = { unpack(shape) }
  if to.dim then
    sizes[to.dim] = select(2, redistribute.chunk(sizes[to.dim], group:size(), group:rank()))
  end
  return create.zeros(sizes, { dtype = x:dtype() })
end

local function between(x, group, from, to, shape)
  if from == to then
    return x
  elseif util.product(shape) == 0 then
    return empty_of(x, group, to, shape)
  elseif from:is_replicate() then
    return to.dim and slice(x, group, to.dim) or partial_of(x, group, to.op)
  elseif to:is_replicate() then
    return from.dim and all_gather(x, group, from.dim, shape[from.dim])
      or all_reduce(x, group, from.op)
  elseif from.dim and to.dim then
    return all_to_all(x, group, from.dim, to.dim, shape[from.dim])
  elseif to.dim then
    return reduce_scatter(x, group, to.dim, from.op)
  end
  return between(between(x, group, from, REPLICATE, shape), group, REPLICATE, to, shape)
end

--- Move along one dimension of a mesh, outside the graph. Collective in the group, except from
--- Replicate.
---@param x ms.Tensor  this rank's part
---@param group ms.dist.Group  the ranks along the dimension
---@param from ms.dist.Placement
---@param to ms.dist.Placement
---@param shape integer[]  of the tensor that these ranks divide
---@return ms.Tensor  x itself if nothing moves
function redistribute.between(x, group, from, to, shape)
  return autograd.no_grad(between, x, group, from, to, shape)
end

-- -- all dimensions of a mesh --------------------------------------------------------------------

-- The dimensions of the mesh to move along: those whose placement changes, and those that divide
-- what an earlier one of these divides before or after.
local function moving(from, to)
  local out, touched = {}, {}
  for d = 1, #from do
    if from[d] ~= to[d] or from[d].dim and touched[from[d].dim] then
      out[#out + 1] = d
      for _, dim in ipairs { from[d].dim or 0, to[d].dim or 0 } do
        touched[dim] = true
      end
    end
  end
  return out
end

--- Move this rank's part between placements. Collective over the mesh.
---@param x ms.Tensor
---@param mesh ms.dist.DeviceMesh
---@param from ms.dist.Placement[]
---@param to ms.dist.Placement[]
---@param shape integer[]  of the whole tensor
---@return ms.Tensor
function redistribute.over(x, mesh, from, to, shape)
  local dims = moving(from, to)
  local via = { unpack(from) }
  local function step(d, target)
    local outer = redistribute.local_shape(shape, mesh, via, d - 1)
    for later = d + 1, mesh.ndim do -- these divide other dimensions of the tensor
      local dim = via[later].dim
      if dim then
        outer[dim] = select(2, redistribute.chunk(outer[dim], mesh.shape[later],
          mesh:get_coordinate()[later]))
      end
    end
    x, via[d] = redistribute.between(x, mesh:get_group(d), via[d], target, outer), target
  end
  for i = #dims, #dims > 1 and 1 or 2, -1 do
    step(dims[i], REPLICATE)
  end
  for _, d in ipairs(dims) do
    step(d, to[d])
  end
  return x
end

return redistribute
