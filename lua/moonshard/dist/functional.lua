--- Collectives as operators: each makes a new tensor on every rank and is differentiated, by a
--- collective of its own. So what ranks compute together can stand in a model.
---
---   local mean = ms.dist.functional.all_reduce(x:mean(), 'avg')
---   (x - mean):pow(2):sum():backward() -- a collective here, too: on every rank
---
--- x requires grad on every rank or on none, and every rank runs the backward. (ms.dist.all_reduce
--- and the others write into tensors that are there, and are not recorded.)

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local autograd = require 'moonshard.autograd'
local errors = require 'moonshard.internal.errors'
local given = require 'moonshard.dist.given'
local naming = require 'moonshard.internal.naming'

local calls = B.calls

---@class ms.dist.functional
local functional = {}

-- A maximum or minimum over ranks has no gradient: what requires one must not lose it unsaid.
local function check_differentiable(what, x, reduction)
  if (reduction == 'max' or reduction == 'min') and type(x) ~= 'number'
    and autograd.is_grad_enabled() and arguments.tensor(what, 'x', x):requires_grad() then
    errors.raise('NotImplementedError', "%s: '%s' has no gradient, and x requires one; give it "
      .. 'x:detach()', what, reduction)
  end
end

--- The reduction over ranks. A sum's gradient is the sum of the ranks' gradients, an average's
--- their average; a maximum and a minimum have none (NotImplementedError for x that requires one).
---@param x ms.Tensor
---@param reduction? ms.dist.Reduction  default 'sum'
---@param group? ms.dist.Group  default: all ranks
---@return ms.Tensor
function functional.all_reduce(x, reduction, group)
  reduction, group = given.and_group('all_reduce', reduction, group)
  check_differentiable('all_reduce', x, reduction)
  return calls.all_reduce(group, x, given.reduction('all_reduce', reduction))
end

--- The ranks' tensors one behind the other. The gradient is this rank's part of the sum of the
--- ranks' gradients.
---@param x ms.Tensor  (n, ...), or () as one of (1)
---@param group? ms.dist.Group  default: all ranks
---@return ms.Tensor  (W * n, ...), or (W)
function functional.all_gather(x, group)
  return calls.all_gather(given.group('all_gather', group), x)
end

--- This rank's part of the reduction over ranks. A sum's gradient is all ranks' gradients one
--- behind the other, an average's that divided by W; a maximum and a minimum have none.
---@param x ms.Tensor  (W * n, ...)
---@param reduction? ms.dist.Reduction  default 'sum'
---@param group? ms.dist.Group  default: all ranks
---@return ms.Tensor  (n, ...)
function functional.reduce_scatter(x, reduction, group)
  reduction, group = given.and_group('reduce_scatter', reduction, group)
  check_differentiable('reduce_scatter', x, reduction)
  return calls.reduce_scatter(group, x, given.reduction('reduce_scatter', reduction))
end

--- Rank `root`'s tensor; the others' say its shape and dtype. The gradient is the sum of the ranks'
--- gradients on `root`, and zero elsewhere.
---@param x ms.Tensor
---@param root? integer  its place in the group, default 0
---@param group? ms.dist.Group  default: all ranks
---@return ms.Tensor
function functional.broadcast(x, root, group)
  root, group = given.and_group('broadcast', root, group)
  return calls.broadcast(group, x, arguments.whole('broadcast', 'root', root, 0, 0))
end

local OTHERWISE = {
  all_gather_tensor = 'dist.functional.all_gather(x)',
  reduce_scatter_tensor = 'dist.functional.reduce_scatter(x)',
  reduce = 'dist.functional.all_reduce(x)',
  wait_tensor = 'nothing: results are there when functions return', barrier = 'dist.barrier()',
}

return naming.space('dist.functional', functional, nil, OTHERWISE)
