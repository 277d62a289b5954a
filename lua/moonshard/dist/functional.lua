--- Differentiable collectives. Each returns a new tensor on every rank, and its backward is a
--- collective too.
---
---   local mean = ms.dist.functional.all_reduce(x:mean(), 'avg')
---   (x - mean):pow(2):sum():backward() -- a collective here, too: on every rank
---
--- x must require grad on all ranks or on none, and every rank must run the backward.
--- (ms.dist.all_reduce and the others write in place and are not recorded.)

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local autograd = require 'moonshard.autograd'
local errors = require 'moonshard.base.errors'
local validate = require 'moonshard.dist.validate'
local namespace = require 'moonshard.base.namespace'
local ops = require 'moonshard.ops'

local C, calls = B.C, B.calls

---@class ms.dist.functional
local functional = {}

-- Raise for a maximum or minimum of an x that requires grad: they have no gradient.
local function reduced(what, call, x, reduction, group)
  reduction, group = validate.and_group(what, reduction, group)
  if (reduction == 'max' or reduction == 'min') and type(x) ~= 'number'
    and autograd.is_grad_enabled() and arguments.tensor(what, 'x', x):requires_grad() then
    errors.raise('NotImplementedError', "%s: '%s' has no gradient, and x requires one; give it "
      .. 'x:detach()', what, reduction)
  end
  return call(group, x, validate.reduction(what, reduction))
end

local function rooted(what, call, x, root, group)
  root, group = validate.and_group(what, root, group)
  return call(group, x, arguments.whole(what, 'root', root, 0, 0))
end

--- The reduction over ranks. The gradient of a sum is the sum of the ranks' gradients, that of an
--- average their average. NotImplementedError for a maximum or minimum if x requires grad.
---@param x ms.Tensor
---@param reduction? ms.dist.Reduction  default 'sum'
---@param group? ms.dist.Group  default: all ranks
---@return ms.Tensor
function functional.all_reduce(x, reduction, group)
  return reduced('all_reduce', calls.all_reduce, x, reduction, group)
end

--- The concatenation of the ranks' tensors. The gradient is this rank's chunk of the sum of the
--- ranks' gradients.
---@param x ms.Tensor  (n, ...); () is treated as (1)
---@param group? ms.dist.Group  default: all ranks
---@return ms.Tensor  (W * n, ...), or (W)
function functional.all_gather(x, group)
  return calls.all_gather(validate.group('all_gather', group), x)
end

--- This rank's chunk of the reduction over ranks. The gradient of a sum is the concatenation of the
--- ranks' gradients, that of an average the same divided by W. NotImplementedError for a maximum or
--- minimum if x requires grad.
---@param x ms.Tensor  (W * n, ...)
---@param reduction? ms.dist.Reduction  default 'sum'
---@param group? ms.dist.Group  default: all ranks
---@return ms.Tensor  (n, ...)
function functional.reduce_scatter(x, reduction, group)
  return reduced('reduce_scatter', calls.reduce_scatter, x, reduction, group)
end

--- Rank `root`'s tensor on every rank; shape and dtype must be equal on all ranks. The gradient on
--- `root` is the sum of the ranks' gradients; it is zero on other ranks.
---@param x ms.Tensor
---@param root? integer  rank in the group, default 0
---@param group? ms.dist.Group  default: all ranks
---@return ms.Tensor
function functional.broadcast(x, root, group)
  return rooted('broadcast', calls.broadcast, x, root, group)
end

--- This rank's chunk of rank `root`'s tensor; shape and dtype must be equal on all ranks. The
--- gradient on `root` is the concatenation of the ranks' gradients; it is zero on other ranks.
---@param x ms.Tensor  (W * n, ...)
---@param root? integer  rank in the group, default 0
---@param group? ms.dist.Group  default: all ranks
---@return ms.Tensor  (n, ...)
function functional.scatter(x, root, group)
  return rooted('scatter', calls.dist_scatter, x, root, group)
end

--- The concatenation of the ranks' tensors on rank `root`, zeros on other ranks. The gradient is
--- this rank's chunk of `root`'s gradient.
---@param x ms.Tensor  (n, ...); () is treated as (1)
---@param root? integer  rank in the group, default 0
---@param group? ms.dist.Group  default: all ranks
---@return ms.Tensor  (W * n, ...)
function functional.gather(x, root, group)
  return rooted('gather', calls.dist_gather, x, root, group)
end

--- The reduction over ranks on rank `root`, zeros on other ranks. The gradient of a sum is `root`'s
--- gradient, that of an average the same divided by W. NotImplementedError for a maximum or minimum
--- if x requires grad.
---@param x ms.Tensor
---@param root? integer  rank in the group, default 0
---@param reduction? ms.dist.Reduction  default 'sum'
---@param group? ms.dist.Group  default: all ranks
---@return ms.Tensor
function functional.reduce(x, root, reduction, group)
  return reduced('reduce', function(of, operand, how)
    return calls.dist_reduce(of, operand, arguments.whole('reduce', 'root', root, 0, 0), how)
  end, x, reduction, group)
end

--- Send rows (dimension 1) to each rank and receive rows from each, in rank order: equal numbers,
--- or those of the split sizes. The backward sends the gradients back.
---@param x ms.Tensor  (rows, ...)
---@param output_split_sizes? integer[]  by rank
---@param input_split_sizes? integer[]  by rank
---@param group? ms.dist.Group  default: all ranks
---@return ms.Tensor  (rows from all ranks, ...)
function functional.all_to_all_single(x, output_split_sizes, input_split_sizes, group)
  local what = 'all_to_all_single'
  if group == nil and arguments.is_group(output_split_sizes) then
    output_split_sizes, group = nil, output_split_sizes
  end
  group = validate.group(what, group)
  local size = C.ms_comm_size(group)
  return calls.all_to_all(group, x,
    validate.splits(what, 'output_split_sizes', output_split_sizes, size),
    validate.splits(what, 'input_split_sizes', input_split_sizes, size))
end

--- A permutation: rank r's x is sent to rank src_dst[r + 1]. Returns the received tensor. The
--- backward sends the gradients back. First sizes must be equal on all ranks.
---@param x ms.Tensor  (n, ...)
---@param src_dst integer[]  a permutation of the ranks
---@param group? ms.dist.Group  default: all ranks
---@return ms.Tensor  (n, ...)
function functional.permute_tensor(x, src_dst, group)
  local what = 'permute_tensor'
  group = validate.group(what, group)
  return calls.dist_permute(group, x, validate.splits(what, 'src_dst',
    arguments.array(what, 'src_dst', src_dst), C.ms_comm_size(group)))
end

-- The number of rows that each rank sends to this one.
local function rows_from(group, rows)
  local w, rank = C.ms_comm_size(group), C.ms_comm_rank(group)
  local own, all, out = B.new('double[?]', w, rows), B.new('double[?]', w * w), {}
  B.check(C.ms_comm_exchange(group, 'all_to_all', own, w, all))
  for r = 1, w do
    out[r] = tonumber(all[(r - 1) * w + rank])
  end
  return out
end

--- Send tensor i to rank i - 1; returns the received tensors by rank. First sizes may differ, other
--- sizes must be equal. The backward sends the gradients back.
---@param list ms.Tensor[]  one for each rank
---@param group? ms.dist.Group  default: all ranks
---@return ms.Tensor[]
function functional.all_to_all(list, group)
  local what = 'all_to_all'
  group = validate.group(what, group)
  if #arguments.array(what, 'list', list) ~= C.ms_comm_size(group) then
    errors.raise('ValueError', '%s: the list has %d tensors, expected one for each of %d ranks',
      what, #list, C.ms_comm_size(group))
  end
  local rows, out, at = {}, {}, 1
  for i, t in ipairs(list) do
    rows[i] = arguments.tensor(what, ('list[%d]'):format(i), t):size(1)
  end
  local from = rows_from(group, rows)
  local all = functional.all_to_all_single(ops.cat(list, 1), from, rows, group)
  for r, n in ipairs(from) do
    out[r], at = ops.narrow(all, 1, at, n), at + n
  end
  return out
end

return namespace.space('dist.functional', functional)
