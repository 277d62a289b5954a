--- The state of a module that FSDP shards: its options, its unit, its place in the tree.
---
--- A wrapped module has the state of its wrapper, one that is sharded in place its own; `face` is
--- the one that stands in the model. A state groups the parameters below it that no nested state
--- takes into one unit, which is gathered around its forward and backward. The root owns the tree
--- of all units below: it is the one whose forward is called first, or the outermost one, where
--- anything else comes first.

local auto_wrap = require 'moonshard.fsdp.auto_wrap'
local buffers = require 'moonshard.fsdp.buffers'
local check = require 'moonshard.fsdp.check'
local class = require 'moonshard.base.class'
local dist = require 'moonshard.dist'
local errors = require 'moonshard.base.errors'
local first_use = require 'moonshard.fsdp.first_use'
local forward_values = require 'moonshard.fsdp.forward_values'
local graph = require 'moonshard.base.graph'
local finally = require 'moonshard.base.finally'
local ignored = require 'moonshard.fsdp.ignored'
local members = require 'moonshard.dist.members'
local methods = require 'moonshard.fsdp.methods'
local module_tree = require 'moonshard.nn.tree'
local module_names = require 'moonshard.nn.names'
local without_jit = require 'moonshard.base.without_jit'
local options = require 'moonshard.fsdp.options'
local parameter = require 'moonshard_ffi.parameter'
local plan = require 'moonshard.fsdp.plan'
local runtime = require 'moonshard_ffi.fsdp'
local samples = require 'moonshard.base.samples'
local scope = require 'moonshard.base.scope'
local sealed = require 'moonshard.fsdp.sealed'
local util = require 'moonshard.base.util'
local values = require 'moonshard.fsdp.values'
local watch = require 'moonshard.fsdp.watch'

---@class ms.fsdp.State: ms.fsdp.Methods, ms.fsdp.Values
---@field face ms.nn.Module  the wrapper, or the module itself
---@field in_place boolean
---@field reason string  why the module is sharded by itself
---@field sharding_strategy string
---@field backward_prefetch string
---@field forward_prefetch boolean
---@field cpu_offload { offload_params: boolean }
---@field mixed_precision ms.fsdp.MixedPrecision
---@field use_orig_params boolean
---@field process_group ms.dist.Group  over which gradients are summed
---@field shard_group ms.dist.Group  among whose ranks parameters are divided: the same, or with
---  hybrid sharding a part of it
---@field rank integer  in the shard group
---@field world_size integer  of the shard group
---@field replica integer  number of this rank's shard group, from 0
local State = class('fsdp.State')

for _, functions in ipairs { methods, values } do
  for name, fn in next, functions do
    State[name] = fn
  end
end

--- Options that scripts read as fields of a wrapped module.
State.OPTIONS = {
  'sharding_strategy', 'backward_prefetch', 'forward_prefetch', 'mixed_precision',
  'use_orig_params', 'limit_all_gathers', 'process_group', 'device_mesh', 'cpu_offload',
  'device_id',
}

-- Let param_init_fn set the initial values of parameters that have none, while their handles show
-- them whole. It gets each module that holds one, a tied one in its first place. After an error the
-- next use begins with the module that failed.
local function init_params(fn, tensors, holders, done)
  for i, tensor in ipairs(fn and tensors or {}) do
    local module = holders[i]
    if not done[module] and not parameter.has_values(tensor) then
      fn(module)
      done[module] = true
    end
  end
end

-- Parameters outside nested instances and what is ignored, with the modules that declare them.
local function own_params(module, ignored_set, tensors, holders)
  for _, p in ipairs(module_tree.params(module, false)) do
    if not ignored_set.params[parameter.key(p.tensor)] then
      tensors[#tensors + 1], holders[#holders + 1] = p.tensor, module
    end
  end
  for _, child in ipairs(module:children()) do
    if not module_tree.manager(child) then
      own_params(child, ignored_set, tensors, holders)
    end
  end
  return tensors, holders
end

-- Let all ranks have rank 0's values. Nested instances have synchronised theirs.
local function sync(module, opts, ignored_set, done)
  local tensors, holders = own_params(module, ignored_set, {}, {})
  module_names.assign_names(module_tree.outermost(module))
  init_params(opts.param_init_fn, tensors, holders, done)
  for _, tensor in ipairs(tensors) do
    if not parameter.manager(tensor) then
      parameter.materialize(tensor)
      dist.broadcast(tensor:detach(), 0, opts.process_group)
      parameter.touch(tensor)
    end
  end
  for _, b in ipairs(module_tree.buffers(module)) do
    local value = b.entry:uncast():clone()
    dist.broadcast(value, 0, opts.process_group)
    b.entry:prepare_load(value)()
  end
end

local function policy_text(policy)
  return type(policy) == 'function' and 'a function' or tostring(policy)
end

-- Groups that two calls made of the same ranks are one: units over one group are in one tree.
local function share_groups(state, opts)
  local hybrid, its = opts.hybrid_groups, state.hybrid_groups
  if members.same(state.process_group, opts.process_group) and (not hybrid) == (not its)
    and (not hybrid or members.same(its[1], hybrid[1])) then
    state._hold = runtime.hold(opts.process_group)
    state.process_group, state.hybrid_groups = opts.process_group, hybrid
    state.shard_group = hybrid and hybrid[1] or opts.process_group
  end
end

-- Options that came from the root through a policy are complete but for what the policy overrode.
-- Gives what is ignored.
local function wrap_below(module, opts, inherited, inner, done)
  local ignored_set = inherited or ignored.of(module, opts)
  for _, below in ipairs(inherited and {} or module:modules()) do
    local state = module_tree.manager(below)
    if state and not state._planned then
      share_groups(state, opts)
    end
  end
  if opts.sync_module_states and not inherited then
    sync(module, opts, ignored_set, done)
  end
  if opts.auto_wrap_policy then
    local reason = 'chosen by ' .. policy_text(opts.auto_wrap_policy)
    auto_wrap.below(module, opts, ignored_set, function(child, own)
      return inner(child, util.merged(own, { _ignored = ignored_set, _reason = reason }))
    end)
  end
  plan.validate(module, ignored_set, opts.use_orig_params)
  return ignored_set
end

--- Options as a state takes them, and what is ignored, when a policy of the root chose the module.
---@param given? ms.fsdp.Options
---@return table opts, ms.fsdp.Ignored? inherited
function State.options_of(given)
  local inherited = type(given) == 'table' and given._ignored or nil
  local reason = inherited and given._reason or 'by hand'
  if inherited then
    given = util.merged(given)
    given._ignored, given._reason = nil, nil
    given.process_group = not given.device_mesh and given.process_group or nil -- the mesh's own
  end
  local opts = options.normalised(given)
  opts.reason = reason
  if not inherited then
    options.warn(opts)
  end
  return opts, inherited
end

---@param face ms.nn.Module
---@param module ms.nn.Module
---@param opts table  normalised
---@param inherited? ms.fsdp.Ignored
---@param inner fun(module: ms.nn.Module, opts: table): ms.nn.Module  shards what the policy chooses
function State:init(face, module, opts, inherited, inner)
  self._initialised = {} -- modules, by param_init_fn
  self._ignored = without_jit.run(wrap_below, module, opts, inherited, inner,
    self._initialised)
  self.face, self.in_place = face, face == module
  for _, name in ipairs(self.OPTIONS) do
    self[name] = opts[name]
  end
  self.reason, self.param_init_fn = opts.reason, opts.param_init_fn
  self.full_precision_in_eval = options.full_precision_in_eval()
  self._hold = runtime.hold(opts.process_group)
  self.hybrid_groups = opts.hybrid_groups
  local shard, replicate = unpack(opts.hybrid_groups or {})
  self.shard_group = shard or opts.process_group
  self.rank, self.world_size = runtime.place(self.shard_group)
  self.replica = replicate and runtime.place(replicate) or 0
  rawset(face, '_manager', self)
end

--- The module whose forward runs.
---@return ms.nn.Module
function State:wrapped()
  return self.in_place and self.face or self.face.module
end

--- Shard another module with the options of this one, by a wrapper or in place, as this one is.
---@param module ms.nn.Module
---@param ignored_set ms.fsdp.Ignored
---@return ms.nn.Module face
function State:shard_alike(module, ignored_set)
  local opts = { _ignored = ignored_set, _reason = self.reason,
    hybrid_groups = self.hybrid_groups }
  for _, name in ipairs(self.OPTIONS) do
    opts[name] = self[name]
  end
  if not self.in_place then
    module = getmetatable(self.face)(module, opts)
  else
    local normalised, inherited = State.options_of(opts)
    State(module, module, normalised, inherited)
  end
  local state = module_tree.manager(module)
  state._state_dict_settings = self._state_dict_settings
  state._comm_hook = self._comm_hook
  for _, entry in ipairs(self._forward_methods or {}) do
    state:register_forward_method(entry.name, entry.method)
  end
  return module
end

--- See ms.nn.Manager.
function State.param_assigned(_, module, p, now)
  return sealed.param_assigned(module, p, now)
end

---@param module ms.nn.Module
---@return boolean
function State:ignores(module)
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
function State:copy_onto(copy, module)
  return self:shard_alike(module, copy_ignored(copy, self._ignored))
end

--- Let a call of a method of `face` run as a forward.
---@param name string
---@param method fun(module: ms.nn.Module, ...): ...
function State:register_forward_method(name, method)
  self._forward_methods = self._forward_methods or {}
  table.insert(self._forward_methods, { name = name, method = method })
  rawset(self.face, name, function(face, ...)
    face:materialize()
    return scope.run(name, self.forward, self, method, ...)
  end)
end

-- -- units ---------------------------------------------------------------------------------------

--- Make the units of the tree it is in, unless there are, with their first values.
function State:prepare()
  if not self._planned then
    local made = plan.seal(module_tree.outermost(self.face))
    if made and not self._planned then -- never put in the wrapped module's place: stands alone
      rawset(self.face, '_owner', nil)
      plan.seal(self.face)
    end
  end
end

--- The path of its unit in the present model. Messages between ranks use the path at the time the
--- unit was made, because ranks may put it into a larger model at different times.
function State:_unit_name()
  local path = self.face:path()
  return path == '' and self:wrapped()._name or path
end

-- A gradient of a whole parameter has no place in a unit, which holds what ranks have reduced.
local function warn_of_gradients(tensors, names, group)
  local lost = {}
  for i, tensor in ipairs(tensors) do
    if tensor:grad() then
      lost[#lost + 1] = ("'%s'"):format(names[i])
    end
  end
  if #lost > 0 then
    errors.warn('UserWarning', 'FSDP drops the gradients that these parameters had before they '
      .. 'were wrapped: ' .. table.concat(lost, ', ') .. '; wrap first, then run backward', group)
  end
end

local function unit_options(self)
  return {
    strategy = self.sharding_strategy,
    param_dtype = self.mixed_precision.param_dtype,
    reduce_dtype = self.mixed_precision.reduce_dtype,
    use_orig_params = self.use_orig_params,
    full_precision_in_eval = self.full_precision_in_eval,
    shard_group = self.sharding_strategy ~= 'NO_SHARD' and self.shard_group or nil,
    keep_low_precision_grads = self.mixed_precision.keep_low_precision_grads,
    offload_params = self.cpu_offload.offload_params,
  }
end

--- Called by the plan: make the unit, if there is to be one. Changes nothing else but the draft.
---@param draft ms.fsdp.Draft
function State:_make_unit(draft)
  draft.watched = watch.of(draft.modules)
  if #draft.tensors == 0 then
    return
  end
  init_params(self.param_init_fn, draft.tensors, draft.holders, self._initialised)
  warn_of_gradients(draft.tensors, draft.names, self.process_group)
  draft.shapes, draft.index_of, draft.holder = {}, {}, runtime.unit_holder()
  for i, tensor in ipairs(draft.tensors) do
    draft.shapes[i] = parameter.shape(tensor)
    draft.index_of[parameter.key(tensor)] = i
  end
  runtime.unit(draft.holder, self.process_group, draft.name, unit_options(self), draft.tensors,
    draft.names)
end

--- Called by the plan: what it must know of the unit, made or not; nil where there is to be none.
---@param draft ms.fsdp.Draft
function State:_group(draft)
  local unit = self._unit
  if unit then
    return runtime.group_of(unit)
  elseif #draft.tensors > 0 then
    return runtime.group(self.process_group, draft.name, unit_options(self), draft.tensors,
      draft.names)
  end
end

--- Called by the plan after that, whatever ended it: what was made is this instance's, and modules
--- that it holds parameters of take no other modules and no new parameters.
---@param draft ms.fsdp.Draft
function State:_seal(draft)
  local unit = draft.holder and runtime.held(draft.holder)
  if not draft.watched or #draft.tensors > 0 and not unit then
    return
  elseif unit then
    for _, tensor in ipairs(draft.tensors) do
      parameter.manage(tensor, self)
    end
    self._tensors = draft.tensors
    self._shapes = draft.shapes
    self._index_of = draft.index_of
    self._shared = draft.shared
    self._unit_holder = draft.holder
    self._unit = unit
  end
  for _, module in ipairs(draft.modules) do
    rawset(module, '_sealed', sealed)
  end
  rawset(self.face, '_sealed', sealed)
  self._watched = draft.watched
  self._planned = true
end

--- What parameters() shows in place of the unit's parameters: nil with use_orig_params = true,
--- without a unit, and inside summon_full_params.
---@param always? boolean  with use_orig_params = true as well
---@return ms.Tensor?
function State:_flat_parameter(always)
  local unit, tree = self._unit, self._tree
  if not unit or self.use_orig_params and not always
    or tree and tree.ready and runtime.summoned(tree.handle) then
    return nil
  end
  local flat = self._flat
  if not flat then
    flat = scope.keep(runtime.flat(unit))
    self._flat = flat
    parameter.stands_for(flat, self)
  end
  return flat
end

--- The shape of an original parameter of its unit, whatever the handle shows.
---@param tensor ms.Tensor
---@return integer[]?
function State:_whole_shape(tensor)
  return self._shapes[self._index_of[parameter.key(tensor)]]
end

--- The original parameters of its unit.
---@return ms.Tensor[]
function State:_managed()
  return self._tensors
end

--- Called by ms.close(), which frees units and trees: a later use is an error.
function State:_close()
  local tree = self._tree or { root = self }
  tree.ready, tree.closed = false, true
  self._tree = tree
  self._unit = nil
  self._flat = nil
end

--- The tree that this instance is part of, made unless there is one. Collective.
---@param alone? boolean  make this instance the root, as a forward does: not the one around it
---@return ms.fsdp.Tree
function State:_lazy_init(alone)
  local tree = self._tree
  plan.check_sealed(self)
  return tree and tree.ready and tree
    or without_jit.run(first_use.ready, self, alone)
end

-- -- forward -------------------------------------------------------------------------------------

local function after_forward(unit, ...)
  runtime.unit_post_forward(unit, forward_values.tensors(...))
  return ...
end

-- The wrapper ignores cast_root_forward_inputs where it is not the root, the composable form does
-- not.
local function casts_inputs(self, unit)
  local precision = self.mixed_precision
  return unit and precision.cast_forward_inputs
    or precision.cast_root_forward_inputs and (self._is_root or self.in_place)
end

local function unit_forward(self, call, ...)
  local unit, dtype = self._unit, self.mixed_precision.param_dtype
  if self.full_precision_in_eval then
    local training = self.face.training
    dtype = training and dtype or nil
    if unit then
      runtime.set_full_precision(unit, not training)
    end
  end
  local casts = dtype and casts_inputs(self, unit)
  watch.check(self._watched)
  if not unit then
    if casts then
      return call(self:wrapped(), forward_values.cast(dtype, select('#', ...), ...))
    end
    return call(self:wrapped(), ...)
  end
  runtime.unit_pre_forward(unit)
  if casts then
    return after_forward(unit,
      call(self:wrapped(), forward_values.cast(dtype, select('#', ...), ...)))
  end
  return after_forward(unit, call(self:wrapped(), ...))
end

local DTYPES = "; the model's mixed_precision has units of several dtypes: classes of modules in "
  .. 'its module_classes_to_ignore compute in f32 with their inputs and results cast, and a unit '
  .. 'with its own mixed_precision casts its inputs to its param_dtype with cast_forward_inputs'

-- An operator that met two dtypes in a model of several.
local function explain_dtypes(tree, err)
  local text = type(err) == 'table' and err.forward ~= nil and tostring(err.message) or ''
  if not (text:find('expected one dtype', 1, true) or text:find('the same dtype', 1, true)) then
    return
  end
  for _, instance in ipairs(tree.instances) do
    if instance.mixed_precision.param_dtype and not err.message:find(DTYPES, 1, true) then
      err.message = err.message .. DTYPES
    end
  end
end

local function end_forward(tree, ok, err)
  if not tree.running then
    return
  elseif not ok then
    explain_dtypes(tree, err)
    runtime.reset(tree.handle, err)
  end
  runtime.hide_shards(tree.handle, false)
  tree.running = false
end

local function close_root(self, tree, ...)
  if self._is_root then
    runtime.tree_post_forward(tree.handle)
  end
  return ...
end

-- Before a backward: units that stay unsharded after their forward would not see another value.
local function check_fields(tree)
  for _, instance in ipairs(tree.instances) do
    local strategy = instance.sharding_strategy
    local keeps = instance._is_root or strategy ~= 'FULL_SHARD' and strategy ~= 'HYBRID_SHARD'
    local field = watch.replaced(instance._watched)
    if field and keeps then
      errors.raise('AssertionError', 'FSDP does not support changing the parameters between '
        .. "forward and backward: '%s' was replaced", field)
    elseif field then
      watch.check(instance._watched)
    end
  end
end

local function outermost_forward(self, tree, call, ...)
  if not tree.outer then
    check.batch(self.process_group, samples.group_of((...)))
  end
  tree.running = true -- an error from here on is one of this forward
  for _, instance in ipairs(tree.instances) do
    watch.check(instance._watched)
    buffers.cast(instance)
  end
  graph.before_backward(tree, check_fields)
  runtime.tree_pre_forward(tree.handle)
  runtime.hide_shards(tree.handle, true)
  return close_root(self, tree, unit_forward(self, call, ...))
end

--- Run `call(module, ...)` as a forward of the module: gather its unit around it, and run the tree
--- when this is the outermost forward.
---@param call fun(module: ms.nn.Module, ...): ...
---@return ...
function State:forward(call, ...)
  local tree = self._tree or self:_lazy_init(true)
  if tree.running then
    return unit_forward(self, call, ...)
  elseif not tree.ready then
    self:_lazy_init(true)
  end
  return finally.run(end_forward, tree, outermost_forward, self, tree, call, ...)
end

return State
