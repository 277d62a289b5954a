--- Clipping of gradients, of plain parameters and of sharded ones together.

local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.internal.errors'
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

-- The trees of sharded parameters, ready, and their group.
local function tree_of(what, params)
  local group, another = members.of(params)
  if another then
    errors.raise('ValueError', '%s: parameters are sharded over ranks %s and, as another group, '
      .. 'over ranks %s, which have no common norm', what, members.text(group),
      members.text(another))
  end
  local tree, done = nil, {}
  for _, param in ipairs(params) do
    local manager = parameter.manager(param)
    if manager and not done[manager] then
      done[manager] = true
      local its = manager:_lazy_init()
      tree = tree or its
    end
  end
  return tree
end

--- Scale gradients together by min(1, max_norm / (total + 1e-6)). Sharded parameters of any models
--- over one group of ranks and plain ones count together; collective then, with the same parameters
--- in the same order on all ranks. RuntimeError with `error_if_nonfinite` when the total is not
--- finite: nothing is scaled. Where a device fails some may be scaled and others not: drop them.
---@param params ms.Tensor[]|ms.Tensor
---@param max_norm number
---@param norm_type? number  0 or more, or math.huge (default 2)
---@param opts? { error_if_nonfinite?: boolean }  default false
---@return ms.Tensor  (), the norm before, in the promoted dtype of the gradients (f32 without any)
function clip.grad_norm_(params, max_norm, norm_type, opts)
  local what = 'clip_grad_norm_'
  params = list_of(what, params)
  arguments.number(what, 'max_norm', max_norm)
  norm_type = arguments.number(what, 'norm_type', norm_type, 2)
  local strict = clip.is_strict(opts)
  local tree = tree_of(what, params)
  if tree then
    return require('moonshard_ffi.fsdp').clip(tree.handle, params, max_norm, norm_type, strict)
  end
  return require('moonshard_ffi.optim').clip(params, max_norm, norm_type, strict)
end

--- The option of clip_grad_norm_().
---@return boolean
function clip.is_strict(opts)
  return errors.options('clip_grad_norm_', opts, { error_if_nonfinite = 'flag' })
    .error_if_nonfinite or false
end

--- Limit each element of the gradients to [-clip_value, clip_value], on the elements this rank
--- holds.
---@param params ms.Tensor[]|ms.Tensor
---@param clip_value number  0 or more
function clip.grad_value_(params, clip_value)
  params = list_of('clip_grad_value_', params)
  arguments.number('clip_grad_value_', 'clip_value', clip_value)
  if clip_value < 0 or clip_value ~= clip_value then
    errors.raise('ValueError', 'clip_grad_value_: clip_value is %g, expected 0 or more', clip_value)
  end
  for _, param in ipairs(params) do
    local grad = param:grad()
    if grad then
      param:set_grad(grad:clamp(-clip_value, clip_value))
    end
  end
end

return clip
