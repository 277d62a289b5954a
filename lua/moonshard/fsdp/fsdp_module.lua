--- The class of a module that fully_shard() was called on: its methods come before those of the
--- module's own class.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local class = require 'moonshard.base.class'
local errors = require 'moonshard.base.errors'
local first_use = require 'moonshard.fsdp.first_use'
local module_tree = require 'moonshard.nn.tree'
local util = require 'moonshard.base.util'

--- A module that fully_shard() or replicate() was called on: ms.is(module, fsdp.FSDPModule).
--- Settings may change between steps and are equal on all ranks; those that are set before the
--- first use are kept until then. With `recurse` (default true) they are set for the modules below,
--- too.
---@class ms.fsdp.FSDPModule: ms.nn.Module
local FSDPModule = { _name = 'fsdp.FSDPModule' }

-- The state of a sharded module, or of the one inside a checkpoint, which has its methods, too.
local function state_of(module)
  local inner = module.module
  return module_tree.manager(module) or module_tree.is_module(inner) and module_tree.manager(inner)
    or nil
end

-- The states of a module and, with `recurse`, of those below; each once.
local function states_of(what, module, recurse)
  local out, seen = {}, {}
  for _, m in ipairs(arguments.flag(what, 'recurse', recurse, true) and module:modules()
    or { module }) do
    local state = state_of(m)
    if state and state.api and not seen[state] then
      seen[state] = true
      out[#out + 1] = state
    end
  end
  return out
end

local function set(what, module, name, value, recurse)
  arguments.flag(what, what:match '^set_(.*)$', value)
  for _, state in ipairs(states_of(what, module, recurse)) do
    state:_set(name, value)
  end
end

-- -- parameters ----------------------------------------------------------------------------------

--- A gather that unshard() has begun with `async_op`.
---@class ms.fsdp.UnshardHandle
local UnshardHandle = class 'fsdp.UnshardHandle'

function UnshardHandle:init(state)
  self._state = state
end

--- Wait until the full parameters are gathered, and show them.
function UnshardHandle:wait()
  local state = self._state
  if state then
    self._state = nil
    state:unshard()
  end
end

--- Gather the full parameters of this module's group and show them, until reshard() or until a
--- backward or forward frees them. Collective. Does nothing if they are gathered already.
---@param opts? { async_op?: boolean }  async_op: only begin (default false)
---@return ms.fsdp.UnshardHandle?  with async_op
function FSDPModule:unshard(opts)
  opts = errors.options('unshard', opts, { async_op = 'flag' })
  local state = state_of(self)
  if not opts.async_op then
    state:unshard()
    return nil
  end
  state:_lazy_init()
  if state._unit then
    B.calls.fsdp_unit_begin_unshard(state._unit)
  end
  return UnshardHandle(state)
end

--- Free the full parameters of this module's group. RuntimeError during its forward or backward.
function FSDPModule:reshard()
  state_of(self):reshard()
end

--- Free full parameters after forward, and gather them again for the backward, or keep them. This
--- replaces the option reshard_after_forward, for the root as well.
---@param reshard_after_forward boolean
---@param recurse? boolean
function FSDPModule:set_reshard_after_forward(reshard_after_forward, recurse)
  if type(reshard_after_forward) ~= 'boolean' then
    errors.raise('ValueError', 'reshard_after_forward should be a bool, got %s',
      arguments.noun(reshard_after_forward))
  end
  set('set_reshard_after_forward', self, 'reshard_after_forward', reshard_after_forward, recurse)
end

--- Free full parameters after backward (initially true), or keep them for the next forward while
--- gradients accumulate.
---@param reshard_after_backward boolean
---@param recurse? boolean
function FSDPModule:set_reshard_after_backward(reshard_after_backward, recurse)
  set('set_reshard_after_backward', self, 'reshard_after_backward', reshard_after_backward, recurse)
end

--- Gather this module's parameters for the backward (initially true); false where it does not read
--- them, as that of an embedding.
---@param unshard_in_backward boolean
function FSDPModule:set_unshard_in_backward(unshard_in_backward)
  set('set_unshard_in_backward', self, 'unshard_in_backward', unshard_in_backward, false)
end

-- The states of a list of modules.
local function listed(what, expects, modules)
  local states = {}
  for i, m in ipairs(arguments.array(what, 'modules', modules)) do
    if not util.is(m, FSDPModule) then
      errors.raise('ValueError', '%s: Expects %s but got %s', what, expects, arguments.noun(m))
    end
    states[i] = state_of(m)
  end
  return states
end

local function set_prefetch(what, module, name, modules)
  state_of(module):_set(name, listed(what, 'FSDPModule', modules))
end

--- Gather these modules' parameters once this one's are gathered in forward, in this order.
---@param modules ms.fsdp.FSDPModule[]
function FSDPModule:set_modules_to_forward_prefetch(modules)
  set_prefetch('set_modules_to_forward_prefetch', self, 'forward_prefetch', modules)
end

--- The same in backward. The list replaces the default: the module whose forward ran before this
--- one's.
---@param modules ms.fsdp.FSDPModule[]
function FSDPModule:set_modules_to_backward_prefetch(modules)
  set_prefetch('set_modules_to_backward_prefetch', self, 'backward_prefetch', modules)
end

-- -- errors --------------------------------------------------------------------------------------

--- Begin a new iteration after an error: free the full parameters of all groups of the model, and
--- drop their gradients, those that accumulate without a reduction as well. On all ranks. Does
--- nothing before the first use. RuntimeError for a module that is not the root, and in its forward
--- or backward.
function FSDPModule:reset_iter_state()
  local state = state_of(self)
  local top = state._tree
  if not (top and top.ready) then
    return
  elseif not state._is_root then
    errors.raise('RuntimeError', 'reset_iter_state must be called on the root FSDP module')
  end
  for _, tree in ipairs(first_use.trees(top)) do
    for _, instance in ipairs(tree.instances) do
      instance:reshard()
      for _, tensor in ipairs(instance:_managed() or {}) do
        tensor:set_grad(nil)
      end
    end
  end
end

-- -- gradients -----------------------------------------------------------------------------------

--- Reduce gradients in backward (initially true), or accumulate them for the next backward that
--- reduces. AssertionError during backward.
---@param requires_gradient_sync boolean
---@param recurse? boolean
function FSDPModule:set_requires_gradient_sync(requires_gradient_sync, recurse)
  set('set_requires_gradient_sync', self, 'gradient_sync', requires_gradient_sync, recurse)
  set('set_requires_gradient_sync', self, 'all_reduce', requires_gradient_sync, recurse)
end

--- With a mesh of two dimensions: reduce gradients over the replicas in backward (initially true),
--- or not. Here one reduction covers both dimensions, so false accumulates gradients as
--- set_requires_gradient_sync(false) does.
---@param requires_all_reduce boolean
---@param recurse? boolean
function FSDPModule:set_requires_all_reduce(requires_all_reduce, recurse)
  set('set_requires_all_reduce', self, 'all_reduce', requires_all_reduce, recurse)
end

--- Is the next backward the last one before the optimizer's step (initially true)? Before the
--- others of a forward with several, false keeps the order in which backward gathers modules. For
--- the whole model.
---@param is_last_backward boolean
function FSDPModule:set_is_last_backward(is_last_backward)
  set('set_is_last_backward', self, 'is_last_backward', is_last_backward, false)
end

--- Divide the sum of this module's gradients by this number, in place of the number of ranks.
---@param factor number  finite, above 0
function FSDPModule:set_gradient_divide_factor(factor)
  arguments.number('set_gradient_divide_factor', 'factor', factor)
  if not (factor > 0 and factor < math.huge) then
    errors.raise('ValueError', "set_gradient_divide_factor: 'factor' is %g, expected a finite "
      .. 'number above 0', factor)
  end
  state_of(self):_set('gradient_divide_factor', factor)
end

--- Call a function in each backward that reduces this module's gradients, when they are reduced
--- over all ranks and in no .grad yet, in the same order on all ranks. It gets the gradients of
--- this rank's part of the parameters in a row, padded, in the dtype of the reduction, and may
--- change them in place. It replaces an earlier one. AssertionError during backward; ValueError for
--- a stream with a mesh of two dimensions, else streams are accepted.
---@param hook fun(grad: ms.Tensor)
---@param stream? any
function FSDPModule:set_all_reduce_hook(hook, stream)
  local state = state_of(self)
  arguments.fn('set_all_reduce_hook', 'hook', hook)
  if stream ~= nil and state.hybrid_groups then
    errors.raise('ValueError', 'stream cannot be set when using native HSDP')
  end
  state:_set('all_reduce_hook', hook)
end

--- The earlier name of set_gradient_divide_factor().
---@param factor number
function FSDPModule:set_reduce_scatter_divide_factor(factor)
  errors.warn('FutureWarning', 'set_reduce_scatter_divide_factor is deprecated. Use '
    .. 'set_gradient_divide_factor instead.', state_of(self).process_group)
  self:set_gradient_divide_factor(factor)
end

-- -- accepted ------------------------------------------------------------------------------------

local function accepted(what)
  return function(_, value)
    arguments.flag(what, what:match '^set_(.*)$', value)
  end
end

--- Accepted: a parameter without a gradient counts as zero where another rank has one, always. Its
--- group must have a gradient on every rank.
---@type fun(self, reduce_scatter_unused_params: boolean, recurse?: boolean)
FSDPModule.set_reduce_scatter_unused_params = accepted 'set_reduce_scatter_unused_params'

--- Accepted: ranks sum gradients in shared memory always, and divide the sum.
---@type fun(self, enable: boolean)
FSDPModule.set_force_sum_reduction_for_comms = accepted 'set_force_sum_reduction_for_comms'

--- Accepted: ranks exchange through shared memory always.
---@type fun(self, enable: boolean)
FSDPModule.set_allocate_memory_from_process_group_for_comm = accepted(
  'set_allocate_memory_from_process_group_for_comm')

--- Accepted: gathers and reductions have separate slots always.
---@type fun(self, enable: boolean, recurse?: boolean)
FSDPModule.set_separate_reduce_scatter_group = accepted 'set_separate_reduce_scatter_group'

--- Accepted: a reduction uses a slot of gradients, whose number is chosen at the first use.
---@param max_input_buffers integer  1 or more
---@param recurse? boolean
function FSDPModule:set_reduce_scatter_max_input_buffers(max_input_buffers, recurse)
  local what = 'set_reduce_scatter_max_input_buffers'
  if type(max_input_buffers) ~= 'number' or max_input_buffers % 1 ~= 0 then
    errors.raise('TypeError', '%s: max_input_buffers must be an int, got %s', what,
      arguments.noun(max_input_buffers))
  elseif max_input_buffers < 1 then
    errors.raise('ValueError', '%s: max_input_buffers must be a positive int, got %d', what,
      max_input_buffers)
  end
  arguments.flag(what, 'recurse', recurse, true)
end

--- Accepted: ranks exchange through shared memory always.
---@param backend? string  default 'NCCL'
function FSDPModule:set_symm_mem_for_comm(backend) -- luacheck: ignore 212
  arguments.text('set_symm_mem_for_comm', 'backend', backend == nil and 'NCCL' or backend)
end

--- Accepted: gathers run beside compute always.
---@type fun(self, async_op: boolean)
FSDPModule._set_unshard_async_op = accepted '_set_unshard_async_op'

--- Accepted: gathers see all writes of the optimizer without an event.
---@param event any
function FSDPModule:set_post_optim_event(event) -- luacheck: ignore 212
end

-- -- classes -------------------------------------------------------------------------------------

local made = setmetatable({}, { __mode = 'k' }) -- by original class, then by prefix

-- The class of sharded modules of a class: one for all of them.
local function class_of(original, prefix)
  local classes = made[original] or {}
  made[original] = classes
  if not classes[prefix] then
    classes[prefix] = class(prefix .. original._name:match '[^.]*$', original, FSDPModule)
  end
  return classes[prefix]
end

local fsdp_module = { FSDPModule = FSDPModule }

--- Change the class of a module, in place, to one that derives from it.
---@param module ms.nn.Module
---@param prefix string  of the name
function fsdp_module.adopt(module, prefix)
  setmetatable(module, class_of(getmetatable(module), prefix))
end

--- Let a call of `module[name]` gather the module's parameters, as its forward does. Does nothing
--- for a module that is not sharded itself. ValueError for one that has no such method.
---@param module ms.nn.Module
---@param name string
function fsdp_module.register_forward_method(module, name)
  local what = 'register_fsdp_forward_method'
  if not module_tree.is_module(module) then
    arguments.refuse(what, 'module', module, 'a module')
  end
  local method, state = module[arguments.text(what, 'name', name)], state_of(module)
  if state and type(method) ~= 'function' then
    errors.raise('ValueError', '%s does not have a method %s', module._name, name)
  elseif state then
    state:register_forward_method(module, name, method)
  end
end

--- Accepted: models of one process take turns in its streams always. ValueError for modules that
--- fully_shard() and replicate() were not called on.
---@param modules ms.fsdp.FSDPModule[]
function fsdp_module.share_comm_ctx(modules)
  listed('share_comm_ctx', 'list of FSDPModules', modules)
end

return fsdp_module
