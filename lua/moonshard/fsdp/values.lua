--- Values of a sharded module's parameters, as state dicts ask for them.

local B = require 'moonshard_ffi'
local ShardedTensor = require 'moonshard.dist.sharded_tensor'
local agree = require 'moonshard.fsdp.agree'
local errors = require 'moonshard.base.errors'
local parameter = require 'moonshard_ffi.parameter'
local runtime = require 'moonshard_ffi.fsdp'
local state_dict_type = require 'moonshard.fsdp.state_dict_type'
local util = require 'moonshard.base.util'

---@class ms.fsdp.Values
local values = {}

--- Full copies of all parameters this instance manages, by parameter.key: views of one gathered
--- tensor. Collective. (state dicts ask)
---@param is_left_out? boolean  this rank gets none
---@return table<integer, ms.Tensor>
function values:_full_values(is_left_out)
  if B.C.ms_comm_is_fake(self.process_group) then
    errors.raise('RuntimeError', 'state_dict: the model is sharded over a fake group, whose other '
      .. 'ranks are not there to give their parts')
  end
  local flat, starts = runtime.gather_all(self._unit, #self._shapes)
  local full = {}
  if not is_left_out then
    for key, i in next, self._index_of do
      local shape = self._shapes[i]
      full[key] = flat:narrow(1, starts[i], util.product(shape)):reshape(shape)
    end
  end
  flat:release()
  return full
end

--- Does a state dict leave out the module's parameters and buffers on this rank?
---@param rank0_only? boolean  of the state dict; else the settings decide
---@return boolean
function values:_is_left_out(rank0_only)
  return (rank0_only or state_dict_type.of(self).state_dict_config.rank0_only or false)
    and not (self.rank == 0 and self.replica == 0)
end

--- What a state dict has of a parameter of its unit. Collective for a full one.
---@param gathered table  full values by instance, so far
---@param opts { full_state_dict?: boolean, rank0_only?: boolean }
---@return ms.Tensor|ms.dist.ShardedTensor|nil
function values:_state_value(tensor, gathered, opts)
  local key, kind = parameter.key(tensor), state_dict_type.of(self).state_dict_type
  local is_full = opts.full_state_dict or opts.rank0_only or kind == 'FULL_STATE_DICT'
  if not is_full and (self.api or self.sharding_strategy ~= 'NO_SHARD') then
    local part, extent = parameter.part(tensor)
    return self:_sharded(tensor, part and (self.api and part or part:clone()), extent.dtype)
  elseif not is_full and not gathered[self] then
    errors.warn('UserWarning', 'When using ``NO_SHARD`` for ``ShardingStrategy``, full_state_dict '
      .. 'will be returned.', self.process_group)
  end
  if not gathered[self] then
    gathered[self] = self:_full_values(self:_is_left_out(opts.rank0_only))
  end
  return gathered[self][key]
end

--- The flat parameter, where state dicts have it in place of the parameters. (Layout rows has
--- none: LOCAL_STATE_DICT is SHARDED_STATE_DICT.)
---@return ms.Tensor?
function values:_flat_in_state_dict()
  return state_dict_type.of(self).state_dict_type == 'LOCAL_STATE_DICT'
    and self.shard_layout == 'flat' and self.sharding_strategy ~= 'NO_SHARD'
    and self:_flat_parameter(true) or nil
end

-- Elements of a unit's flat parameter, without the padding of the last shards.
local function numel_of(unit)
  return tonumber(B.C.ms_layout_total(B.C.ms_fsdp_unit_layout(unit)))
end

--- What a state dict of type LOCAL_STATE_DICT has of its unit: the unit's own memory.
---@return ms.dist.ShardedTensor
function values:_local_state()
  local flat, info = self:_flat_parameter(true), runtime.info(self._unit)
  local total, first = numel_of(self._unit), self.rank * info.shard_numel
  local length = math.max(0, math.min(info.shard_numel, total - first))
  if flat:numel() ~= info.shard_numel then -- it shows the full parameters
    B.calls.fsdp_unit_reshard(self._unit)
  end
  return ShardedTensor({ total }, flat:dtype(), first + 1,
    length > 0 and flat:detach():narrow(1, 1, length) or nil, self.shard_group, self.replica)
end

--- Either all ranks load, equal values, or none. Collective. (state dicts ask)
function values:_agree_on_load(...)
  local tree = self._tree
  if tree and tree.ready and B.C.ms_fsdp_tree_summoned(tree.handle) then
    -- before anything is loaded that no unit holds
    errors.raise('AssertionError', 'load_state_dict inside summon_full_params')
  end
  agree.on_load(self.process_group, ...)
end

--- Prepare to load this rank's elements of a parameter of the unit, or of its flat parameter, from
--- a tensor of any sharding. Collective.
---@param value ms.dist.ShardedTensor
---@return fun() write
function values:_prepare_part(tensor, value)
  local into, extent = parameter.part(tensor)
  if rawequal(tensor, self._flat) then
    local own = self:_local_state()
    into, extent = own.local_tensor, { start = own.start - 1, numel = own.length }
  end
  local elements = value:_elements_of('load_state_dict', extent)
  return function()
    if into then
      into:copy_(elements)
      parameter.touch(tensor)
    end
  end
end

--- Take this rank's elements of full values.
function values:_load_value(tensor, value)
  B.calls.fsdp_unit_load(self._unit, self._index_of[parameter.key(tensor)] - 1, value)
end

return values
