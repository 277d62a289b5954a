--- Checks of classes, policies, groups and batches for FSDP.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'
local members = require 'moonshard.dist.members'
local util = require 'moonshard.base.util'
local tree = require 'moonshard.nn.tree'

local check = {}

--- ValueError if a batch was sharded over other ranks than those that sum gradients: some samples
--- would count twice, others not at all.
---@param group ms.dist.Group  of the model
---@param sharded_over ms.dist.Group|false|nil  the ranks that share its batch
function check.batch(group, sharded_over)
  if sharded_over and sharded_over ~= group and not B.C.ms_comm_is_fake(group)
    and not members.same(sharded_over, group) then
    errors.raise('ValueError', 'FSDP: the batch comes from a data.Loader that deals to ranks %s, '
      .. 'but the model is sharded over ranks %s; give both the same process_group',
      members.text(sharded_over), members.text(group))
  end
end

local function is_class(value)
  return type(value) == 'table' and type(rawget(value, '_name')) == 'string'
end

--- A copy of an array of module classes.
---@param what string
---@param classes table[]
---@return table[]
function check.classes(what, classes)
  if is_class(classes) then
    errors.raise('TypeError', '%s takes an array of classes: write { %s }', what, classes._name)
  elseif type(classes) ~= 'table' or getmetatable(classes) ~= nil then
    errors.raise('TypeError', '%s takes an array of classes, got %s', what,
      arguments.noun(classes))
  end
  local n = #classes
  for key in next, classes do
    if type(key) ~= 'number' or key < 1 or key > n then
      errors.raise('TypeError', "%s takes an array of classes, got the key '%s'", what,
        tostring(key))
    end
  end
  for i = 1, n do
    if not (is_class(classes[i]) and classes[i]._is_module) then
      errors.raise('TypeError', '%s: entry %d is %s, expected a class of modules', what, i,
        arguments.noun(classes[i]))
    end
  end
  return util.slice(classes, 1)
end

--- A policy, or nil.
---@param policy ms.fsdp.Policy|ms.fsdp.PolicyObject|ms.fsdp.Function|nil
---@return ms.fsdp.Policy|ms.fsdp.PolicyObject|ms.fsdp.Function|nil
function check.policy(policy)
  if policy == nil or type(policy) == 'function' then
    return policy
  elseif is_class(policy) then
    errors.raise('TypeError', 'auto_wrap_policy is the class %s itself: write %s', policy._name,
      policy._is_module and ('fsdp.ModuleWrapPolicy { %s }'):format(policy._name)
        or policy._name .. '(...), what it makes is a policy')
  elseif type(policy) == 'table' and getmetatable(policy) == nil then
    errors.raise('TypeError', 'auto_wrap_policy is a plain table: to wrap the modules of some '
      .. 'classes write fsdp.ModuleWrapPolicy { ... }')
  elseif tree.is_module(policy) then
    arguments.refuse('FSDP', 'auto_wrap_policy', policy, 'a policy')
  elseif type(policy) == 'table' and getmetatable(policy)._is_policy then
    return policy
  end
  return arguments.fn('FSDP', 'auto_wrap_policy', policy)
end

--- Strategies that divide parameters inside a shard group.
check.HYBRID = { HYBRID_SHARD = true, _HYBRID_SHARD_ZERO2 = true }

--- ValueError if hybrid instances of a model have other shard or replicate groups.
---@param instances ms.fsdp.State[]
function check.one_hybrid(instances)
  local first
  for _, instance in ipairs(instances) do
    local groups = instance.hybrid_groups
    first = first or groups and instance
    for i, side in ipairs(groups and { 'intra', 'inter' } or {}) do
      local expected = first.hybrid_groups[i]
      if groups[i] ~= expected and not (groups[i] and expected
        and members.same(groups[i], expected)) then
        errors.raise('ValueError', "%s-node process groups do not match: '%s' has ranks %s, '%s' "
          .. 'has ranks %s', side, first.outer_module:path(), members.text(expected),
          instance.outer_module:path(), members.text(groups[i]))
      end
    end
  end
end

return check
