--- A differentiable move of activations and parameters between placements, along one dimension of a
--- mesh.
---
--- The gradient has placements of its own: a rank that has a whole input but computes a part of the
--- layer gets a partial gradient of it.

local Function = require 'moonshard.autograd.custom_function'
local errors = require 'moonshard.base.errors'
local placement = require 'moonshard.dist.placement'
local redistribute = require 'moonshard.dist.redistribute'

local Moved = Function.extend 'parallel.Moved'

-- The shape that the group divides, of which this rank has `shape`: parts are equal.
local function whole_shape(shape, group, at)
  if at.dim then
    shape[at.dim] = shape[at.dim] * group:size()
  end
  return shape
end

function Moved.forward(ctx, x, group, from, to, grad_from, grad_to)
  ctx.group, ctx.from, ctx.to = group, grad_from, grad_to
  local shape = whole_shape(x:shape(), group, from)
  if to.dim and shape[to.dim] % group:size() ~= 0 then
    errors.raise('ValueError', 'an activation of shape (%s) becomes %s, expected a size that is a '
      .. 'multiple of %d, the number of ranks', table.concat(shape, ', '), tostring(to),
      group:size())
  end
  return redistribute.between(x, group, from, to, shape)
end

function Moved.backward(ctx, grad)
  return redistribute.between(grad, ctx.group, ctx.from, ctx.to,
    whole_shape(grad:shape(), ctx.group, ctx.from))
end

-- The placement with its dimension counted from 1.
local function positive(one, ndim)
  return one.dim and one.dim < 0 and placement.Shard(one.dim + ndim + 1) or one
end

--- Move a tensor. Collective in the group, as is the backward.
---@param x ms.Tensor
---@param group ms.dist.Group
---@param from ms.dist.Placement
---@param to ms.dist.Placement
---@param grad_from ms.dist.Placement  of the gradient of the result
---@param grad_to ms.dist.Placement  of the gradient of x
---@return ms.Tensor
return function(x, group, from, to, grad_from, grad_to)
  local n = x:dim()
  from, to = positive(from, n), positive(to, n)
  grad_from, grad_to = positive(grad_from, n), positive(grad_to, n)
  if from == to and grad_from == grad_to then
    return x
  end
  return Moved.apply(x, group, from, to, grad_from, grad_to)
end
