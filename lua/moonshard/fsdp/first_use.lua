--- The first use of a wrapped model: its units become one tree, and ranks compare their models.
--- Instances over other groups of ranks (experts), and those that divide parameters among other
--- ranks (hybrid strategies beside others), have a tree per group, nested in the root's.
--- Instances that were used below another root stay in its tree.
---
--- A tree is `ready` when the ranks have found that their models are equal. After an error before
--- that the units stay in the tree, and the next use repeats all comparisons.

local B = require 'moonshard_ffi'
local buffers = require 'moonshard.fsdp.buffers'
local checks = require 'moonshard.fsdp.check'
local errors = require 'moonshard.base.errors'
local hooks = require 'moonshard.fsdp.hooks'
local module_names = require 'moonshard.nn.names'
local module_tree = require 'moonshard.nn.tree'
local notes = require 'moonshard_ffi.notes'
local options = require 'moonshard.fsdp.options'
local parameter = require 'moonshard_ffi.parameter'
local plan = require 'moonshard.fsdp.plan'
local runtime = require 'moonshard_ffi.fsdp'
local settings = require 'moonshard.fsdp.settings'

---@class ms.fsdp.Tree  what the instances of a model share
---@field instances ms.fsdp.State[]  the root first
---@field root ms.fsdp.State
---@field holder ffi.cdata*  of the runtime's tree
---@field handle ffi.cdata*  that tree
---@field division? ms.dist.Group  among whose ranks its units divide their parameters
---@field outer? ms.fsdp.Tree  of the root around a nested tree
---@field nested ms.fsdp.Tree[]  those below, in module order
---@field ready boolean
---@field running boolean  in a forward

local function check_homogeneous(instances, name)
  for _, instance in ipairs(instances) do
    if instance[name] ~= instances[1][name] then
      errors.raise('ValueError', 'Expects one homogeneous value for %s but got {%s, %s}', name,
        tostring(instances[1][name]), tostring(instance[name]))
    end
  end
end

local function check(instances)
  check_homogeneous(instances, 'use_orig_params')
  check_homogeneous(instances, 'limit_all_gathers')
end

local function check_not_root(instance)
  if instance._is_root and instance.api then
    errors.raise('RuntimeError', 'FSDP state has already been lazily initialized for %s\nFSDP '
      .. 'requires running forward through the root module first', instance.outer_module:path())
  elseif instance._is_root then
    errors.raise('AssertionError', "Non-root FSDP instance's `_is_root` should not have been set "
      .. "yet or should have been set to `False`: '%s' was used before the module around it; "
      .. 'call what FSDP returned for the whole model first', instance.outer_module:path())
  end
end

-- Among whose ranks an instance divides parameters; nil: it divides none.
local function division(instance)
  return instance.sharding_strategy ~= 'NO_SHARD' and instance.shard_group or nil
end

-- A tree of units that are in no tree.
local function new(instance, outer)
  return {
    root = instance, outer = outer, nested = {}, instances = { instance },
    division = division(instance),
    holder = runtime.tree_holder(), ready = false, running = false,
  }
end

-- The tree that an instance can join.
local function tree_over(instance, top)
  local own = division(instance)
  for _, tree in ipairs { top, unpack(top.nested) } do
    if tree.root.process_group == instance.process_group and not tree.ready
      and (not own or not tree.division or tree.division == own) then
      tree.division = tree.division or own
      return tree
    end
  end
end

-- The tree of a root that was not used yet, with its nested trees.
local function plan_trees(root)
  local top, known = new(root), {}
  for i, instance in ipairs(plan.instances(root)) do
    local tree = instance._tree or i > 1 and tree_over(instance, top)
    if instance._tree then
      check_not_root(instance)
    elseif tree then
      table.insert(tree.instances, instance)
    elseif i > 1 then
      tree = new(instance, top)
    end
    if tree and tree ~= top and not known[tree] then
      known[tree] = true
      table.insert(top.nested, tree)
    end
  end
  return top
end

-- The handle of a tree; the first call makes it.
local function handle_of(tree)
  if not runtime.held(tree.holder) then
    local root, units = tree.root, {}
    for _, instance in ipairs(tree.instances) do
      units[#units + 1] = instance._unit_holder
    end
    runtime.tree(tree.holder, root.process_group, root, units,
      root._unit ~= nil and not tree.outer)
  end
  return runtime.held(tree.holder)
end

-- Options that the runtime does not know, but must be the same on all ranks.
local function note_options(instances)
  local paths = module_names.paths(plan.outer_modules(instances))
  for i, instance in ipairs(instances) do
    local group, dtype = instance.process_group, instance.output_dtype
    notes.numbers(group, ("FSDP '%s'"):format(paths[i]), options.compared(instance))
    notes.numbers(group, ("mp_policy of '%s'"):format(paths[i]), 'output_dtype',
      { dtype and parameter.dtype(dtype) or -1 })
  end
end

-- The outermost instance that contains this one.
local function outermost(instance)
  local module, out = instance.outer_module, instance
  while module do
    out = module_tree.manager(module) or out
    module = rawget(module, '_owner')
  end
  return out
end

-- The root of the tree that this instance belongs to: the outermost instance around it, unless
-- another one below that was a root before, or this instance is not below it.
local function root_around(instance)
  local root, holds = outermost(instance), false
  for _, other in ipairs(plan.instances(root)) do
    local tree = other._tree
    if tree and tree.root ~= root and not (tree.outer and tree.outer == root._tree) then
      return instance
    end
    holds = holds or other == instance
  end
  return holds and root or instance
end

local first_use = {}

--- A tree and its nested trees.
---@param tree ms.fsdp.Tree
---@return ms.fsdp.Tree[]
function first_use.trees(tree)
  return { tree, unpack(tree.nested) }
end

--- Let a function of the script reduce the gradients of a tree.
---@param tree ms.fsdp.Tree
---@param hook fun(grad: ms.Tensor, out?: ms.Tensor)
function first_use.set_comm_hook(tree, hook)
  for _, instance in ipairs(tree.instances) do
    if instance._unit then
      hooks.set_reduce(instance._unit, hook)
    end
  end
end

-- The root of the tree that an instance belongs to, or will belong to.
local function root_of(instance, alone)
  local begun = instance._tree
  return begun and (begun.outer or begun).root or alone and instance or root_around(instance)
end

local function check_open(instances)
  for _, instance in ipairs(instances) do
    local tree = instance._tree
    if tree and tree.closed then
      errors.raise('RuntimeError', 'FSDP: the model was freed by ms.close()')
    end
  end
end

local function check_single(root)
  if root.modules[2] then
    local names = {}
    for i, module in ipairs(root.modules) do
      names[i] = module._name
    end
    errors.raise('RuntimeError', 'FSDP requires a single root module but got [%s]',
      table.concat(names, ', '))
  end
end

-- The tree of a root: a new one, or one that a failed use left uninitialised.
local function tree_of(root)
  check_open(plan.instances(root))
  root.outer_module:_prepare()
  local top = root._tree
  if not top then
    check_single(root)
    checks.one_hybrid(plan.instances(root))
    top = plan_trees(root)
    for _, tree in ipairs(first_use.trees(top)) do
      check(tree.instances)
    end
    root._tree = top
  end
  return top
end

local function dry_run(tree, micro_batches)
  local handle = runtime.held(tree.holder)
  if handle then
    return runtime.plan(handle, micro_batches, true)
  end
  check(tree.instances)
  local groups, root_has_unit = plan.groups(tree.instances)
  if root_has_unit and not tree.outer then
    groups[1].is_root, groups[1].keeps = true, not tree.root:_reshards(true)
  end
  return runtime.dry_run(tree.root.process_group, tree.root, groups, micro_batches)
end

--- Plans of the trees of an instance, computed from numbers. Makes nothing of a model that was not
--- used yet.
---@param instance ms.fsdp.State
---@param micro_batches integer
---@return ms.Plan[]  one per tree
function first_use.dry_run(instance, micro_batches)
  local root, plans = root_of(instance, false), {}
  check_open(plan.instances(root))
  for i, tree in ipairs(first_use.trees(root._tree or plan_trees(root))) do
    plans[i] = dry_run(tree, micro_batches)
  end
  return plans
end

local function initialise(tree)
  tree.handle = handle_of(tree)
  for i = #tree.instances, 1, -1 do
    local instance = tree.instances[i]
    buffers.cast(instance)
    instance._tree = tree
    instance._is_root = i == 1 and not tree.outer
  end
  for _, instance in ipairs(tree.instances) do
    instance:_apply_settings()
  end
  B.calls.fsdp_tree_init(tree.handle)
  note_options(tree.instances)
end

--- Make the tree that an instance is part of, and initialise it. Collective.
---@param instance ms.fsdp.State
---@param alone? boolean  make it the root, even inside another instance
---@return ms.fsdp.Tree  ready
function first_use.ready(instance, alone)
  local root = root_of(instance, alone)
  local top = tree_of(root)
  for _, tree in ipairs(first_use.trees(top)) do
    if not tree.ready then
      initialise(tree)
    end
  end
  settings.compare(root.process_group, root.outer_module, root._ignored.modules)
  for _, p in ipairs(module_tree.unmanaged(root.outer_module)) do
    parameter.materialize(p.tensor)
  end
  for _, tree in ipairs(root._comm_hook and first_use.trees(top) or {}) do -- the original's
    first_use.set_comm_hook(tree, root._comm_hook)
  end
  for _, tree in ipairs(first_use.trees(top)) do
    tree.ready = true
  end
  return instance._tree
end

return first_use
