--- Methods of a state that concern its unit: the parameters that are gathered together.

local B = require 'moonshard_ffi'
local errors = require 'moonshard.base.errors'
local parameter = require 'moonshard_ffi.parameter'
local runtime = require 'moonshard_ffi.fsdp'
local scope = require 'moonshard.base.scope'
local sealed = require 'moonshard.fsdp.sealed'
local watch = require 'moonshard.fsdp.watch'

local units = {}

--- Let param_init_fn set the initial values of parameters without values, while their handles show
--- full shapes. It is called with each module that declares one, for tied ones with the first.
--- After an error the next use begins with the module that failed.
function units._init_params(fn, tensors, holders, done)
  for i, tensor in ipairs(fn and tensors or {}) do
    local module = holders[i]
    if not done[module] and not parameter.has_values(tensor) then
      fn(module)
      done[module] = true
    end
  end
end

--- The path of its unit in the present model. Messages between ranks use the path at the time the
--- unit was made, because ranks may put it into a larger model at different times.
function units:_unit_name()
  local path = self.outer_module:path()
  return path == '' and self:wrapped()._name or path
end

-- A unit has reduced gradients only, so gradients of whole parameters are dropped.
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

--- Called by the plan: make the unit, if the module has parameters. Changes the unit_plan only.
---@param unit_plan ms.fsdp.UnitPlan
function units:_make_unit(unit_plan)
  unit_plan.watched = watch.of(unit_plan.modules)
  if #unit_plan.tensors == 0 then
    return
  end
  units._init_params(self.param_init_fn, unit_plan.tensors, unit_plan.holders, self._initialised)
  warn_of_gradients(unit_plan.tensors, unit_plan.names, self.process_group)
  unit_plan.shapes, unit_plan.index_of, unit_plan.holder = {}, {}, runtime.unit_holder()
  for i, tensor in ipairs(unit_plan.tensors) do
    unit_plan.shapes[i] = parameter.shape(tensor)
    unit_plan.index_of[parameter.key(tensor)] = i
  end
  runtime.unit(unit_plan.holder, self.process_group, unit_plan.name, self, unit_plan.tensors,
    unit_plan.names)
end

--- Called by the plan: the numbers of the unit, made or not; nil without parameters.
---@param unit_plan ms.fsdp.UnitPlan
function units:_group(unit_plan)
  local unit, group = self._unit, nil
  if unit then
    group = runtime.group_of(unit)
  elseif #unit_plan.tensors > 0 then
    group = runtime.group(self.process_group, unit_plan.name, self, unit_plan.tensors,
      unit_plan.names)
  end
  if group and self._settings.reshard_after_forward ~= nil then
    group.keeps = not self:_reshards(false)
  end
  return group
end

--- Called by the plan after that, even after an error: the instance owns the unit, and modules with
--- parameters in it accept no other modules and no new parameters.
---@param unit_plan ms.fsdp.UnitPlan
function units:_seal(unit_plan)
  local unit = unit_plan.holder and runtime.held(unit_plan.holder)
  if not unit_plan.watched or #unit_plan.tensors > 0 and not unit then
    return
  elseif unit then
    for _, tensor in ipairs(unit_plan.tensors) do
      parameter.manage(tensor, self)
    end
    self._tensors = unit_plan.tensors
    self._shapes = unit_plan.shapes
    self._index_of = unit_plan.index_of
    self._shared = unit_plan.shared
    self._unit_holder = unit_plan.holder
    self._unit = unit
  end
  local seal = self.shard_layout == 'rows' and sealed.by_rows or sealed
  for _, module in ipairs(unit_plan.modules) do
    rawset(module, '_sealed', seal)
  end
  rawset(self.outer_module, '_sealed', seal)
  self._watched = unit_plan.watched
  self._planned = true
end

--- What parameters() shows in place of the unit's parameters: nil with use_orig_params = true,
--- without a unit, and inside summon_full_params.
---@param always? boolean  with use_orig_params = true as well
---@return ms.Tensor?
function units:_flat_parameter(always)
  local unit, tree = self._unit, self._tree
  if not unit or self.use_orig_params and not always
    or tree and tree.ready and B.C.ms_fsdp_tree_summoned(tree.handle) then
    return nil
  end
  local flat = self._flat
  if not flat then
    flat = scope.keep(B.calls.fsdp_unit_flat(unit))
    self._flat = flat
    parameter.stands_for(flat, self)
  end
  return flat
end

--- The shape of an original parameter of its unit, whatever the handle shows.
---@param tensor ms.Tensor
---@return integer[]?
function units:_whole_shape(tensor)
  return self._shapes[self._index_of[parameter.key(tensor)]]
end

--- The original parameters of its unit.
---@return ms.Tensor[]
function units:_managed()
  return self._tensors
end

return units
