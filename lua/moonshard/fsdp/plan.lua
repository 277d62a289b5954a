--- Decides which instance manages which parameter, and makes the units.
---
--- A parameter belongs to the innermost instance that contains every place it stands in. So a
--- tensor tied across two wrapped modules moves up to the instance around both, where it is
--- gathered for both. The decision needs the whole tree, so it is made when parameters are first
--- asked for.

local Module = require 'moonshard.nn.module'
local errors = require 'moonshard.base.errors'
local finally = require 'moonshard.base.finally'
local parameter = require 'moonshard_ffi.parameter'
local module_names = require 'moonshard.nn.names'
local tree = require 'moonshard.nn.tree'

local plan = {}

---@class ms.fsdp.Sighting
---@field name string  path of the first place it stands in
---@field tensor ms.Tensor
---@field module ms.nn.Module  that declares it there
---@field chain ms.fsdp.State[]  instances around all places so far, outermost first
---@field places string[]
---@field wrapped boolean  it stands inside an instance at least once

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

local function note(found, order, p, module, path, chain)
  local key, name = parameter.key(p.tensor), tree.join(path, p.name)
  local sighting = found[key]
  if not sighting then
    sighting = { name = name, tensor = p.tensor, module = module, chain = chain,
      places = { name }, wrapped = false }
    found[key] = sighting
    order[#order + 1] = sighting
  else
    sighting.chain = common(sighting.chain, chain)
    sighting.places[#sighting.places + 1] = name
  end
  sighting.wrapped = sighting.wrapped or #chain > 0
end

-- The innermost of these instances that has a forward: what is below is looked at when it runs.
local function with_forward(chain)
  for i = #chain, 1, -1 do
    if chain[i]:wrapped().forward ~= Module.forward then
      return chain[i]
    end
  end
  return chain[#chain]
end

-- Every place of every parameter, in module order. `instances` lists instances, and by instance the
-- modules that are watched when it runs.
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

local function owner_of(sighting)
  local owner = sighting.chain[#sighting.chain]
  if not owner and sighting.wrapped then
    errors.raise('ValueError', "parameter '%s' stands in %s, which no FSDP instance contains "
      .. 'together: wrap a module around all of them', sighting.name,
      table.concat(sighting.places, ' and '))
  end
  return owner
end

--- The parameters each instance below `top` manages, in module order.
---@param top ms.nn.Module
---@return table<ms.fsdp.State, ms.fsdp.Sighting[]> managed, ms.fsdp.State[] instances
function plan.of(top)
  local order, instances, managed = {}, {}, {}
  look(top, '', {}, {}, order, instances)
  for _, instance in ipairs(instances) do
    managed[instance] = {}
  end
  for _, sighting in ipairs(order) do
    local owner = owner_of(sighting)
    if owner then
      table.insert(managed[owner], sighting)
    end
  end
  return managed, instances
end

--- The modules that stand in the model.
---@param instances ms.fsdp.State[]
---@return ms.nn.Module[]
function plan.faces(instances)
  local out = {}
  for i, instance in ipairs(instances) do
    out[i] = instance.face
  end
  return out
end

--- What errors call the units of these instances: as instance:_unit_name() does each.
---@param instances ms.fsdp.State[]
---@return string[]
function plan.unit_names(instances)
  local names = module_names.paths(plan.faces(instances))
  for i, instance in ipairs(instances) do
    names[i] = names[i] == '' and instance:wrapped()._name or names[i]
  end
  return names
end

local function check_taken(instance, sightings)
  for _, s in ipairs(sightings) do
    local manager = parameter.manager(s.tensor)
    if manager and manager ~= instance then
      errors.raise('ValueError', "parameter '%s' is shared between units, but '%s' was already "
        .. 'used alone: use the outermost instance first', s.name, manager:_unit_name())
    end
  end
end

---@class ms.fsdp.Draft  what an instance is to have
---@field instance ms.fsdp.State
---@field name string  of its unit
---@field tensors ms.Tensor[]
---@field names string[]
---@field holders ms.nn.Module[]  of each tensor, the first module that declares it
---@field shared { name: string, places: string[] }[]  tied parameters
---@field modules ms.nn.Module[]  that are looked at before it runs

---@return ms.fsdp.Draft
local function draft_of(instance, name, sightings, modules)
  local tensors, names, holders, shared = {}, {}, {}, {}
  for i, s in ipairs(sightings) do
    tensors[i], names[i], holders[i] = s.tensor, s.name, s.module
    if #s.places > 1 then
      shared[#shared + 1] = { name = s.name, places = s.places }
    end
  end
  return {
    instance = instance, name = name, tensors = tensors, names = names, holders = holders,
    shared = shared, modules = modules,
  }
end

local function make_units(drafts, top)
  local managed, instances = plan.of(top)
  local unit_names = plan.unit_names(instances)
  for i, instance in ipairs(instances) do
    local sightings = managed[instance]
    check_taken(instance, sightings)
    if not instance._planned then
      local draft = draft_of(instance, unit_names[i], sightings, instances[instance])
      drafts[#drafts + 1] = draft
      instance:_make_unit(draft)
    end
  end
end

local sealing = false

local function seal_made(drafts)
  sealing = false
  for _, draft in ipairs(drafts) do
    draft.instance:_seal(draft)
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

--- Make the units of all instances below `top` that have none yet. After an error those that were
--- made are their instances', and the next call makes the others.
---@param top ms.nn.Module
---@return boolean done  false inside param_init_fn, which may ask for the model's parameters
function plan.seal(top)
  if sealing then
    return false
  end
  local drafts = {}
  sealing = true
  finally.run(seal_made, drafts, make_units, drafts, top)
  return true
end

--- What the units of a root's instances are, in numbers, or would be: none is made.
---@param instances ms.fsdp.State[]  all from the root down, itself first
---@return ffi.cdata*[] groups, boolean root_has_unit  for runtime.dry_run()
function plan.groups(instances)
  local root, root_has_unit = instances[1], false
  local managed = plan.of(tree.outermost(root.face))
  managed = managed[root] and managed or plan.of(root.face) -- not where it was never put
  local groups, names = {}, plan.unit_names(instances)
  for i, instance in ipairs(instances) do
    check_taken(instance, managed[instance])
    groups[#groups + 1] = instance:_group(draft_of(instance, names[i], managed[instance], {}))
    root_has_unit = root_has_unit or i == 1 and #groups == 1
  end
  return groups, root_has_unit
end

--- All instances from this one down, in module order.
---@param instance ms.fsdp.State
---@return ms.fsdp.State[]
function plan.instances(instance)
  local out = {}
  for _, module in ipairs(instance.face:modules()) do
    out[#out + 1] = tree.manager(module)
  end
  return out
end

--- Refuse what a unit cannot hold, with the reference's words. Nested instances are left out.
---@param module ms.nn.Module  what is being wrapped
---@param ignored ms.fsdp.Ignored
---@param use_orig_params boolean
function plan.validate(module, ignored, use_orig_params)
  local first
  local function visit(m, path)
    if tree.manager(m) then
      return
    end
    for _, p in ipairs(tree.params(m, false)) do
      if not ignored.params[parameter.key(p.tensor)] then
        local facts, name = parameter.facts(p.tensor), tree.join(path, p.name)
        first = first or facts
        if facts.ndim == 0 then
          errors.raise('ValueError', "FSDP doesn't support scalar parameters. Change %s to a 1D "
            .. 'tensor with numel equal to 1.', name)
        elseif not facts.floating then
          errors.raise('ValueError', 'Cannot flatten integer dtype tensors')
        elseif facts.dtype ~= first.dtype then
          errors.raise('ValueError', 'Must flatten tensors with uniform dtype but got %s and %s',
            first.dtype, facts.dtype)
        elseif not use_orig_params and facts.requires_grad ~= first.requires_grad then
          errors.raise('ValueError', 'Must flatten tensors with uniform `requires_grad` when '
            .. '`use_orig_params=False`')
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
