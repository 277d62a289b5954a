--- Settings of a state that scripts change between steps: see moonshard.fsdp.fsdp_module. Those
--- that were set before the first use are applied to the unit then.

local B = require 'moonshard_ffi'
local hooks = require 'moonshard.fsdp.hooks'
local runtime = require 'moonshard_ffi.fsdp'
local util = require 'moonshard.base.util'

---@class ms.fsdp.UnitSettings
local unit_settings = {}

-- Sums over replicas and over shards are one reduction.
local function set_sync(state, _, its)
  B.calls.fsdp_unit_set_sync(state._unit, its.gradient_sync ~= false
    and (its.all_reduce ~= false or not state.hybrid_groups))
end

local function set_flag(call)
  return function(state, value)
    B.calls[call](state._unit, value)
  end
end

local function set_prefetch(backward)
  return function(state, others)
    local units = {}
    for _, other in ipairs(others) do
      units[#units + 1] = other._unit
    end
    runtime.set_prefetch(state._unit, units, backward)
  end
end

-- In the order in which they are applied.
local ORDER = { 'gradient_sync', 'all_reduce', 'reshard_after_forward', 'reshard_after_backward',
  'unshard_in_backward', 'gradient_divide_factor', 'all_reduce_hook', 'forward_prefetch',
  'backward_prefetch', 'is_last_backward' }

local OF_UNIT = {
  gradient_sync = set_sync, all_reduce = set_sync,
  reshard_after_forward = set_flag 'fsdp_unit_set_reshard_after_forward',
  reshard_after_backward = set_flag 'fsdp_unit_set_reshard_after_backward',
  unshard_in_backward = set_flag 'fsdp_unit_set_unshard_in_backward',
  gradient_divide_factor = function(state, divisor)
    B.calls.fsdp_unit_set_gradient_factor(state._unit, 1 / divisor)
  end,
  all_reduce_hook = function(state, hook) hooks.set_reduced(state._unit, hook) end,
  forward_prefetch = set_prefetch(false), backward_prefetch = set_prefetch(true),
}

-- `its`: all settings, with this one.
local function apply(state, name, its)
  if name == 'is_last_backward' then
    B.calls.fsdp_tree_set_last_backward(state._tree.handle, its[name])
  elseif state._unit then
    OF_UNIT[name](state, its[name], its)
  end
end

--- Change a setting. After an error it has its earlier value.
---@param name string
---@param value any
function unit_settings:_set(name, value)
  local changed = util.merged(self._settings, { [name] = value })
  if self._tree and self._tree.handle then
    apply(self, name, changed)
  end
  self._settings = changed
end

--- Are its full parameters freed after each forward?
---@param is_root boolean
---@return boolean
function unit_settings:_reshards(is_root)
  local given, strategy = self._settings.reshard_after_forward, self.sharding_strategy
  if given ~= nil then
    return given
  end
  return not is_root and (strategy == 'FULL_SHARD' or strategy == 'HYBRID_SHARD')
end

--- Called when the tree of the instance was made and is not initialised.
function unit_settings:_apply_settings()
  for _, name in ipairs(ORDER) do
    if self._settings[name] ~= nil then
      apply(self, name, self._settings)
    end
  end
end

return unit_settings
