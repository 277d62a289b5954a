--- Which kind of state dict wrapped modules give and take.
---
--- | type | value of a sharded parameter |
--- | --- | --- |
--- | FULL_STATE_DICT (default) | the whole parameter, gathered, on every rank or on rank 0 |
--- | SHARDED_STATE_DICT | a ShardedTensor with the elements of this rank, without communication |
--- | LOCAL_STATE_DICT | none: `_flat_param` of each unit is a ShardedTensor of the unit's memory |
---
--- Units with NO_SHARD give whole parameters under every type, as PyTorch 2.15 does.

local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'
local finally = require 'moonshard.base.finally'
local tree = require 'moonshard.nn.tree'
local util = require 'moonshard.base.util'

local state_dict_type = {}

---@alias ms.fsdp.StateDictType 'FULL_STATE_DICT'|'SHARDED_STATE_DICT'|'LOCAL_STATE_DICT'

---@class ms.fsdp.StateDictSettings
---@field state_dict_type ms.fsdp.StateDictType
---@field state_dict_config { offload_to_cpu: boolean, rank0_only?: boolean }
---@field optim_state_dict_config { offload_to_cpu: boolean, rank0_only?: boolean }

-- Options of each type and their defaults. `offload_to_cpu` moves nothing on the CPU device.
local CONFIGS = {
  FULL_STATE_DICT = { offload_to_cpu = false, rank0_only = false },
  SHARDED_STATE_DICT = { offload_to_cpu = false },
  LOCAL_STATE_DICT = { offload_to_cpu = false },
}
local OPTIM_CONFIGS = {
  FULL_STATE_DICT = { offload_to_cpu = true, rank0_only = false },
  SHARDED_STATE_DICT = { offload_to_cpu = true },
  LOCAL_STATE_DICT = { offload_to_cpu = false },
}

local function config(name, type_name, defaults, given)
  for _, key in ipairs(util.ordered_keys(given or {})) do
    if defaults[key] == nil then
      errors.raise('RuntimeError', "Expected %s of type %s, got the option '%s'", name, type_name,
        tostring(key))
    end
    arguments.flag(name, key, given[key])
  end
  return util.merged(defaults, given)
end

---@return ms.fsdp.StateDictSettings
local function settings(type_name, configs)
  if not CONFIGS[type_name] then
    errors.choice('state_dict_type', 'type', type_name, util.sorted_keys(CONFIGS))
  end
  configs = errors.options('state_dict_type', configs,
    { state_dict_config = 'list', optim_state_dict_config = 'list' })
  return {
    state_dict_type = type_name,
    state_dict_config = config('state_dict_config', type_name, CONFIGS[type_name],
      configs.state_dict_config),
    optim_state_dict_config = config('optim_state_dict_config', type_name,
      OPTIM_CONFIGS[type_name], configs.optim_state_dict_config),
  }
end

local DEFAULT = settings 'FULL_STATE_DICT'
local DEFAULT_IN_PLACE = settings 'SHARDED_STATE_DICT' -- of fully_shard() and replicate()

local function instances_below(module)
  local out = {}
  if not tree.is_module(module) then
    arguments.refuse('state_dict_type', 'module', module, 'a module')
  end
  for _, below in ipairs(module:modules()) do
    out[#out + 1] = tree.manager(below)
  end
  return out
end

--- The settings of one instance.
---@param instance ms.fsdp.State
---@return ms.fsdp.StateDictSettings
function state_dict_type.of(instance)
  return instance._state_dict_settings or instance.api and DEFAULT_IN_PLACE or DEFAULT
end

--- The settings of all instances from this module down. AssertionError if they differ in type.
---@param module ms.nn.Module
---@return ms.fsdp.StateDictSettings
function state_dict_type.get(module)
  local first
  for _, instance in ipairs(instances_below(module)) do
    local own = state_dict_type.of(instance)
    first = first or own
    if own.state_dict_type ~= first.state_dict_type then
      errors.raise('AssertionError', 'All FSDP modules must have the same state dict type, got %s '
        .. 'and %s', first.state_dict_type, own.state_dict_type)
    end
  end
  return first or DEFAULT
end

--- Set the type for all instances from this module down. Gives the settings before.
---@param module ms.nn.Module
---@param type_name ms.fsdp.StateDictType
---@param configs? { state_dict_config?: table, optim_state_dict_config?: table }
---@return ms.fsdp.StateDictSettings
function state_dict_type.set(module, type_name, configs)
  local before, new = state_dict_type.get(module), settings(type_name, configs)
  for _, instance in ipairs(instances_below(module)) do
    if type_name == 'LOCAL_STATE_DICT' and instance.device_mesh then
      errors.raise('RuntimeError', 'Found state_dict_type LOCAL_STATE_DICT. DeviceMesh is not '
        .. 'compatible with LOCAL_STATE_DICT.')
    end
  end
  for _, instance in ipairs(instances_below(module)) do
    instance._state_dict_settings = new
  end
  return before
end

local function restore(before)
  for instance, own in next, before do
    instance._state_dict_settings = own
  end
end

--- Run `fn(...)` with this type for all instances from this module down.
---@param module ms.nn.Module
---@param type_name ms.fsdp.StateDictType
---@param configs? { state_dict_config?: table, optim_state_dict_config?: table }  may be left out
---@param fn fun(...): ...
---@return ...
function state_dict_type.block(module, type_name, configs, fn, ...)
  if type(configs) == 'function' then
    return state_dict_type.block(module, type_name, nil, configs, fn, ...)
  end
  arguments.fn('state_dict_type', 'fn', fn)
  local before = {}
  for _, instance in ipairs(instances_below(module)) do
    before[instance] = state_dict_type.of(instance)
  end
  state_dict_type.set(module, type_name, configs)
  return finally.run(restore, before, fn, ...)
end

return state_dict_type
