--- Forwards of sharded modules.

local B = require 'moonshard_ffi'
local capture = require 'moonshard.base.capture'
local buffers = require 'moonshard.fsdp.buffers'
local check = require 'moonshard.fsdp.check'
local errors = require 'moonshard.base.errors'
local forward_values = require 'moonshard.fsdp.forward_values'
local graph = require 'moonshard.base.graph'
local finally = require 'moonshard.base.finally'
local runtime = require 'moonshard_ffi.fsdp'
local samples = require 'moonshard.base.samples'
local watch = require 'moonshard.fsdp.watch'

-- Results of a forward, in the dtype that the state gives them.
local function cast_outputs(self, ...)
  local dtype = self.output_dtype
  if dtype then
    return forward_values.cast(dtype, select('#', ...), ...)
  end
  return ...
end

local function after_forward(unit, ...)
  capture.step('fsdp.leave_unit', runtime.unit_post_forward, unit, forward_values.tensors(...))
  return ...
end

-- The wrapper ignores cast_root_forward_inputs where it is not the root, the composable form does
-- not.
local function casts_inputs(self, unit)
  local precision = self.mixed_precision
  return unit and precision.cast_forward_inputs
    or precision.cast_root_forward_inputs and (self._is_root or self.in_place)
end

-- The module's own forward, with inputs in `dtype` and results in the state's output_dtype.
local function run(self, dtype, call, module, ...)
  if dtype then
    return cast_outputs(self, call(module, forward_values.cast(dtype, select('#', ...), ...)))
  end
  return cast_outputs(self, call(module, ...))
end

local function enter_unit(self)
  local unit = self._unit
  if unit and self.full_precision_in_eval then
    B.calls.fsdp_unit_set_full_precision(unit, not self.outer_module.training)
  end
  watch.check(self._watched)
  if unit then
    B.calls.fsdp_unit_pre_forward(unit)
  end
end

local function unit_forward(self, call, module, ...)
  local unit, dtype = self._unit, self.mixed_precision.param_dtype
  if self.full_precision_in_eval and not self.outer_module.training then
    dtype = nil
  end
  dtype = dtype and casts_inputs(self, unit) and dtype or nil
  capture.step('fsdp.enter_unit', enter_unit, self)
  if not unit then
    return run(self, dtype, call, module, ...)
  end
  return after_forward(unit, run(self, dtype, call, module, ...))
end

-- [Note: groups] Modules of one unit run one after another. The unit is kept from the forward of
-- the first to that of the last, which reshards it by its setting. Each has a pass of its own, so
-- that backward finds the unit from the results of any of them.

-- Let the unit be resharded after forwards again.
local function release(self)
  self._remaining = nil
  B.calls.fsdp_unit_set_reshard_after_forward(self._unit, true)
end

local function enter_group(self, module)
  if not self._remaining and self._unit and self:_reshards(self._is_root) then
    self._remaining = {}
    for _, each in ipairs(self.modules) do
      self._remaining[each] = true
    end
    B.calls.fsdp_unit_set_reshard_after_forward(self._unit, false)
  end
  local remaining = self._remaining
  if remaining then
    remaining[module] = nil
    if next(remaining) == nil then
      release(self)
    end
  end
end

local function group_forward(self, call, module, ...)
  capture.step('fsdp.enter_group', enter_group, self, module)
  return unit_forward(self, call, module, ...)
end

-- End the groups of which not all modules ran.
local function close_groups(tree, ok)
  for _, instance in ipairs(tree.instances) do
    if instance._remaining then
      release(instance)
      if ok then
        B.calls.fsdp_unit_pre_forward(instance._unit)
        runtime.unit_post_forward(instance._unit, {})
      end
    end
  end
end

local DTYPES = "; the model's mixed_precision has units of several dtypes: classes of modules in "
  .. 'its module_classes_to_ignore compute in f32 with their inputs and results cast, and a unit '
  .. 'with its own mixed_precision casts its inputs to its param_dtype with cast_forward_inputs'

local DTYPES_IN_PLACE = "; the model's groups compute in several dtypes: the mp_policy of each "
  .. 'module casts its inputs to param_dtype with cast_forward_inputs, and its results to '
  .. 'output_dtype'

-- An operator that met two dtypes in a model of several.
local function explain_dtypes(tree, err)
  local text = type(err) == 'table' and err.forward ~= nil and tostring(err.message) or ''
  if not (text:find('expected one dtype', 1, true) or text:find('the same dtype', 1, true)) then
    return
  end
  for _, instance in ipairs(tree.instances) do
    local advice = instance.api and DTYPES_IN_PLACE or DTYPES
    if instance.mixed_precision.param_dtype and not err.message:find(advice, 1, true) then
      err.message = err.message .. advice
    end
  end
end

local function show_shards(tree)
  B.C.ms_fsdp_tree_hide_shards(tree.handle, false)
  tree.running = false
end

local function end_forward(tree, ok, err)
  if not tree.running then
    return
  elseif ok then
    capture.step('fsdp.show_shards', show_shards, tree)
    return
  end
  capture.breaks 'a forward failed'
  explain_dtypes(tree, err)
  close_groups(tree, false)
  runtime.reset(tree.handle, err)
  show_shards(tree)
end

local function leave_tree(self, tree)
  close_groups(tree, true)
  if self._is_root then
    B.calls.fsdp_tree_post_forward(tree.handle)
  end
end

local function close_root(self, tree, ...)
  capture.step('fsdp.leave_tree', leave_tree, self, tree)
  return ...
end

-- Before a backward: units that stay unsharded after their forward would not see another value.
local function check_fields(tree)
  for _, instance in ipairs(tree.instances) do
    local field = watch.replaced(instance._watched)
    if field and not instance:_reshards(instance._is_root) then
      errors.raise('AssertionError', 'FSDP does not support changing the parameters between '
        .. "forward and backward: '%s' was replaced", field)
    elseif field then
      watch.check(instance._watched)
    end
  end
end

-- x: the first argument.
local function enter_tree(self, tree, x)
  if not tree.outer then
    check.batch(self.process_group, samples.group_of(x))
  end
  tree.running = true -- an error from here on is one of this forward
  for _, instance in ipairs(tree.instances) do
    watch.check(instance._watched)
    buffers.cast(instance)
  end
  graph.before_backward(tree, check_fields)
  B.calls.fsdp_tree_pre_forward(tree.handle)
  B.C.ms_fsdp_tree_hide_shards(tree.handle, true)
end

local function outermost_forward(self, tree, call, module, ...)
  capture.on_failure(end_forward, tree)
  capture.step('fsdp.enter_tree', enter_tree, self, tree, (...))
  return close_root(self, tree, unit_forward(self, call, module, ...))
end

--- Run `call(module, ...)` as a forward of the module: gather its unit around it, and run the tree
--- when this is the outermost forward.
---@param self ms.fsdp.State
---@param call fun(module: ms.nn.Module, ...): ...
---@param module ms.nn.Module  the state's
---@return ...
return function(self, call, module, ...)
  local tree = self._tree or self:_lazy_init(true)
  if tree.running then
    return (self.modules[2] and group_forward or unit_forward)(self, call, module, ...)
  elseif not tree.ready then
    self:_lazy_init(true)
  end
  return finally.run(end_forward, tree, outermost_forward, self, tree, call, module, ...)
end
