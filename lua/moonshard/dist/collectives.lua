--- Collectives on tensors over all ranks or a group, and comparison of values between ranks.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local create = require 'moonshard.base.create'
local validate = require 'moonshard.dist.validate'
local notes = require 'moonshard_ffi.notes'
local ops = require 'moonshard.ops'
local autograd = require 'moonshard.autograd'
local work = require 'moonshard.dist.work'

local collectives = {}

local C, calls = B.C, B.calls
local target = validate.target

--- Reduce in place, with equal bits on every rank. Every collective takes an optional group
--- (default: all ranks) and options after its other arguments. Optional arguments before them may
--- be omitted: all_reduce(t, group). With `async_op = true` it returns a handle, see ms.dist.Work.
--- RuntimeError for a tensor that requires grad, except inside ms.no_grad.
---@param t ms.Tensor
---@param reduction? ms.dist.Reduction  default 'sum'
---@param group? ms.dist.Group
---@param opts? { async_op?: boolean }
---@return ms.Tensor t
function collectives.all_reduce(t, reduction, group, opts)
  reduction, group, opts = validate.tail('all_reduce', reduction, group, opts)
  local async = work.is_async('all_reduce', opts)
  calls.comm_all_reduce(group, target('all_reduce', 't', t),
    validate.reduction('all_reduce', reduction))
  return work.of(async, t)
end

--- Gather every rank's tensor on every rank. all_gather(t) returns a list by rank; all_gather(out,
--- t) writes the concatenation to `out` (W * n).
---@param a ms.Tensor
---@param b? ms.Tensor
---@param group? ms.dist.Group
---@param opts? { async_op?: boolean }
---@return ms.Tensor[]|ms.Tensor
function collectives.all_gather(a, b, group, opts)
  b, group, opts = validate.tail('all_gather', b, group, opts)
  local async = work.is_async('all_gather', opts)
  if b ~= nil then
    calls.comm_all_gather(group, target('all_gather', 'out', a),
      arguments.tensor('all_gather', 't', b))
    return work.of(async, a)
  end
  arguments.tensor('all_gather', 't', a)
  return work.of(async, autograd.no_grad(function()
    local shape, n, w = a:shape(), a:numel(), C.ms_comm_size(group)
    local all = create.empty({ w * n }, { dtype = a:dtype() })
    calls.comm_all_gather(group, all, a)
    local list = {}
    for r = 1, w do
      list[r] = ops.narrow(all, 1, (r - 1) * n + 1, n):reshape(shape)
    end
    return list
  end))
end

--- Reduce `input` (W * n) over all ranks and write this rank's chunk to `out` (n).
---@param out ms.Tensor
---@param input ms.Tensor
---@param reduction? ms.dist.Reduction  default 'sum'
---@param group? ms.dist.Group
---@param opts? { async_op?: boolean }
---@return ms.Tensor out
function collectives.reduce_scatter(out, input, reduction, group, opts)
  reduction, group, opts = validate.tail('reduce_scatter', reduction, group, opts)
  local async = work.is_async('reduce_scatter', opts)
  calls.comm_reduce_scatter(group,
    target('reduce_scatter', 'out', out), arguments.tensor('reduce_scatter', 'input', input),
    validate.reduction('reduce_scatter', reduction))
  return work.of(async, out)
end

--- Copy rank `root`'s values to every rank, in place. `root` is a rank in the group (PyTorch's
--- `group_src`, not `src`).
---@param t ms.Tensor
---@param root? integer  default 0
---@param group? ms.dist.Group
---@param opts? { async_op?: boolean }
---@return ms.Tensor t
function collectives.broadcast(t, root, group, opts)
  root, group, opts = validate.tail('broadcast', root, group, opts)
  local async = work.is_async('broadcast', opts)
  calls.comm_broadcast(group, target('broadcast', 't', t),
    arguments.whole('broadcast', 'root', root, 0, 0))
  return work.of(async, t)
end

--- Wait until every rank has called it.
---@param group? ms.dist.Group
---@param opts? { async_op?: boolean }
function collectives.barrier(group, opts)
  local _
  _, group, opts = validate.tail('barrier', nil, group, opts)
  local async = work.is_async('barrier', opts)
  B.check(C.ms_comm_barrier(group))
  return work.of(async)
end

--- Compare a value across ranks. Nothing is sent: the next collective raises CommError on all
--- ranks, naming the first difference, if values differ or a rank did not call this. After the last
--- collective, the job ends with that error when all ranks have left.
---
---   ms.dist.same('batch size', batch)
---
---@param label string  names the value in the error
---@param value string|number|boolean
---@param group? ms.dist.Group
function collectives.same(label, value, group)
  arguments.text('dist.same', 'label', label)
  local kind = type(value)
  if kind ~= 'string' and kind ~= 'number' and kind ~= 'boolean' then
    arguments.refuse('dist.same', 'value', value, 'a string, number or boolean')
  end
  notes.text(validate.group('dist.same', group), label,
    kind == 'number' and ('%.17g'):format(value) or tostring(value))
end

local counts = B.new('int64_t[5]')

---@class ms.dist.Counts
---@field all_gather integer  includes unshards
---@field reduce_scatter integer  includes reductions of sharded units
---@field all_reduce integer
---@field broadcast integer
---@field barrier integer

--- Number of collectives that this rank has called so far, by kind.
---@param group? ms.dist.Group
---@return ms.dist.Counts
function collectives.counts(group)
  C.ms_comm_counts(validate.group('counts', group), counts)
  return {
    all_gather = tonumber(counts[0]),
    reduce_scatter = tonumber(counts[1]),
    all_reduce = tonumber(counts[2]),
    broadcast = tonumber(counts[3]),
    barrier = tonumber(counts[4]),
  }
end

--- Seconds that this rank has waited for other ranks (exposed communication).
---@param group? ms.dist.Group
---@return number
function collectives.wait_seconds(group)
  return C.ms_comm_wait_seconds(validate.group('wait_seconds', group))
end

return collectives
