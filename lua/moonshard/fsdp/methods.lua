--- Methods of sharded models: of wrapped modules, and of the states of modules sharded in place.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local capture = require 'moonshard.base.capture'
local clip = require 'moonshard.optim.clip'
local dist = require 'moonshard.dist'
local errors = require 'moonshard.base.errors'
local first_use = require 'moonshard.fsdp.first_use'
local finally = require 'moonshard.base.finally'
local module_tree = require 'moonshard.nn.tree'
local without_jit = require 'moonshard.base.without_jit'
local parameter = require 'moonshard_ffi.parameter'
local plan = require 'moonshard.fsdp.plan'
local runtime = require 'moonshard_ffi.fsdp'


---@class ms.fsdp.Methods
local methods = {}

-- units: those of a model with their settings before, which may differ: fully_shard sets each.
local function enter_no_sync(units)
  for _, its in ipairs(units) do
    its.sync = B.C.ms_fsdp_unit_sync(its.unit)
  end
  units.entered = true
  for _, its in ipairs(units) do
    B.calls.fsdp_unit_set_sync(its.unit, false)
  end
end

local function leave_no_sync(units)
  units.entered = false
  for _, its in ipairs(units) do
    B.calls.fsdp_unit_set_sync(its.unit, its.sync)
  end
end

local function end_no_sync(units, ok, err)
  if ok then
    capture.step('fsdp.leave_no_sync', leave_no_sync, units)
  elseif units.entered then
    runtime.failed(units.group, err)
    leave_no_sync(units)
  end
end

local function unsynchronised(units, fn, ...)
  capture.on_failure(end_no_sync, units)
  capture.step('fsdp.enter_no_sync', enter_no_sync, units)
  return fn(...)
end

--- Run `fn(...)` without reducing gradients: they accumulate, and the next backward outside reduces
--- their sum. Root only.
---@param fn fun(...): ...
---@return ...
function methods:no_sync(fn, ...)
  arguments.fn('no_sync', 'fn', fn)
  local tree = self:_lazy_init(true)
  if not self._is_root then
    errors.raise('RuntimeError', '`no_sync()` on inner FSDP instances is not supported. Please '
      .. 'call `no_sync()` on root FSDP module.')
  elseif tree.running then
    errors.raise('AssertionError', 'no_sync() cannot begin during forward')
  end
  local units = { group = tree.root.process_group }
  for _, its in ipairs(first_use.trees(tree)) do
    for _, instance in ipairs(its.instances) do
      units[#units + 1] = instance._unit and { unit = instance._unit }
    end
  end
  return finally.run(end_no_sync, units, unsynchronised, units, fn, ...)
end

-- In order of registration, plain ones among them, whatever the units.
local function all_params(tree)
  local out = {}
  for i, p in ipairs(module_tree.params(tree.root.outer_module)) do
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

local function clip_grad_norm(self, max_norm, how)
  local tree = self:_lazy_init()
  local params = all_params(tree)
  local total = clip.sharded(tree, params, max_norm, how.norm_type, how.strict)
  if not has_grad(params) and total:item() == 0 then
    errors.warn('UserWarning', ('Called FSDP.clip_grad_norm_() on rank %d with no gradients -- '
      .. 'returning the total norm in the default dtype f32'):format(self.rank), self.process_group)
  end
  return total
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
function methods:clip_grad_norm_(max_norm, norm_type, opts)
  arguments.number('clip_grad_norm_', 'max_norm', max_norm)
  norm_type = arguments.number('clip_grad_norm_', 'norm_type', norm_type, 2)
  local strict = clip.is_strict(opts)
  self:_lazy_init()
  if not self._is_root then
    errors.raise('RuntimeError',
      '`clip_grad_norm_()` should only be called on the root FSDP instance')
  end
  return capture.step('clip_grad_norm_', clip_grad_norm, self, max_norm,
    { norm_type = norm_type, strict = strict })
end

--- Gather this instance's own parameters and show them until reshard(), until a backward or, with
--- FULL_SHARD, a forward reshards them, or until a step or a load writes them: then they show this
--- rank's shard. Collective. Does nothing if they are gathered and unchanged.
function methods:unshard()
  capture.breaks 'a unit is gathered by the script'
  self:_lazy_init()
  if self._unit then
    B.calls.fsdp_unit_unshard(self._unit)
  end
end

--- Free this instance's full parameters. RuntimeError during its forward or backward.
function methods:reshard()
  capture.breaks 'a unit is resharded by the script'
  self:_lazy_init()
  if self._unit then
    B.calls.fsdp_unit_reshard(self._unit)
  end
end

--- Multiply reduced gradients by this in place of 1 / world size, those of nested instances over
--- other groups, too; nil restores that. AssertionError inside a backward that has not reduced all
--- of them.
---@param factor? number  finite, above 0
function methods:set_gradient_factor(factor)
  if factor ~= nil then
    arguments.number('set_gradient_factor', 'factor', factor)
    if not (factor > 0 and factor < math.huge) then
      errors.raise('ValueError', "set_gradient_factor: 'factor' is %g, expected a finite number "
        .. 'above 0', factor)
    end
  end
  for _, tree in ipairs(first_use.trees(self:_lazy_init())) do
    B.calls.fsdp_tree_set_gradient_factor(tree.handle, factor or 0)
  end
end

--- Let a function reduce the gradients in place of the runtime. Root only, once. With NO_SHARD it
--- is hook(state, grad), which overwrites `grad` with the reduced gradient; otherwise it is
--- hook(state, grad, out), which writes this rank's shard of it to `out` (n), `grad` being (W n).
--- Division by the number of ranks is left to the hook. fsdp.comm_hooks has some. RuntimeError in
--- backward if it leaves `out` unwritten.
---@param state any  the hook's first argument
---@param hook fun(state: any, grad: ms.Tensor, out?: ms.Tensor)
function methods:register_comm_hook(state, hook)
  if type(hook) ~= 'function' then
    errors.raise('ValueError', 'The communication hook must be callable but got %s',
      arguments.noun(hook))
  end
  local tree = self:_lazy_init()
  if not self._is_root then
    errors.raise('AssertionError', 'register_comm_hook can only be called on a root instance.')
  elseif self.shard_group ~= self.process_group then
    errors.raise('AssertionError', 'Communication hook is not supported for hybrid strategies: %s',
      self.sharding_strategy)
  end
  local trees = first_use.trees(tree)
  for _, its in ipairs(trees) do
    if its.root.process_group ~= self.process_group then
      errors.raise('NotImplementedError', "register_comm_hook: '%s' is over other ranks than the "
        .. 'root, for which the hook would have to reduce, too; leave the hook out, or wrap it '
        .. 'without a process_group of its own', its.root.outer_module:path())
    end
  end
  local function reduce(grad, out) hook(state, grad, out) end
  for _, its in ipairs(trees) do
    first_use.set_comm_hook(its, reduce)
  end
  self._comm_hook = reduce
end

--- 16 hexadecimal digits over all full parameters: equal on all ranks, and for every strategy,
--- wrap policy and world size when the parameters are. An ignored one counts once if all ranks have
--- equal values, else once per rank, since its gradients are not reduced. Collective. ValueError
--- for a model whose parameters are in several trees: instances over other groups of ranks have a
--- hash of their own.
---@return string
function methods:hash()
  local tree = self:_lazy_init()
  local holder, params = nil, all_params(tree)
  for _, tensor in ipairs(params) do
    local manager = parameter.manager(tensor)
    local its = manager and manager:_lazy_init()
    if its and holder and its ~= holder then
      errors.raise('ValueError', "hash: '%s' and '%s' are sharded apart, as instances over other "
        .. 'ranks or of an earlier root; ask each for its hash', holder.root:_unit_name(),
        its.root:_unit_name())
    end
    holder = its or holder
  end
  return runtime.hash((holder or tree).handle, params)
end

--- Layout and state of each unit below, in module order.
---@return ms.UnitInfo[]  `shared` lists tied parameters and their paths
function methods:units()
  self.outer_module:_prepare()
  local out, instances = {}, plan.instances(self)
  local names = plan.unit_names(instances)
  for i, instance in ipairs(instances) do
    local unit = instance._unit
    if unit then
      local info = runtime.info(unit)
      info.name, info.shared = names[i], instance._shared
      info.strategy = instance.sharding_strategy
      out[#out + 1] = info
    end
  end
  return out
end

--- The contents of this rank's shard of the unit's flat parameter: parallel lists over the
--- parameters of which it has elements. Offsets are the first and the last element in the
--- parameter, from 0.
---@return { param_names: string[], param_shapes: integer[][], param_numels: integer[],
---  param_offsets: integer[][] }
function methods:shard_metadata()
  self.outer_module:_prepare()
  local out = { param_names = {}, param_shapes = {}, param_numels = {}, param_offsets = {} }
  for _, entry in ipairs(module_tree.params(self.outer_module)) do
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

-- The plan of several trees.
local function sum_of(plans)
  local sum = plans[1]
  for i = 2, #plans do
    for name, value in next, plans[i] do
      if type(value) == 'boolean' then
        sum[name] = sum[name] and value
      else
        sum[name] = sum[name] + value
      end
    end
  end
  return sum
end

-- Adds what forward and backward of compiled modules take besides.
local function with_compiled(self, sum)
  for _, module in ipairs(self.outer_module:modules()) do
    local frame = rawget(module, '_compiled')
    if frame then
      sum.activations = (sum.activations or 0) + frame:planned_peak()
    end
  end
  return sum
end

--- Bytes of this rank for parameters, gradients, optimizer states and slots when a step is
--- `micro_batches` backwards (default: one) of which all but the last run in no_sync. The plan is
--- of the whole model, for every instance. Frozen parameters count as they are now. The first call
--- allocates the model's memory and is collective. A dry run only computes the numbers: before the
--- first use it takes no memory, makes no units and does not communicate (`same_numerics` is
--- false), so the model may still be changed, or wrapped in another. With a fake group as
--- `process_group` a model of any size is planned for any number of ranks.
---@param opts? { micro_batches?: integer, dry_run?: boolean }
---@return ms.Plan
function methods:plan(opts)
  opts = errors.options('plan', opts, { 'micro_batches', 'dry_run' })
  local micro_batches = arguments.whole('plan', 'micro_batches', opts.micro_batches, 1, 1)
  if arguments.flag('plan', 'dry_run', opts.dry_run, false) then
    return with_compiled(self, sum_of(without_jit.run(first_use.dry_run, self, micro_batches)))
  end
  local plans, top = {}, self:_lazy_init()
  for i, tree in ipairs(first_use.trees(top.outer or top)) do
    plans[i] = runtime.plan(tree.handle, micro_batches, false)
  end
  return with_compiled(self, sum_of(plans))
end

--- Collectives this rank has called in the instance's group so far, by kind.
---@return table<string, integer>
function methods:collectives()
  return dist.counts(self.process_group)
end

return methods
