--- The class of a module that fully_shard() was called on: its methods come before those of the
--- module's own class.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local class = require 'moonshard.base.class'
local errors = require 'moonshard.base.errors'
local module_tree = require 'moonshard.nn.tree'

--- A module that fully_shard() was called on. Settings may change between steps and are equal on
--- all ranks; those that are set before the first use are kept until then. With `recurse` (default
--- true) they are set for the modules below, too.
---@class ms.fsdp.FSDPModule: ms.nn.Module
local FSDPModule = {}

-- The states of a module and, with `recurse`, of those below; each once.
local function states_of(what, module, recurse)
  local out, seen = {}, {}
  for _, m in ipairs(arguments.flag(what, 'recurse', recurse, true) and module:modules()
    or { module }) do
    local state = module_tree.manager(m)
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
  local state = module_tree.manager(self)
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
  module_tree.manager(self):reshard()
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

local function set_prefetch(what, module, name, modules)
  local states = {}
  for i, m in ipairs(arguments.array(what, 'modules', modules)) do
    local state = module_tree.is_module(m) and module_tree.manager(m)
    if not (state and state.api) then
      errors.raise('ValueError', '%s: Expects FSDPModule but got %s', what, arguments.noun(m))
    end
    states[i] = state
  end
  module_tree.manager(module):_set(name, states)
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
  module_tree.manager(self):_set('gradient_divide_factor', factor)
end

--- The earlier name of set_gradient_divide_factor().
---@param factor number
function FSDPModule:set_reduce_scatter_divide_factor(factor)
  errors.warn('FutureWarning', 'set_reduce_scatter_divide_factor is deprecated. Use '
    .. 'set_gradient_divide_factor instead.', module_tree.manager(self).process_group)
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

--- Accepted: gathers see all writes of the optimizer without an event.
---@param event any
function FSDPModule:set_post_optim_event(event) -- luacheck: ignore 212
end

-- -- classes -------------------------------------------------------------------------------------

local made = setmetatable({}, { __mode = 'k' }) -- by original class, then by prefix

-- A checkpoint around a sharded module has its methods, too.
local function sharded(module)
  return module_tree.manager(module) and module or module.module
end

-- The class of sharded modules of a class: one for all of them.
local function class_of(original, prefix)
  local classes = made[original] or {}
  made[original] = classes
  if not classes[prefix] then
    local cls = class(prefix .. original._name:match '[^.]*$', original)
    for name, method in next, FSDPModule do
      cls[name] = function(self, ...) return method(sharded(self), ...) end
    end
    classes[prefix] = cls
  end
  return classes[prefix]
end

local fsdp_module = {}

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
  local method, state = module[arguments.text(what, 'name', name)], module_tree.manager(module)
  if state and type(method) ~= 'function' then
    errors.raise('ValueError', '%s does not have a method %s', module._name, name)
  elseif state then
    state:register_forward_method(module, name, method)
  end
end

return fsdp_module
