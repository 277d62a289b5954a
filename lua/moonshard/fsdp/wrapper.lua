--- FSDP(module, options): the same module, its parameters sharded over ranks.
---
--- An instance groups the parameters below it that no nested instance takes into one unit, which is
--- gathered around its forward and backward. The root owns the tree of all units below: it is the
--- instance that the first forward is called on, or the outermost one, where anything else comes
--- first. Paths do not show the wrapper, and reading a field it does not have reads the wrapped
--- module's: model.wte, model:generate(...).

local Module = require 'moonshard.nn.module'
local ModuleDict = require 'moonshard.nn.module_dict'
local ModuleList = require 'moonshard.nn.module_list'
local agree = require 'moonshard.fsdp.agree'
local arguments = require 'moonshard_ffi.arguments'
local check = require 'moonshard.fsdp.check'
local clip = require 'moonshard.optim.clip'
local dist = require 'moonshard.dist'
local errors = require 'moonshard.internal.errors'
local figures = require 'moonshard.internal.figures'
local first_use = require 'moonshard.fsdp.first_use'
local forward_values = require 'moonshard.fsdp.forward_values'
local graph = require 'moonshard.internal.graph'
local guard = require 'moonshard.internal.guard'
local ignored = require 'moonshard.fsdp.ignored'
local once = require 'moonshard.internal.once'
local options = require 'moonshard.fsdp.options'
local parameter = require 'moonshard_ffi.parameter'
local plan = require 'moonshard.fsdp.plan'
local ShardedTensor = require 'moonshard.fsdp.sharded_tensor'
local runtime = require 'moonshard_ffi.fsdp'
local samples = require 'moonshard.internal.samples'
local scope = require 'moonshard.internal.scope'
local state_dict_type = require 'moonshard.fsdp.state_dict_type'
local summon_full_params = require 'moonshard.fsdp.summon'
local naming = require 'moonshard.internal.naming'
local util = require 'moonshard.internal.util'
local watch = require 'moonshard.fsdp.watch'
local wrap = require 'moonshard.fsdp.wrap'
local module_tree = require 'moonshard.nn.tree'

local as_plan = figures 'plan()'

---@class ms.fsdp.FSDP: ms.nn.Module
---@field module ms.nn.Module  what is wrapped
---@field sharding_strategy string
---@field backward_prefetch string
---@field forward_prefetch boolean
---@field cpu_offload { offload_params: boolean }
---@field mixed_precision ms.fsdp.MixedPrecision
---@field use_orig_params boolean
---@field rank integer
---@field world_size integer
---@overload fun(module: ms.nn.Module, opts?: ms.fsdp.Options): ms.fsdp.FSDP
local FSDP = Module.extend('fsdp.FSDP')

FSDP._is_fsdp = true
FSDP._transparent = true

-- Fields of the class, then those of the wrapped module; private ones are never the latter's.
function FSDP.__index(self, name)
  local value = FSDP[name]
  if value ~= nil then
    return value
  end
  if type(name) == 'string' and name:byte() == 95 then -- '_'
    return nil
  end
  local wrapped = rawget(self, '_fsdp_wrapped_module')
  if name == 'module' then
    return wrapped
  end
  return wrapped and wrapped[name]
end

-- What its fields show of the wrapped module can be assigned through them, too.
function FSDP.__newindex(self, name, value)
  local wrapped = rawget(self, '_fsdp_wrapped_module')
  if not wrapped or type(name) == 'string' and name:byte() == 95 then
    rawset(self, name, value)
  elseif name == 'module' then
    errors.raise('KeyError', 'the module that FSDP wraps cannot be replaced: wrap the other one')
  else
    wrapped[name] = value
  end
end

-- -- wrapping ------------------------------------------------------------------------------------

-- Options that came from the root through a policy are complete but for what the policy overrode.
local function inner(module, opts, ignored_set)
  return FSDP(module, util.merged(opts, { _ignored = ignored_set }))
end

-- What the policy chooses below, and whether the rest can be one unit. Gives what is ignored.
local function wrap_below(module, opts, inherited)
  local ignored_set = inherited or ignored.of(module, opts)
  if not inherited then
    for name, below in module:named_modules() do
      if below._is_fsdp then
        check.one_group(opts.process_group, below.process_group, name)
      end
    end
  end
  if opts.auto_wrap_policy then
    wrap.auto(module, opts, ignored_set, function(child, own)
      return inner(child, own, ignored_set)
    end)
  end
  plan.validate(module, ignored_set, opts.use_orig_params)
  return ignored_set
end

---@param module ms.nn.Module
---@param opts? ms.fsdp.Options
function FSDP:init(module, opts)
  if not util.is(module, Module) then
    errors.raise('TypeError', 'FSDP wraps a module, got %s', arguments.noun(module))
  end
  local inherited = type(opts) == 'table' and opts._ignored
  if inherited then
    opts = util.merged(opts)
    opts._ignored = nil
  end
  opts = options.normalised(opts)
  if not inherited then
    options.warn(opts)
  end
  if util.is_any(module, { ModuleList, ModuleDict }) and module.forward == Module.forward then
    errors.warn('UserWarning', 'FSDP will not all-gather parameters for containers that do not '
      .. 'implement forward', opts.process_group)
  end
  local ignored_set = once.run('wrapping', wrap_below, module, opts, inherited)

  for _, name in ipairs {
    'sharding_strategy', 'backward_prefetch', 'forward_prefetch', 'mixed_precision',
    'use_orig_params', 'limit_all_gathers', 'process_group', 'cpu_offload', 'device_id',
  } do
    rawset(self, name, opts[name])
  end
  rawset(self, 'full_precision_in_eval', options.full_precision_in_eval())
  rawset(self, '_hold', runtime.hold(opts.process_group))
  rawset(self, 'rank', (runtime.place(opts.process_group)))
  rawset(self, 'world_size', (select(2, runtime.place(opts.process_group))))
  rawset(self, 'training', module.training)
  rawset(self, '_ignored', ignored_set)
  rawset(self, '_owner', rawget(module, '_owner'))
  rawset(module, '_owner', nil)
  self:child('_fsdp_wrapped_module', module)
  while module._is_fsdp do
    module = module.module
  end
  for _, entry in ipairs(module._children) do
    module_tree.place(module, entry, entry.module)
  end
end

-- -- units ---------------------------------------------------------------------------------------

function FSDP:_prepare_self()
  if not rawget(self, '_planned') then
    plan.seal(module_tree.outermost(self))
    if not rawget(self, '_planned') then -- never put in the wrapped module's place: stands alone
      rawset(self, '_owner', nil)
      plan.seal(self)
    end
  end
end

--- Where its unit stands now. (What ranks tell each other has the name of the time it was made:
--- they may learn at different times of a larger model around it.)
function FSDP:_unit_name()
  local path = self:path()
  return path == '' and self.module._name or path
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
  }
end

--- Called by the plan: make the unit, if there is to be one. Changes nothing else but the draft.
---@param draft ms.fsdp.Draft
function FSDP:_make_unit(draft)
  draft.watched = watch.of(draft.modules)
  if #draft.tensors == 0 then
    return
  end
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
function FSDP:_group(draft)
  local unit = rawget(self, '_unit')
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
function FSDP:_seal(draft)
  local unit = draft.holder and runtime.held(draft.holder)
  if not draft.watched or #draft.tensors > 0 and not unit then
    return
  elseif unit then
    for _, tensor in ipairs(draft.tensors) do
      parameter.manage(tensor, self)
    end
    rawset(self, '_tensors', draft.tensors)
    rawset(self, '_shapes', draft.shapes)
    rawset(self, '_index_of', draft.index_of)
    rawset(self, '_shared', draft.shared)
    rawset(self, '_unit_holder', draft.holder)
    rawset(self, '_unit', unit)
  end
  for _, module in ipairs(draft.modules) do
    rawset(module, '_planned', true)
  end
  rawset(self, '_watched', draft.watched)
  rawset(self, '_planned', true)
end

--- What parameters() shows in place of the unit's parameters: nil with use_orig_params = true,
--- without a unit, and inside summon_full_params.
---@param always? boolean  with use_orig_params = true as well
---@return ms.Tensor?
function FSDP:_flat_parameter(always)
  local unit, tree = rawget(self, '_unit'), rawget(self, '_tree')
  if not unit or self.use_orig_params and not always
    or tree and tree.ready and runtime.summoned(tree.handle) then
    return nil
  end
  local flat = rawget(self, '_flat')
  if not flat then
    flat = scope.keep(runtime.flat(unit))
    rawset(self, '_flat', flat)
    parameter.stands_for(flat, self)
  end
  return flat
end

--- The original parameters of its unit.
---@return ms.Tensor[]
function FSDP:_managed()
  return self._tensors
end

--- Called by ms.close(), which frees units and trees: a later use is an error.
function FSDP:_close()
  local tree = rawget(self, '_tree') or { root = self }
  tree.ready, tree.closed = false, true
  rawset(self, '_tree', tree)
  rawset(self, '_unit', nil)
  rawset(self, '_flat', nil)
end

--- The tree that this instance is part of, made unless there is one. Collective.
---@param alone? boolean  make this instance the root, as a forward does: not the one around it
---@return ms.fsdp.Tree
function FSDP:_lazy_init(alone)
  local tree = rawget(self, '_tree')
  return tree and tree.ready and tree
    or once.run('the first use of FSDP', first_use.ready, self, alone)
end

-- -- forward -------------------------------------------------------------------------------------

local function after_forward(unit, ...)
  runtime.unit_post_forward(unit, forward_values.tensors(...))
  return ...
end

function FSDP:_unit_forward(...)
  local unit, precision = rawget(self, '_unit'), self.mixed_precision
  local dtype = precision.param_dtype
  if self.full_precision_in_eval then
    dtype = self.training and dtype or nil
    if unit then
      runtime.set_full_precision(unit, not self.training)
    end
  end
  local casts = dtype and (unit and precision.cast_forward_inputs
    or precision.cast_root_forward_inputs and self._is_root)
  watch.check(self._watched)
  if not unit then
    if casts then
      return self._fsdp_wrapped_module(forward_values.cast(dtype, select('#', ...), ...))
    end
    return self._fsdp_wrapped_module(...)
  end
  runtime.unit_pre_forward(unit)
  if casts then
    return after_forward(unit,
      self._fsdp_wrapped_module(forward_values.cast(dtype, select('#', ...), ...)))
  end
  return after_forward(unit, self._fsdp_wrapped_module(...))
end

local DTYPES = "; the model's mixed_precision has units of several dtypes: classes of modules in "
  .. 'its module_classes_to_ignore compute in f32 with their inputs and results cast, and a unit '
  .. 'with its own mixed_precision casts its inputs to its param_dtype with cast_forward_inputs'

-- An operator that met two dtypes in a model of several.
local function explain_dtypes(tree, err)
  if type(err) ~= 'table' or err.kind ~= 'TypeError' or err.forward == nil
    or not tostring(err.message):find('expected one dtype', 1, true) then
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
    local keeps = instance.sharding_strategy ~= 'FULL_SHARD' or instance._is_root
    local field = watch.replaced(instance._watched)
    if field and keeps then
      errors.raise('AssertionError', 'FSDP does not support changing the parameters between '
        .. "forward and backward: '%s' was replaced", field)
    elseif field then
      watch.check(instance._watched)
    end
  end
end

local function outermost_forward(self, tree, ...)
  check.batch(self.process_group, samples.group_of((...)))
  tree.running = true -- an error from here on is one of this forward
  for _, instance in ipairs(tree.instances) do
    watch.check(instance._watched)
  end
  graph.before_backward(tree, check_fields)
  runtime.tree_pre_forward(tree.handle)
  runtime.hide_shards(tree.handle, true)
  return close_root(self, tree, self:_unit_forward(...))
end

function FSDP:forward(...)
  local tree = type(self) == 'table'
    and (rawget(self, '_tree') or self._is_fsdp and self:_lazy_init(true))
  if not tree then
    errors.raise('TypeError', "FSDP:forward: 'self' is %s, expected what FSDP() returned; write "
      .. "model(x) or model:forward(x), and for the wrapped module's own forward "
      .. 'model.module.forward', arguments.noun(self))
  end
  if tree.running then
    return self:_unit_forward(...)
  elseif not tree.ready then
    self:_lazy_init(true)
  end
  return guard.run('a forward', end_forward, tree, outermost_forward, self, tree, ...)
end

-- -- what one does with the root -----------------------------------------------------------------

local function restore_sync(before, ok, err)
  local tree = before.tree
  if not ok then
    runtime.failed(tree.root.process_group, err)
  end
  if runtime.sync(tree.handle) ~= before.sync then
    runtime.set_sync(tree.handle, before.sync)
  end
end

local function unsynchronised(tree, fn, ...)
  runtime.set_sync(tree.handle, false)
  return fn(...)
end

--- Run `fn(...)` without reducing gradients: they accumulate, and the next backward outside reduces
--- their sum. Root only.
---@param fn fun(...): ...
---@return ...
function FSDP:no_sync(fn, ...)
  arguments.fn('no_sync', 'fn', fn)
  local tree = self:_lazy_init(true)
  if not self._is_root then
    errors.raise('RuntimeError', '`no_sync()` on inner FSDP instances is not supported. Please '
      .. 'call `no_sync()` on root FSDP module.')
  elseif tree.running then
    errors.raise('AssertionError', 'no_sync() cannot begin during forward')
  end
  local before = { tree = tree, sync = runtime.sync(tree.handle) }
  return guard.run('no_sync', restore_sync, before, unsynchronised, tree, fn, ...)
end

-- In order of registration, plain ones among them, whatever the units.
local function all_params(tree)
  local out = {}
  for i, p in ipairs(module_tree.params(tree.root)) do
    out[i] = p.tensor
  end
  return out
end

local function has_grad(params)
  for _, tensor in ipairs(params) do
    if parameter.has_grad(tensor) then
      return true
    end
  end
  return false
end

--- Scale all gradients by min(1, max_norm / (total + 1e-6)), the same on every rank. Root only,
--- collective. Gradients of parameters that no instance manages (ignored ones) count once where all
--- ranks have equal ones, else with the mean of their squares over the ranks.
--- RuntimeError on all ranks with `error_if_nonfinite` when the total is not finite: nothing is
--- scaled.
---@param max_norm number
---@param norm_type? number  0 or more, or math.huge (default 2)
---@param opts? { error_if_nonfinite?: boolean }  default false
---@return ms.Tensor  (), the total norm before, equal on all ranks, in the promoted dtype of the
--- gradients (f32 where no rank has one)
function FSDP:clip_grad_norm_(max_norm, norm_type, opts)
  arguments.number('clip_grad_norm_', 'max_norm', max_norm)
  norm_type = arguments.number('clip_grad_norm_', 'norm_type', norm_type, 2)
  local strict = clip.is_strict(opts)
  local tree = self:_lazy_init()
  if not self._is_root then
    errors.raise('RuntimeError',
      '`clip_grad_norm_()` should only be called on the root FSDP instance')
  end
  local params = all_params(tree)
  local total = runtime.clip(tree.handle, params, max_norm, norm_type, strict)
  if not has_grad(params) and total:item() == 0 then
    errors.warn('UserWarning', ('Called FSDP.clip_grad_norm_() on rank %d with no gradients -- '
      .. 'returning the total norm in the default dtype f32'):format(self.rank), self.process_group)
  end
  return total
end

--- Gather this instance's own parameters and show them until reshard(), until a backward or, with
--- FULL_SHARD, a forward lets them go, or until a step or a load writes them: then they show what
--- this rank holds, as it is now. Collective. Gathers nothing when they are gathered as they are.
function FSDP:unshard()
  self:_lazy_init()
  if rawget(self, '_unit') then
    runtime.unshard(self._unit)
  end
end

--- Let this instance's full parameters go. RuntimeError during its forward or backward.
function FSDP:reshard()
  self:_lazy_init()
  if rawget(self, '_unit') then
    runtime.reshard(self._unit)
  end
end

--- Multiply reduced gradients by this in place of 1 / world size; nil restores that. AssertionError
--- inside a backward that has not reduced all of them.
---@param factor? number  finite, above 0
function FSDP:set_gradient_factor(factor)
  if factor ~= nil then
    arguments.number('set_gradient_factor', 'factor', factor)
    if not (factor > 0 and factor < math.huge) then
      errors.raise('ValueError', "set_gradient_factor: 'factor' is %g, expected a finite number "
        .. 'above 0', factor)
    end
  end
  runtime.set_gradient_factor(self:_lazy_init().handle, factor or 0)
end

--- NotImplementedError: gradients are reduced in one way.
function FSDP:register_comm_hook()
  errors.raise('NotImplementedError', 'communication hooks are not supported yet')
end

--- 16 hexadecimal digits over all full parameters: equal on all ranks, and for every strategy, wrap
--- policy and world size when the parameters are. An ignored one counts once where all ranks have
--- equal values, else with every rank's: nobody reduces its gradients. Collective.
---@return string
function FSDP:hash()
  local tree = self:_lazy_init()
  return runtime.hash(tree.handle, all_params(tree))
end

--- What each unit below holds, in module order.
---@return ms.UnitInfo[]  `shared` lists tied parameters and the places they stand in
function FSDP:units()
  self:_prepare()
  local out, instances = {}, plan.instances(self)
  local names = plan.unit_names(instances)
  for i, instance in ipairs(instances) do
    local unit = rawget(instance, '_unit')
    if unit then
      local info = runtime.info(unit)
      info.name, info.shared = names[i], instance._shared
      out[#out + 1] = info
    end
  end
  return out
end

--- What this rank's shard of the unit's flat parameter holds: parallel lists over the parameters of
--- which it has elements. Offsets are the first and the last element in the parameter, from 0.
---@return { param_names: string[], param_shapes: integer[][], param_numels: integer[],
---  param_offsets: integer[][] }
function FSDP:shard_metadata()
  self:_prepare()
  local out = { param_names = {}, param_shapes = {}, param_numels = {}, param_offsets = {} }
  for _, entry in ipairs(module_tree.params(self)) do
    local name, p = entry.name, entry.tensor
    local _, extent = parameter.part(p)
    if parameter.manager(p) == self and extent.numel > 0 then
      local numel = 1
      for _, size in ipairs(extent.shape) do
        numel = numel * size
      end
      table.insert(out.param_names, name)
      table.insert(out.param_shapes, extent.shape)
      table.insert(out.param_numels, numel)
      table.insert(out.param_offsets, { extent.start, extent.start + extent.numel - 1 })
    end
  end
  return out
end

--- Bytes this rank will hold for parameters, gradients, optimizer states and slots when a step is
--- `micro_batches` backwards (default: one) of which all but the last run in no_sync. Of the whole
--- model, whichever instance is asked. Frozen parameters count as they are now. Collective the
--- first time, when the model takes its memory; not so a dry run, which is numbers alone: before
--- the first use it takes no memory, makes no units and asks no rank (`same_numerics` is false), so
--- the model may still be changed, or wrapped in another. With a fake group as `process_group` a
--- model of any size is planned for any number of ranks.
---@param opts? { micro_batches?: integer, dry_run?: boolean }
---@return ms.Plan
function FSDP:plan(opts)
  opts = errors.options('plan', opts, { 'micro_batches', 'dry_run' })
  local micro_batches = arguments.whole('plan', 'micro_batches', opts.micro_batches, 1, 1)
  if arguments.flag('plan', 'dry_run', opts.dry_run, false) then
    return as_plan(once.run('a dry run of FSDP', first_use.dry_run, self, micro_batches))
  end
  return as_plan(runtime.plan(self:_lazy_init().handle, micro_batches, false))
end

--- Collectives this rank has called in the instance's group so far, by kind.
---@return table<string, integer>
function FSDP:collectives()
  return dist.counts(self.process_group)
end

-- -- full values ---------------------------------------------------------------------------------

--- Full copies of all parameters this instance manages, by parameter.key: views of one gathered
--- tensor. Collective. (state dicts ask)
---@param rank0_only? boolean  none on other ranks
---@return table<integer, ms.Tensor>
function FSDP:_full_values(rank0_only)
  if runtime.is_fake(self.process_group) then
    errors.raise('RuntimeError', 'state_dict: the model is sharded over a fake group, whose other '
      .. 'ranks are not there to give their parts')
  end
  local flat, starts = runtime.gather_all(self._unit, #self._shapes)
  local values = {}
  if not rank0_only or self.rank == 0 then
    for key, i in next, self._index_of do
      local shape = self._shapes[i]
      values[key] = flat:narrow(1, starts[i], util.product(shape)):reshape(shape)
    end
  end
  flat:release()
  return values
end

--- What a state dict has of a parameter of its unit. Collective for a full one.
---@param gathered table  full values by instance, so far
---@param rank0_only boolean  full values on rank 0 alone
---@return ms.Tensor|ms.fsdp.ShardedTensor|nil
function FSDP:_state_value(tensor, gathered, rank0_only)
  local key, settings = parameter.key(tensor), state_dict_type.of(self)
  if settings.state_dict_type == 'SHARDED_STATE_DICT' and self.sharding_strategy ~= 'NO_SHARD' then
    local part, extent = parameter.part(tensor)
    return ShardedTensor(extent.shape, extent.dtype, extent.start + 1, part and part:clone(),
      self.process_group)
  elseif settings.state_dict_type ~= 'FULL_STATE_DICT' and not gathered[self] then
    errors.warn('UserWarning', 'When using ``NO_SHARD`` for ``ShardingStrategy``, full_state_dict '
      .. 'will be returned.', self.process_group)
  end
  if not gathered[self] then
    gathered[self] = self:_full_values(rank0_only or settings.state_dict_config.rank0_only)
  end
  return gathered[self][key]
end

--- The flat parameter, where state dicts have it in place of the parameters.
---@return ms.Tensor?
function FSDP:_flat_in_state_dict()
  return state_dict_type.of(self).state_dict_type == 'LOCAL_STATE_DICT'
    and self.sharding_strategy ~= 'NO_SHARD' and self:_flat_parameter(true) or nil
end

--- What a state dict of type LOCAL_STATE_DICT has of its unit: the unit's own memory.
---@return ms.fsdp.ShardedTensor
function FSDP:_local_state()
  local flat, info = self:_flat_parameter(true), runtime.info(self._unit)
  local total, first = runtime.flat_numel(self._unit), self.rank * info.shard_numel
  local length = math.max(0, math.min(info.shard_numel, total - first))
  return ShardedTensor({ total }, flat:dtype(), first + 1,
    length > 0 and flat:detach():narrow(1, 1, length) or nil, self.process_group)
end

--- Either all ranks load, equal values, or none. Collective. (state dicts ask)
function FSDP:_agree_on_load(...)
  local tree = rawget(self, '_tree')
  if tree and tree.ready and runtime.summoned(tree.handle) then
    -- before anything is loaded that no unit holds
    errors.raise('AssertionError', 'load_state_dict inside summon_full_params')
  end
  agree.on_load(self.process_group, ...)
end

--- Prepare to load this rank's elements of a parameter of the unit, or of its flat parameter.
---@param value ms.fsdp.ShardedTensor
---@return fun() write
function FSDP:_prepare_part(name, tensor, value)
  local into, start
  if rawequal(tensor, self._flat) then
    local own = self:_local_state()
    into, start = own.local_tensor, own.start
  else
    local part, extent = parameter.part(tensor)
    into, start = part, extent.start + 1
  end
  local length = into and into:numel() or 0
  if value.length ~= length or length > 0 and value.start ~= start then
    errors.raise('ValueError', "load_state_dict: '%s' has elements %d to %d here, expected %d to "
      .. '%d; of another sharding load value:full_tensor()', name, value.start,
      value.start + value.length - 1, start, start + length - 1)
  end
  return function()
    if into then
      into:copy_(value.local_tensor)
      parameter.touch(tensor)
    end
  end
end

--- Take this rank's elements of full values.
function FSDP:_load_value(tensor, value)
  runtime.load(self._unit, self._index_of[parameter.key(tensor)], value)
end

---@param opts? { rank0_only?: boolean }
---@return ms.StateDict
function FSDP:state_dict(opts)
  self:_lazy_init()
  return Module.state_dict(self, opts)
end

--- As nn.Module's, with full parameters: what `fn` writes into them is kept. Collective.
---@param fn fun(module: ms.nn.Module)
---@return self
function FSDP:apply(fn)
  if runtime.summoned(self:_lazy_init().handle) then -- by the instance around this one
    return Module.apply(self, fn)
  end
  return summon_full_params(self, nil, Module.apply, self, fn)
end

function FSDP:extra_repr()
  return self.sharding_strategy
end

return naming.methods(FSDP)
