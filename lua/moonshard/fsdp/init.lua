--- Fully sharded data parallel: the wrapper, the policies that say what it wraps, and what one does
--- with a wrapped model.

local naming = require 'moonshard.internal.naming'
local policies = require 'moonshard.fsdp.policies'
local wrap = require 'moonshard.fsdp.wrap'

---@class ms.fsdp
---@field FSDP ms.fsdp.FSDP
local fsdp = {
  always_wrap_policy = policies.always_wrap_policy,
  size_based_auto_wrap_policy = policies.size_based_auto_wrap_policy,
  transformer_auto_wrap_policy = policies.transformer_auto_wrap_policy,
  lambda_auto_wrap_policy = policies.lambda_auto_wrap_policy,
  or_policy = policies.or_policy,
  ModuleWrapPolicy = policies.ModuleWrapPolicy,
  CustomPolicy = policies.CustomPolicy,
  enable_wrap = wrap.enable_wrap,
  wrap = wrap.wrap,
  FSDP = require 'moonshard.fsdp.wrapper',
  summon_full_params = require 'moonshard.fsdp.summon',
}

local OTHERWISE = {
  FullyShardedDataParallel = 'fsdp.FSDP',
  ShardingStrategy = "fsdp.FSDP(m, { sharding_strategy = 'FULL_SHARD' })",
  MixedPrecision = 'fsdp.FSDP(m, { mixed_precision = { param_dtype = ms.bf16 } })',
  BackwardPrefetch = "fsdp.FSDP(m, { backward_prefetch = 'BACKWARD_PRE' })",
  set_state_dict_type = 'model:state_dict()', state_dict_type = 'model:state_dict()',
  StateDictType = 'model:state_dict()',
  FullStateDictConfig = 'model:state_dict { rank0_only = true }',
  ShardedStateDictConfig = 'ms.checkpoint.save', LocalStateDictConfig = 'ms.checkpoint.save',
  optim_state_dict = 'ms.checkpoint.save', optim_state_dict_to_load = 'ms.checkpoint.load',
}

local lazy = { ShardedGradScaler = 'moonshard.fsdp.sharded_grad_scaler' }

return naming.space('fsdp', fsdp, lazy, OTHERWISE)
