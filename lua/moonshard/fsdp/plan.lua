--- Decides which instance manages which parameter, and makes the units.
---
--- A parameter belongs to the innermost instance that contains all its occurrences. A tensor tied
--- across two wrapped modules therefore belongs to the instance around both, which gathers it for
--- both. The decision needs the whole tree, so it is made at the first access to parameters.

local Module = require 'moonshard.nn.module'
local errors = require 'moonshard.base.errors'
local finally = require 'moonshard.base.finally'
local parameter = require 'moonshard_ffi.parameter'
local module_names = require 'moonshard.nn.names'
local tree = require 'moonshard.nn.tree'

local plan = {}

---@class ms.fsdp.Occurrence
---@field name string  the first path
---@field tensor ms.Tensor
---@field module ms.nn.Module  that declares it there
---@field chain ms.fsdp.State[]  instances around all paths so far, outermost first
---@field paths string[]
---@field wrapped boolean  one path at least is inside an instance

local function common(a, b)
  local out = {}
  for i = 1, math.min(#a, #b) do
    if a[i] ~= b[i] then
      break
    end
    out[i] = a[i]
  end
  return out
end

-- ValueError if a tied parameter is in two modules that fully_shard() was called on.
local function check_one_group(occurrence, name, chain)
  local owner, other = occurrence.chain[#occurrence.chain], chain[#chain]
  if owner ~= other and (owner and owner.api or other and other.api) then
    errors.raise('ValueError', "Parameter '%s' is shared with a parameter already managed by "
      .. "another FSDP group ('%s'). For shared/tied parameters, use fully_shard({ module_a, "
      .. 'module_b }) to place them in the same FSDP group.', name, occurrence.name)
  end
end

local function note(found, order, p, module, path, chain)
  local key, name = parameter.key(p.tensor), tree.join(path, p.name)
  local occurrence = found[key]
  if not occurrence then
    occurrence = { name = name, tensor = p.tensor, module = module, chain = chain,
      paths = { name }, wrapped = false }
    found[key] = occurrence
    order[#order + 1] = occurrence
  else
    check_one_group(occurrence, name, chain)
    occurrence.chain = common(occurrence.chain, chain)
    occurrence.paths[#occurrence.paths + 1] = name
  end
  occurrence.wrapped = occurrence.wrapped or #chain > 0
end

-- The innermost of these instances that has a forward: it checks the modules below when it runs.
local function with_forward(chain)
  for i = #chain, 1, -1 do
    if chain[i]:wrapped().forward ~= Module.forward then
      return chain[i]
    end
  end
  return chain[#chain]
end

-- All occurrences of all parameters, in module order. `instances` lists instances, and for each the
-- modules that it checks when it runs.
local function look(module, path, chain, found, order, instances)
  local state = tree.manager(module)
  if state then
    chain = { unpack(chain) }
    chain[#chain + 1] = state
    if not instances[state] then
      instances[state] = {}
      instances[#instances + 1] = state
    end
  end
  local around = chain[#chain]
  if around and (not state or state.in_place) then
    table.insert(instances[with_forward(chain)], module)
  end
  for _, p in ipairs(tree.params(module, false)) do
    if not (around and around._ignored.params[parameter.key(p.tensor)]) then
      note(found, order, p, module, path, chain)
    end
  end
  for name, child in module:named_children() do
    local child_path = module._transparent and path or tree.join(path, name)
    look(child, child_path, chain, found, order, instances)
  end
end

local function owner_of(occurrence)
  local owner = occurrence.chain[#occurrence.chain]
  if not owner and occurrence.wrapped then
    errors.raise('ValueError', "parameter '%s' stands in %s, which no FSDP instance contains "
      .. 'together: wrap a module around all of them', occurrence.name,
      table.concat(occurrence.paths, ' and '))
  end
  return owner
end

--- The parameters each instance below `top` manages, in module order.
---@param top ms.nn.Module
---@return table<ms.fsdp.State, ms.fsdp.Occurrence[]> managed, ms.fsdp.State[] instances
function plan.of(top)
  local order, instances, managed = {}, {}, {}
  look(top, '', {}, {}, order, instances)
  for _, instance in ipairs(instances) do
    managed[instance] = {}
  end
  for _, occurrence in ipairs(order) do
    local owner = owner_of(occurrence)
    if owner then
      table.insert(managed[owner], occurrence)
    end
  end
  return managed, instances
end

--- The modules of these instances that are part of the model.
---@param instances ms.fsdp.State[]
---@return ms.nn.Module[]
function plan.outer_modules(instances)
  local out = {}
  for i, instance in ipairs(instances) do
    out[i] = instance.outer_module
  end
  return out
end

--- Names of the units of these instances for errors: instance:_unit_name() of all at once.
---@param instances ms.fsdp.State[]
---@return string[]
function plan.unit_names(instances)
  local names = module_names.paths(plan.outer_modules(instances))
  for i, instance in ipairs(instances) do
    names[i] = names[i] == '' and instance:wrapped()._name or names[i]
  end
  return names
end

local function check_taken(instance, occurrences)
  for _, s in ipairs(occurrences) do
    local manager = parameter.manager(s.tensor)
    if manager and manager ~= instance then
      errors.raise('ValueError', "parameter '%s' is shared between units, but '%s' was already "
        .. 'used alone: use the outermost instance first', s.name, manager:_unit_name())
    end
  end
end

---@class ms.fsdp.UnitPlan  the unit that an instance will have
---@field instance ms.fsdp.State
---@field name string  of its unit
---@field tensors ms.Tensor[]
---@field names string[]
---@field holders ms.nn.Module[]  of each tensor, the first module that declares it
---@field shared { name: string, places: string[] }[]  tied parameters
---@field modules ms.nn.Module[]  that it checks before it runs

---@return ms.fsdp.UnitPlan
local function unit_plan_of(instance, name, occurrences, modules)
  local tensors, names, holders, shared = {}, {}, {}, {}
  for i, s in ipairs(occurrences) do
    tensors[i], names[i], holders[i] = s.tensor, s.name, s.module
    if #s.paths > 1 then
      shared[#shared + 1] = { name = s.name, places = s.paths }
    end
  end
  return {
    instance = instance, name = name, tensors = tensors, names = names, holders = holders,
    shared = shared, modules = modules,
  }
end

local function make_units(unit_plans, top)
  local managed, instances = plan.of(top)
  local unit_names = plan.unit_names(instances)
  for i, instance in ipairs(instances) do
    local occurrences = managed[instance]
    check_taken(instance, occurrences)
    if not instance._planned then
      local unit_plan = unit_plan_of(instance, unit_names[i], occurrences, instances[instance])
      unit_plans[#unit_plans + 1] = unit_plan
      instance:_make_unit(unit_plan)
    end
  end
end

local sealing = false

local function seal_made(unit_plans)
  sealing = false
  for _, unit_plan in ipairs(unit_plans) do
    unit_plan.instance:_seal(unit_plan)
  end
end

--- RuntimeError inside param_init_fn, for an instance that has no unit yet.
---@param instance ms.fsdp.State
function plan.check_sealed(instance)
  if sealing and not instance._planned then
    errors.raise('RuntimeError', 'the model cannot run inside param_init_fn: its units are made '
      .. 'when that has set the initial values')
  end
end

--- Make the missing units of all instances below `top`. After an error the units that were made
--- belong to their instances, and the next call makes the others.
---@param top ms.nn.Module
---@return boolean done  false inside param_init_fn, which may ask for the model's parameters
function plan.seal(top)
  if sealing then
    return false
  end
  local unit_plans = {}
  sealing = true
  finally.run(seal_made, unit_plans, make_units, unit_plans, top)
  return true
end

--- Sizes of the units of a root's instances, existing or not. Makes no unit.
---@param instances ms.fsdp.State[]  all from the root down, itself first
---@return ffi.cdata*[] groups, boolean root_has_unit  for runtime.dry_run()
function plan.groups(instances)
  local root, root_has_unit = instances[1], false
  local managed = plan.of(tree.outermost(root.outer_module))
  managed = managed[root] and managed or plan.of(root.outer_module) -- not where it was never put
  local groups, names = {}, plan.unit_names(instances)
  for i, instance in ipairs(instances) do
    check_taken(instance, managed[instance])
    groups[#groups + 1] = instance:_group(unit_plan_of(instance, names[i], managed[instance], {}))
    root_has_unit = root_has_unit or i == 1 and #groups == 1
  end
  return groups, root_has_unit
end

--- All instances from this one down, in module order, itself first.
---@param instance ms.fsdp.State
---@return ms.fsdp.State[]
function plan.instances(instance)
  local out, seen = {}, {}
  for _, top in ipairs(instance.modules) do
    for _, module in ipairs(top:modules()) do
      local state = tree.manager(module)
      if state and not seen[state] then
        out[#out + 1], seen[state] = state, true
      end
    end
  end
  return out
end

--- Refuse what a unit cannot hold, with the reference's words. Nested instances are left out.
---@param module ms.nn.Module  what is being wrapped
---@param ignored ms.fsdp.Ignored
---@param opts table  complete; check_param(tensor, name) raises for what else it refuses
function plan.validate(module, ignored, opts)
  local first
  local function visit(m, path)
    if tree.manager(m) then
      return
    end
    for _, p in ipairs(tree.params(m, false)) do
      if not ignored.params[parameter.key(p.tensor)] then
        local facts, name = parameter.facts(p.tensor), tree.join(path, p.name)
        local taken = opts.api and parameter.manager(p.tensor)
        first = first or facts
        if taken then
          errors.raise('RuntimeError', "%s: '%s' of %s is in the group of '%s', which was used "
            .. 'already; shard the modules inside others first', opts.api, name, module._name,
            taken:_unit_name())
        elseif facts.ndim == 0 then
          errors.raise('ValueError', "%s doesn't support scalar parameters. Change %s to a 1D "
            .. 'tensor with numel equal to 1.', opts.api or 'FSDP', name)
        elseif not facts.floating then
          errors.raise('ValueError', 'Cannot flatten integer dtype tensors')
        elseif facts.dtype ~= first.dtype and opts.api then
          errors.raise('AssertionError', 'FSDP expects uniform original parameter dtype but got %s '
            .. 'and %s', first.dtype, facts.dtype)
        elseif facts.dtype ~= first.dtype then
          errors.raise('ValueError', 'Must flatten tensors with uniform dtype but got %s and %s',
            first.dtype, facts.dtype)
        elseif not opts.use_orig_params and facts.requires_grad ~= first.requires_grad then
          errors.raise('ValueError', 'Must flatten tensors with uniform `requires_grad` when '
            .. '`use_orig_params=False`')
        elseif opts.check_param then
          opts.check_param(p.tensor, name)
        end
      end
    end
    for name, child in m:named_children() do
      visit(child, tree.join(path, name))
    end
  end
  visit(module, '')
end

return plan
