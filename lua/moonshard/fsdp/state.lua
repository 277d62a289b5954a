--- The state of a module that FSDP shards: its options, its unit, its tree.

local B = require 'moonshard_ffi'
local ParamGroup = require 'moonshard.fsdp.param_group'
local class = require 'moonshard.base.class'
local construct = require 'moonshard.fsdp.construct'
local errors = require 'moonshard.base.errors'
local first_use = require 'moonshard.fsdp.first_use'
local forward = require 'moonshard.fsdp.forward'
local methods = require 'moonshard.fsdp.methods'
local module_tree = require 'moonshard.nn.tree'
local options = require 'moonshard.fsdp.options'
local parameter = require 'moonshard_ffi.parameter'
local placed = require 'moonshard.fsdp.placed'
local plan = require 'moonshard.fsdp.plan'
local runtime = require 'moonshard_ffi.fsdp'
local scope = require 'moonshard.base.scope'
local sealed = require 'moonshard.fsdp.sealed'
local unit_settings = require 'moonshard.fsdp.unit_settings'
local units = require 'moonshard.fsdp.unit'
local util = require 'moonshard.base.util'
local values = require 'moonshard.fsdp.values'
local without_jit = require 'moonshard.base.without_jit'

-- A wrapped module has the state of its wrapper, a module sharded in place its own;
-- `outer_module` is the module that is part of the model. A state groups the parameters below it,
-- except those of nested states, into one unit, which is gathered around its forward and backward.
-- The root owns the tree of all units below. It is the state whose forward is called first, or the
-- outermost one if another method is called first.

---@class ms.fsdp.State: ms.fsdp.Methods, ms.fsdp.Options
---@field outer_module ms.nn.Module  the wrapper, or the module itself
---@field modules ms.nn.Module[]  in place of which it is called: that, and others of its group
---@field in_place boolean
---@field reason string  why the module is sharded by itself
---@field process_group ms.dist.Group  over which gradients are summed
---@field shard_group ms.dist.Group  among whose ranks parameters are divided: the same, or with
---  hybrid sharding a part of it
---@field rank integer  in the shard group
---@field world_size integer  of the shard group
---@field replica integer  number of this rank's shard group, from 0
---@field api 'fully_shard'|'replicate'|nil  nil: FSDP() or composable()
---@field output_dtype? ms.DType  of the results of forward
local State = class('fsdp.State')

for _, functions in ipairs { methods, values, units, placed, unit_settings } do
  for name, fn in next, functions do
    State[name] = fn
  end
end

-- Add the parameters of another module, sharded in place, to the same unit.
local function join(self, module, opts)
  local ignored_set = without_jit.run(construct.wrap_below, module, opts, nil, nil,
    self._initialised)
  for kind, its in next, ignored_set do -- order does not matter
    self._ignored[kind] = util.merged(self._ignored[kind], its)
  end
  self.modules[#self.modules + 1] = module
end

-- module: its forward runs. opts: normalised; `others`: more modules of its group. inherited: the
-- ignored modules and parameters, if a policy of the root chose the module. inner(module, opts):
-- shards what the policy chooses. After an error no module has the state.
function State:init(outer_module, module, opts, inherited, inner)
  self._initialised = {} -- modules, by param_init_fn
  self._ignored = without_jit.run(construct.wrap_below, module, opts, inherited, inner,
    self._initialised)
  self.outer_module, self.in_place = outer_module, outer_module == module
  self.modules = { outer_module }
  for _, other in ipairs(opts.others or {}) do
    join(self, other, opts)
  end
  for _, name in ipairs(options.FIELDS) do
    self[name] = opts[name]
  end
  self.reason, self.param_init_fn = opts.reason, opts.param_init_fn
  self.api, self.output_dtype = opts.api, opts.output_dtype
  self.reduces_in_own_dtype = opts.reduces_in_own_dtype
  self._settings = opts.settings or {}
  self.full_precision_in_eval = not opts.api and options.full_precision_in_eval()
  self._hold = runtime.hold(opts.process_group)
  self.hybrid_groups = opts.hybrid_groups
  local shard, replicate = unpack(opts.hybrid_groups or {})
  self.shard_group = shard or opts.process_group
  self.rank = B.C.ms_comm_rank(self.shard_group)
  self.world_size = B.C.ms_comm_size(self.shard_group)
  self.replica = replicate and B.C.ms_comm_rank(replicate) or 0
  for _, each in ipairs(self.modules) do
    rawset(each, '_manager', self)
  end
end

--- The module whose forward runs.
---@return ms.nn.Module
function State:wrapped()
  return self.in_place and self.outer_module or self.outer_module.module
end

State.forward = forward

--- Shard another module with the options of this one, by a wrapper or in place, as this one is.
---@param module ms.nn.Module
---@param ignored_set ms.fsdp.Ignored
---@return ms.nn.Module outer_module
function State:_shard_alike(module, ignored_set)
  local opts = { _ignored = ignored_set, _reason = self.reason,
    hybrid_groups = self.hybrid_groups }
  for _, name in ipairs(options.FIELDS) do
    opts[name] = self[name]
  end
  if not self.in_place then
    module = getmetatable(self.outer_module)(module, opts)
  else
    local normalised, inherited = construct.options_of(opts)
    State(module, module, normalised, inherited)
  end
  local state = module_tree.manager(module)
  state._state_dict_settings = self._state_dict_settings
  state._comm_hook = self._comm_hook
  for _, entry in ipairs(self._forward_methods or {}) do
    state:register_forward_method(module, entry.name, entry.method)
  end
  return module
end

--- The group of its parameters, with what it is used for.
---@return ms.fsdp.ParamGroup
function State:param_group()
  self._param_group = self._param_group or ParamGroup._of_state(self)
  return self._param_group
end

--- See ms.nn.Manager.
function State._param_assigned(_, module, p, now)
  return sealed.param_assigned(module, p, now)
end

---@param module ms.nn.Module
---@return boolean
function State:_ignores(module)
  return self._ignored.modules[module] ~= nil
end

-- The ignored modules and parameters of a state, in a copy: those that are copied so far.
local function copy_ignored(copy, from)
  local into = copy.ignored[from] or { modules = {}, params = {} }
  copy.ignored[from] = into
  for original, made in next, copy.modules do -- order does not matter
    into.modules[made] = from.modules[original]
  end
  for key, made in next, copy.tensors do -- order does not matter
    into.params[parameter.key(made)] = from.params[key]
  end
  return into
end

--- Shard the copy of its module.
---@param copy ms.nn.Copy
---@param module ms.nn.Module
---@return ms.nn.Module outer
function State:_copy_onto(copy, module)
  if self.api then
    errors.raise('AssertionError', 'FSDP does not support deepcopy. Please use state dict for '
      .. 'serialization.')
  end
  return self:_shard_alike(module, copy_ignored(copy, self._ignored))
end

--- Let a call of a method of `module` run as a forward.
---@param module ms.nn.Module  part of the model
---@param name string
---@param method fun(module: ms.nn.Module, ...): ...
function State:register_forward_method(module, name, method)
  self._forward_methods = self._forward_methods or {}
  table.insert(self._forward_methods, { name = name, method = method })
  rawset(module, name, function(called, ...)
    called:materialize()
    return scope.run(name, self.forward, self, method, self.in_place and module or self:wrapped(),
      ...)
  end)
end

-- -- units ---------------------------------------------------------------------------------------

--- Make the units of its tree with their initial values, if they were not made yet.
function State:_prepare()
  if not self._planned then
    local made = plan.seal(module_tree.outermost(self.outer_module))
    if made and not self._planned then -- never put into the model in the wrapped module's place
      rawset(self.outer_module, '_owner', nil)
      plan.seal(self.outer_module)
    end
  end
end

--- Called by ms.close(), which frees units and trees: a later use is an error.
function State:_close()
  local tree = self._tree or { root = self }
  tree.ready, tree.closed = false, true
  self._tree = tree
  self._unit = nil
  self._flat = nil
end

--- The tree of this instance; the first call makes it. Collective.
---@param alone? boolean  make this instance the root, as a forward does: not the one around it
---@return ms.fsdp.Tree
function State:_lazy_init(alone)
  local tree = self._tree
  plan.check_sealed(self)
  return tree and tree.ready and tree
    or without_jit.run(first_use.ready, self, alone)
end

return State
