--- Clipping of gradients of plain and sharded parameters.

local arguments = require 'moonshard_ffi.arguments'
local autograd = require 'moonshard.autograd'
local capture = require 'moonshard.base.capture'
local create = require 'moonshard.base.create'
local dist = require 'moonshard.dist'
local errors = require 'moonshard.base.errors'
local members = require 'moonshard.dist.members'
local parameter = require 'moonshard_ffi.parameter'

local clip = {}

local function list_of(what, params)
  params = parameter.is_tensor(params) and { params } or params
  arguments.array(what, 'params', params)
  for i, param in ipairs(params) do
    arguments.tensor(what, ('params[%d]'):format(i), param)
  end
  return parameter.originals(params)
end

-- The tree over the largest group among those of the sharded parameters. Prepares all trees.
local function tree_of(params)
  local group = members.of(params)
  local tree, done = nil, {}
  for _, param in ipairs(params) do
    local manager = parameter.manager(param)
    if manager and not done[manager] then
      done[manager] = true
      local its = manager:_lazy_init()
      tree = tree or manager.process_group == group and its or nil
    end
  end
  return tree
end

-- The part of a tree. Trees over the same group of ranks with the same sharding share a part.
local function part_of(parts, tree)
  for _, part in ipairs(parts) do
    local root = part.tree.root
    if root.process_group == tree.root.process_group and root.shard_group == tree.root.shard_group
    then
      return part
    end
  end
  parts[#parts + 1] = { tree = tree, params = {} }
  return parts[#parts]
end

-- Parameters by the group over which they are sharded, in order. Plain ones belong to the tree's
-- part, which may have no units.
local function by_group(tree, params)
  local parts, part = {}, {}
  for i, param in ipairs(params) do
    local manager = parameter.manager(param)
    part[i] = manager and part_of(parts, manager:_lazy_init())
  end
  local own = part_of(parts, tree)
  for i, param in ipairs(params) do
    table.insert((part[i] or own).params, param)
  end
  return parts, own
end

-- Raise if a part has ranks outside the largest group: there would be no common norm.
local function check_contained(parts, group)
  local is_member = {}
  for _, rank in ipairs(members.list(group)) do
    is_member[rank] = true
  end
  for _, part in ipairs(parts) do
    local its = part.tree.root.process_group
    for _, rank in ipairs(members.list(its)) do
      if not is_member[rank] then
        errors.raise('ValueError', 'clip_grad_norm_: parameters are sharded over ranks %s and, as '
          .. 'another group, over ranks %s, which have no common norm', members.text(group),
          members.text(its))
      end
    end
  end
end

-- The norm over all groups. Each rank knows the norms of its own groups, so each member of a group
-- contributes an equal fraction of the group's norm.
local function norm_of_parts(parts, norm_type, group)
  local is_max, sum = norm_type == math.huge, 0
  for _, part in ipairs(parts) do
    local norm = part.norm:item()
    if is_max then
      sum = (norm ~= norm or norm > sum) and norm or sum -- keeps NaN, which no comparison does
    else
      local share = 1 / members.size(part.tree.root.process_group)
      sum = sum + (norm_type == 0 and norm or norm ^ norm_type) * share
    end
  end
  local total = dist.all_reduce(create.full({ 1 }, sum, { dtype = 'f64' }),
    is_max and 'max' or 'sum', group):item()
  return (is_max or norm_type == 0) and total or total ^ (1 / norm_type)
end

--- grad_norm_() for parameters of `tree` and of other trees, which may be sharded over subgroups of
--- the tree's ranks.
---@param tree ms.fsdp.Tree
---@return ms.Tensor
function clip.sharded(tree, params, max_norm, norm_type, strict)
  local runtime = require 'moonshard_ffi.fsdp'
  local parts, own = by_group(tree, params)
  if #parts == 1 then
    return runtime.clip(own.tree.handle, params, max_norm, norm_type, strict)
  end
  check_contained(parts, tree.root.process_group)
  for _, part in ipairs(parts) do
    part.norm = runtime.clip(part.tree.handle, part.params, math.huge, norm_type, false)
  end
  local total = norm_of_parts(parts, norm_type, tree.root.process_group)
  if strict and (total ~= total or total == math.huge) then
    errors.raise('RuntimeError', 'The total norm of order %g for gradients from `parameters` is '
      .. 'non-finite, so it cannot be clipped. To disable this error and scale the gradients by '
      .. 'the non-finite norm anyway, set `error_if_nonfinite=false`', norm_type)
  end
  local factor = max_norm / (total + 1e-6)
  factor = factor > 1 and 1 or factor -- keeps NaN
  autograd.no_grad(function()
    for _, param in ipairs(params) do
      local grad = param:grad()
      if grad then
        grad:mul_(factor)
      end
    end
  end)
  return create.full({}, total, { dtype = own.norm:dtype() })
end

-- its.params: in a table, so that a program takes them for the same ones in each replay.
local function clip_norm(its, max_norm, how)
  local tree = tree_of(its.params)
  if tree then
    return clip.sharded(tree, its.params, max_norm, how.norm_type, how.strict)
  end
  return require('moonshard_ffi.optim').clip(its.params, max_norm, how.norm_type, how.strict)
end

--- Scale gradients by min(1, max_norm / (total + 1e-6)). The norm is over all given parameters,
--- sharded ones of any models and plain ones. Collective if any is sharded: ranks of a group pass
--- the same parameters in the same order. With several groups, the largest must contain the ranks
--- of all others (ValueError). With `error_if_nonfinite` RuntimeError if the total is not finite,
--- and nothing is scaled. If a device fails, only some gradients may have been scaled: discard all.
---@param params ms.Tensor[]|ms.Tensor
---@param max_norm number
---@param norm_type? number  0 or more, or math.huge (default 2)
---@param opts? { error_if_nonfinite?: boolean }  default false
---@return ms.Tensor  (), the norm before clipping, in the promoted dtype of the gradients (f32
---  without any)
function clip.grad_norm_(params, max_norm, norm_type, opts)
  local what = 'clip_grad_norm_'
  params = list_of(what, params)
  arguments.number(what, 'max_norm', max_norm)
  norm_type = arguments.number(what, 'norm_type', norm_type, 2)
  return capture.step(what, clip_norm, { params = params }, max_norm,
    { norm_type = norm_type, strict = clip.is_strict(opts) })
end

--- Parse the options of clip_grad_norm_().
---@return boolean
function clip.is_strict(opts)
  return errors.options('clip_grad_norm_', opts, { error_if_nonfinite = 'flag' })
    .error_if_nonfinite or false
end

local function limit_values(its, most)
  for _, param in ipairs(its.params) do
    local grad = param:grad()
    if grad then
      param:set_grad(grad:clamp(-most, most))
    end
  end
end

--- Limit each element of the gradients to [-clip_value, clip_value], on this rank's elements.
---@param params ms.Tensor[]|ms.Tensor
---@param clip_value number  0 or more
function clip.grad_value_(params, clip_value)
  params = list_of('clip_grad_value_', params)
  arguments.number('clip_grad_value_', 'clip_value', clip_value)
  if clip_value < 0 or clip_value ~= clip_value then
    errors.raise('ValueError', 'clip_grad_value_: clip_value is %g, expected 0 or more', clip_value)
  end
  capture.step('clip_grad_value_', limit_values, { params = params }, clip_value)
end

return clip
