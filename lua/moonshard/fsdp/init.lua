--- Fully sharded data parallel: the wrapper, policies that choose what is wrapped, and functions of
--- wrapped models.

local ParamGroup = require 'moonshard.fsdp.param_group'
local arguments = require 'moonshard_ffi.arguments'
local composable = require 'moonshard.fsdp.composable'
local fsdp_module = require 'moonshard.fsdp.fsdp_module'
local fully_shard = require 'moonshard.fsdp.fully_shard'
local namespace = require 'moonshard.base.namespace'
local policies = require 'moonshard.fsdp.policies'
local state_dict_type = require 'moonshard.fsdp.state_dict_type'
local wrap = require 'moonshard.fsdp.wrap'

---@class ms.fsdp
---@field FSDP ms.fsdp.FSDP
---@field fsdp_modules fun(module: ms.nn.Module, opts?: { root_only?: boolean }): ms.nn.Module[]
---  The FSDP instances in a module, in module order; root_only: those that no other instance
---  contains
---@field optim_state_dict fun(model: ms.nn.Module, optim: ms.optim.Optimizer): table  The state of
---  an optimizer over the model's parameters; those that took no step are absent. Collective with
---  the type FULL_STATE_DICT; with its `rank0_only` ranks other than 0 of the model get {}
---@field optim_state_dict_to_load fun(model: ms.nn.Module, optim: ms.optim.Optimizer, sd: table):
---  ms.optim.StateDict  What optim:load_state_dict() takes, from what optim_state_dict() gave on
---  any number of ranks and for any wrapping. Collective for ShardedTensors
---@field full_optim_state_dict fun(model: ms.nn.Module, optim: ms.optim.Optimizer, opts?: table):
---  table  optim_state_dict() with whole tensors, whatever the state dict type; rank0_only: default
---  true
---@field sharded_optim_state_dict fun(model: ms.nn.Module, optim: ms.optim.Optimizer):
---  table  optim_state_dict() with ShardedTensors
---@field shard_full_optim_state_dict fun(sd: table, model: ms.nn.Module, optim:
---  ms.optim.Optimizer): ms.optim.StateDict  optim_state_dict_to_load() of whole tensors
---@field flatten_sharded_optim_state_dict fun(sd: table, model: ms.nn.Module, optim:
---  ms.optim.Optimizer): ms.optim.StateDict  optim_state_dict_to_load() of ShardedTensors
---@field scatter_full_optim_state_dict fun(sd?: table, model: ms.nn.Module, optim:
---  ms.optim.Optimizer, group?: ms.dist.Group): ms.optim.StateDict  The same of whole tensors that
---  rank 0 has. Ranks keep their elements only. Collective
---@field rekey_optim_state_dict fun(sd: table, key_type: 'PARAM_ID'|'PARAM_NAME', model:
---  ms.nn.Module): table  The state dict with numbers of parameters, from 0 in order of the model,
---  in place of their names, or the other way round
local fsdp = {
  callable_policy = policies.callable_policy,
  always_wrap_policy = policies.always_wrap_policy,
  size_based_auto_wrap_policy = policies.size_based_auto_wrap_policy,
  transformer_auto_wrap_policy = policies.transformer_auto_wrap_policy,
  wrap_module_cls_individually = policies.wrap_module_cls_individually,
  lambda_auto_wrap_policy = policies.lambda_auto_wrap_policy,
  or_policy = policies.or_policy,
  ModuleWrapPolicy = policies.ModuleWrapPolicy,
  CustomPolicy = policies.CustomPolicy,
  enable_wrap = wrap.enable_wrap,
  wrap = wrap.wrap,
  FSDP = require 'moonshard.fsdp.wrapper',
  composable = composable.shard,
  fully_shard = fully_shard.fully_shard,
  replicate = fully_shard.replicate,
  OffloadPolicy = fully_shard.OffloadPolicy,
  CPUOffloadPolicy = fully_shard.CPUOffloadPolicy,
  FSDPModule = fsdp_module.FSDPModule,
  share_comm_ctx = fsdp_module.share_comm_ctx,
  get_state = composable.get_state,
  ParamGroup = ParamGroup,
  fsdp_modules = require 'moonshard.fsdp.fsdp_modules',
  register_forward_method = composable.register_forward_method,
  register_fsdp_forward_method = fsdp_module.register_forward_method,
  summon_full_params = require 'moonshard.fsdp.summon',
  state_dict_type = state_dict_type.block,
  set_state_dict_type = state_dict_type.set,
  get_state_dict_type = state_dict_type.get,
}

--- Overwrite a tensor with another one of the same shape and dtype; not recorded.
---@param x ms.Tensor
---@param y ms.Tensor
---@return ms.Tensor x
function fsdp.set_(x, y)
  return arguments.tensor('set_', 'x', x):set_data(y)
end

-- Functions of a file that few scripts need.
for name, method in next, {
  optim_state_dict = 'of', optim_state_dict_to_load = 'to_load', full_optim_state_dict = 'full',
  sharded_optim_state_dict = 'sharded', rekey_optim_state_dict = 'rekey',
  shard_full_optim_state_dict = 'shard_full', scatter_full_optim_state_dict = 'scatter_full',
  flatten_sharded_optim_state_dict = 'flatten_sharded',
} do
  fsdp[name] = function(...)
    return require('moonshard.fsdp.optim_state')[method](...)
  end
end

local lazy = {
  comm_hooks = 'moonshard.fsdp.comm_hooks',
  explain = 'moonshard.fsdp.explain',
  ShardedGradScaler = 'moonshard.fsdp.sharded_grad_scaler',
  ShardedTensor = 'moonshard.dist.sharded_tensor',
}

return namespace.space('fsdp', fsdp, lazy)
