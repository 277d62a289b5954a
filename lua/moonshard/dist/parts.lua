--- Collectives with a root, or with a chunk for each rank. They are part of ms.dist.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local autograd = require 'moonshard.autograd'
local create = require 'moonshard.base.create'
local errors = require 'moonshard.base.errors'
local functional = require 'moonshard.dist.functional'
local ops = require 'moonshard.ops'
local validate = require 'moonshard.dist.validate'
local work = require 'moonshard.dist.work'

local C, calls = B.C, B.calls

local parts = {}

-- The chunks of a scatter in one tensor.
local function joined(what, list, size)
  if type(list) ~= 'table' then
    return arguments.tensor(what, 'scatter_list', list)
  end
  if #arguments.array(what, 'scatter_list', list) ~= size then
    errors.raise('ValueError', '%s: scatter_list has %d tensors, expected one for each of %d ranks',
      what, #list, size)
  end
  local flat = {}
  for i, t in ipairs(list) do
    flat[i] = arguments.tensor(what, ('scatter_list[%d]'):format(i), t):reshape(-1)
  end
  return ops.cat(flat, 1)
end

--- Scatter rank `root`'s chunks, one for each rank, into `out`.
---@param out ms.Tensor  (n)
---@param scatter_list? ms.Tensor[]|ms.Tensor  W tensors of n elements or one of W * n; used only
---  on `root`
---@param root? integer  rank in the group, default 0
---@param group? ms.dist.Group
---@param opts? { async_op?: boolean }
---@return ms.Tensor out
function parts.scatter(out, scatter_list, root, group, opts)
  local what = 'scatter'
  root, group, opts = validate.tail(what, root, group, opts)
  local async = work.is_async(what, opts)
  root = arguments.whole(what, 'root', root, 0, 0)
  validate.target(what, 'out', out)
  autograd.no_grad(function()
    local whole
    if C.ms_comm_rank(group) == root then
      whole = joined(what, scatter_list, C.ms_comm_size(group))
    end
    calls.comm_scatter(group, out, whole, root)
  end)
  return work.of(async, out)
end

--- Gather every rank's tensor on rank `root`.
---@param t ms.Tensor  contiguous
---@param root? integer  rank in the group, default 0
---@param group? ms.dist.Group
---@param opts? { async_op?: boolean }
---@return ms.Tensor[]? list  by rank; nil on other ranks
function parts.gather(t, root, group, opts)
  local what = 'gather'
  root, group, opts = validate.tail(what, root, group, opts)
  local async = work.is_async(what, opts)
  root = arguments.whole(what, 'root', root, 0, 0)
  arguments.tensor(what, 't', t)
  return work.of(async, autograd.no_grad(function()
    local shape, n, w = t:shape(), t:numel(), C.ms_comm_size(group)
    if C.ms_comm_rank(group) ~= root then
      calls.comm_gather(group, nil, t, root)
      return nil
    end
    local all, list = create.empty({ w * n }, { dtype = t:dtype() }), {}
    calls.comm_gather(group, all, t, root)
    for r = 1, w do
      list[r] = ops.narrow(all, 1, (r - 1) * n + 1, n):reshape(shape)
    end
    return list
  end))
end

--- Reduce in place on rank `root`, with the bits of all_reduce(); other ranks' tensors do not
--- change.
---@param t ms.Tensor
---@param root? integer  rank in the group, default 0
---@param reduction? ms.dist.Reduction  default 'sum'
---@param group? ms.dist.Group
---@param opts? { async_op?: boolean }
---@return ms.Tensor t
function parts.reduce(t, root, reduction, group, opts)
  local what = 'reduce'
  reduction, group, opts = validate.tail(what, reduction, group, opts)
  if arguments.is_group(root) then
    root, group = nil, validate.group(what, root)
  end
  local async = work.is_async(what, opts)
  calls.comm_reduce(group, validate.target(what, 't', t),
    arguments.whole(what, 'root', root, 0, 0), validate.reduction(what, reduction))
  return work.of(async, t)
end

--- Send tensor i to rank i - 1; returns the received tensors by rank. First sizes may differ, other
--- sizes must be equal.
---@param list ms.Tensor[]  one for each rank
---@param group? ms.dist.Group
---@param opts? { async_op?: boolean }
---@return ms.Tensor[]
function parts.all_to_all(list, group, opts)
  local what = 'all_to_all'
  local _
  _, group, opts = validate.tail(what, nil, group, opts)
  local async = work.is_async(what, opts)
  return work.of(async, autograd.no_grad(functional.all_to_all, list, group))
end

--- Send rows (dimension 1) of `input` to each rank and receive rows of `out` from each, in rank
--- order: equal numbers, or those of the split sizes. CommError on all ranks if a rank sends
--- another number of rows than expected; the ranks may continue after it.
---@param out ms.Tensor
---@param input ms.Tensor
---@param output_split_sizes? integer[]  by rank
---@param input_split_sizes? integer[]  by rank
---@param group? ms.dist.Group
---@param opts? { async_op?: boolean }
---@return ms.Tensor out
function parts.all_to_all_single(out, input, output_split_sizes, input_split_sizes, group, opts)
  local what = 'all_to_all_single'
  if group == nil and arguments.is_group(output_split_sizes) then
    output_split_sizes, group = nil, output_split_sizes
  end
  local _
  _, group, opts = validate.tail(what, nil, group, opts)
  local async = work.is_async(what, opts)
  local size = C.ms_comm_size(group)
  calls.comm_all_to_all(group, validate.target(what, 'out', out),
    arguments.tensor(what, 'input', input),
    validate.splits(what, 'output_split_sizes', output_split_sizes, size),
    validate.splits(what, 'input_split_sizes', input_split_sizes, size))
  return work.of(async, out)
end

return parts
