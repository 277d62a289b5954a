--- Forward and backward of the micro-batches of a step, with one loss whatever the cut: the sum of
--- the losses divided once by the number of targets that count, over all micro-batches and ranks. A
--- mean of means would weight the targets of short micro-batches more.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local create = require 'moonshard.base.create'
local dist = require 'moonshard.dist'
local errors = require 'moonshard.base.errors'
local evaluated = require 'moonshard.nn.evaluated'
local finally = require 'moonshard.base.finally'
local machine = require 'moonshard.base.machine'
local ops = require 'moonshard.ops'
local scope = require 'moonshard.base.scope'
local tree = require 'moonshard.nn.tree'

local IGNORED = -100

---@class ms.train.Losses
local losses = {}

-- The root of a sharded model, with no_sync() and the other methods; nil for a plain model, which
-- one rank alone can train.
local function root_of(what, model)
  if type(model) ~= 'table' or rawget(model, '_name') or not model._is_module then
    arguments.refuse(what, 'model', model, 'a module')
  end
  local root = tree.manager(model)
  if not root and dist.world_size() > 1 then
    errors.raise('ValueError', '%s: %s is not sharded, and the job has %d ranks; shard it with '
      .. 'fsdp.FSDP, fsdp.fully_shard or fsdp.replicate', what, model._name, dist.world_size())
  end
  return root
end

losses.root_of = root_of

local function size_of(root)
  return root and B.C.ms_comm_size(root.process_group) or 1
end

local function total_over_ranks(value, root)
  if not root then
    return value
  end
  return dist.all_reduce(create.full({ 1 }, value, { dtype = 'f64' }), 'sum', root.process_group)
    :item()
end

local function counted(targets)
  return scope.run('count', function()
    return ops.ne(targets, IGNORED):to('i64'):sum():item()
  end)
end

-- The micro-batches of a step: their number, a function that returns the next one, and the number
-- of targets on all ranks.
local function step_of(what, root, data)
  if type(data) == 'table' and data._is_loader then
    return data.micro_batches, function() return data:next() end, data:step_targets()
  end
  local n, k = 0, 0
  for i, batch in ipairs(arguments.array(what, 'data', data)) do
    arguments.array(what, ('data[%d]'):format(i), batch)
    n = n + counted(arguments.tensor(what, ('data[%d][2]'):format(i), batch[2]))
  end
  return #data, function()
    k = k + 1
    return unpack(data[k], 1, 3)
  end, total_over_ranks(n, root)
end

-- The sum of the losses of a micro-batch.
local function default_loss(model, ids, targets, positions)
  return model(ids, targets, { reduction = 'sum', positions = positions })
end

---@alias ms.train.LossFn fun(model: ms.nn.Module, ids: ms.Tensor, ...): ms.Tensor

---@class ms.train.Step
---@field forward number  seconds
---@field backward number  seconds
---@field tokens integer  ids of all ranks, padding included

--- Forward and backward of all micro-batches of one step. Gradients are those of the mean loss over
--- the targets that count (not -100) on all ranks. Call opt:step() and opt:zero_grad() afterwards.
--- Collective for a sharded model, whose gradient factor becomes 1. A step without a target has the
--- loss 0 and zero gradients.
---@param model ms.nn.Module  sharded, or plain in a job of one rank
---@param data ms.data.Loader|ms.data.PackedLoader|ms.Tensor[][]  a loader at the beginning of a
---  step, or a list of micro-batches { ids, targets, positions }, as many on each rank
---@param loss? ms.train.LossFn  called with the model and a micro-batch: the sum of its losses
---  (default: `model(ids, targets, { reduction = 'sum', positions = positions })`)
---@return number loss, integer n_targets, ms.train.Step facts
function losses.forward_backward(model, data, loss)
  local root = root_of('forward_backward', model)
  loss = loss and arguments.fn('forward_backward', 'loss', loss) or default_loss
  local n, next_batch, n_targets = step_of('forward_backward', root, data)
  if root then
    root:set_gradient_factor(1)
  end
  local sum, forward, tokens, began = 0, 0, 0, machine.time()
  local function run(ids, ...)
    tokens = tokens + ids:numel()
    return loss(model, ids, ...)
  end
  local function micro_batch()
    local t = machine.time()
    local total = run(next_batch())
    sum = sum + total:item()
    forward = forward + machine.time() - t
    local mean = total / math.max(n_targets, 1)
    mean:backward()
  end
  for k = 1, n do
    if root and k < n then
      root:no_sync(scope.block, micro_batch)
    else
      scope.block(micro_batch)
    end
  end
  local backward = machine.time() - began - forward
  return total_over_ranks(sum, root) / math.max(n_targets, 1), n_targets,
    { forward = forward, backward = backward, tokens = tokens * size_of(root) }
end

--- Mean loss over the targets that count in the next micro-batches of a loader, on all ranks, in
--- evaluation mode and without gradients. Logits are not kept. The perplexity is math.exp(loss).
--- Afterwards the loader has its position again. Collective for a sharded model.
---@param model ms.nn.Module
---@param loader ms.data.Loader|ms.data.PackedLoader
---@param most? integer  maximum number of steps (default: an epoch)
---@param loss? ms.train.LossFn  as for forward_backward()
---@return number loss, integer n_targets
function losses.evaluate(model, loader, most, loss)
  local root = root_of('evaluate', model)
  most = arguments.whole('evaluate', 'most', most, math.huge, 1)
  loss = loss and arguments.fn('evaluate', 'loss', loss) or default_loss
  local begin, sum, n = loader:state(), 0, 0
  return finally.run(function()
    loader:load_state(begin)
  end, nil, evaluated.run, model, function()
    for _ = 1, math.min(most, loader.steps_per_epoch) do
      n = n + loader:step_targets()
      for _ = 1, loader.micro_batches do
        sum = sum + scope.run('evaluate', function()
          return loss(model, loader:next()):item()
        end)
      end
    end
    return total_over_ranks(sum, root) / math.max(n, 1), n
  end)
end

return losses
