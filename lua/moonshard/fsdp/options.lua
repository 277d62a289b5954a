--- Options of FSDP(module, options): known names, defaults, and what is refused.

local B = require 'moonshard_ffi'
local BatchNorm = require('moonshard.nn.batch_norm')._BatchNorm
local arguments = require 'moonshard_ffi.arguments'
local check = require 'moonshard.fsdp.check'
local device = require 'moonshard.base.device'
local errors = require 'moonshard.base.errors'
local members = require 'moonshard.dist.members'
local mesh = require 'moonshard.dist.mesh'
local policies = require 'moonshard.fsdp.policies'
local runtime = require 'moonshard_ffi.fsdp'
local util = require 'moonshard.base.util'

local options = {}

---@class ms.fsdp.MixedPrecision
---@field param_dtype? ms.DType  gathered and computed in; masters and optimizer keep theirs
---@field reduce_dtype? ms.DType  of gradient reduction (default: param_dtype when that is given)
---@field buffer_dtype? ms.DType
---@field cast_forward_inputs? boolean  this instance casts its floating inputs (default false)
---@field cast_root_forward_inputs? boolean  the root does (default true)
---@field module_classes_to_ignore? table[]  wrapped alone, without mixed precision;
--- default { nn._BatchNorm }

---@class ms.fsdp.Options
---@field sharding_strategy? 'FULL_SHARD'|'SHARD_GRAD_OP'|'NO_SHARD'|'HYBRID_SHARD'|
---                        '_HYBRID_SHARD_ZERO2'  default 'FULL_SHARD'
---@field auto_wrap_policy? ms.fsdp.Policy|ms.fsdp.PolicyObject|ms.fsdp.Function
---@field backward_prefetch? 'BACKWARD_PRE'|'BACKWARD_POST'|'none'
---@field forward_prefetch? boolean
---@field mixed_precision? ms.fsdp.MixedPrecision|false  false: none, where a policy overrides it
---@field use_orig_params? boolean  align parameters, allow mixed requires_grad (default false)
---@field ignored_modules? ms.nn.Module|ms.nn.Module[]
---@field ignored_states? ms.Tensor|ms.Tensor[]|ms.nn.Module|ms.nn.Module[]
---@field limit_all_gathers? boolean  accepted; the slots bound what is gathered
---@field cpu_offload? boolean|{ offload_params: boolean }  masters, reduced gradients and
---                        optimizer state in pinned host memory, which a device's kernels read and
---                        write; the CPU has them there already
---@field device_id? string|integer  the device of this process: 'cuda', 'cuda:1', or its index
---@field process_group? ms.dist.Group|ms.dist.DeviceMesh|ms.dist.Group[]  default: all ranks; a
--- mesh of one dimension stands for its group. Hybrid strategies take { shard group, replicate
--- group }, or a mesh of two dimensions: the ranks along the second one divide parameters, those
--- along the first have equal parts
---@field device_mesh? ms.dist.DeviceMesh  the same
---@field param_init_fn? fun(module: ms.nn.Module)  called, before units are made, with each module
---                        that has parameters without values. Parameters have their full shapes
---                        there; those of one unit at a time take memory
---@field sync_module_states? boolean  all ranks take rank 0's parameters and buffers (default
---                        false)

options.KNOWN = {
  'sharding_strategy', 'auto_wrap_policy', 'backward_prefetch', 'forward_prefetch',
  'mixed_precision', 'use_orig_params', 'ignored_modules', 'ignored_states', 'limit_all_gathers',
  'process_group', 'cpu_offload', 'device_id', 'device_mesh', 'param_init_fn', 'sync_module_states',
  'hybrid_groups', -- of the root, for what its policy chooses
}

local PRECISION = {
  param_dtype = 'floating', reduce_dtype = 'floating', buffer_dtype = 'floating',
  keep_low_precision_grads = 'flag', cast_forward_inputs = 'flag',
  cast_root_forward_inputs = 'flag', module_classes_to_ignore = 'list',
}

local HYBRID = { HYBRID_SHARD = true, _HYBRID_SHARD_ZERO2 = true }

--- No mixed precision at all: every field as it is without the option.
---@return ms.fsdp.MixedPrecision
function options.full_precision()
  return { cast_forward_inputs = false, cast_root_forward_inputs = true,
    module_classes_to_ignore = { BatchNorm } }
end

local function precision(given)
  if given == nil or given == false then
    return options.full_precision()
  end
  errors.options('mixed_precision', given, PRECISION)
  if given.module_classes_to_ignore then
    check.classes('module_classes_to_ignore', given.module_classes_to_ignore)
  end
  return util.merged(options.full_precision(), given)
end

local function offload(given)
  if type(given) ~= 'table' then
    given = { offload_params = arguments.flag('FSDP', 'cpu_offload', given, false) }
  end
  errors.options('cpu_offload', given, { offload_params = 'flag' })
  return { offload_params = given.offload_params or false }
end

local function check_device_id(id)
  local kind = device.kind()
  local own = id ~= nil and id ~= kind and device.info()
  if own and (kind == 'cpu' or id ~= own.index and id ~= device.name()) then
    errors.raise('ValueError', "device_id is %s, but the device of this process is '%s'",
      type(id) == 'string' and ("'%s'"):format(id) or tostring(id), device.name())
  end
  return id
end

local function one_of(name, value, default, allowed)
  if value == nil then
    return default
  end
  for _, choice in ipairs(allowed) do
    if value == choice then
      return value
    end
  end
  local near = type(value) == 'string' and errors.nearest(value, allowed)
  errors.raise('ValueError', "%s is '%s', expected %s%s", name, tostring(value),
    table.concat(allowed, ', '), near and ('; did you mean %s?'):format(near) or '')
end

local function strategy(given)
  return one_of('sharding_strategy', given, 'FULL_SHARD',
    { 'FULL_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD', 'HYBRID_SHARD', '_HYBRID_SHARD_ZERO2' })
end

-- ValueError unless this rank is the only one that its shard group and its replicate group share.
local function check_across(shard, replicate)
  local in_shard, common = {}, {}
  for _, rank in ipairs(members.list(shard)) do
    in_shard[rank] = true
  end
  for _, rank in ipairs(members.list(replicate)) do
    common[#common + 1] = in_shard[rank] and rank or nil
  end
  local own = runtime.place(B.world())
  if #common ~= 1 or common[1] ~= own then
    errors.raise('ValueError', 'the shard group has ranks %s and the replicate group ranks %s, '
      .. 'expected rank %d as the only common one', members.text(shard), members.text(replicate),
      own)
  end
end

-- The groups of hybrid sharding: among whose ranks parameters are divided, and whose ranks have
-- equal parts. Together they have all ranks of the job.
local function hybrid_groups(name, given)
  local over = given.device_mesh or given.process_group
  local shard, replicate
  if mesh.is(over) then
    if over.ndim ~= 2 then
      errors.raise('ValueError', 'Expected device_mesh to have ndim=2 but got %d', over.ndim)
    end
    replicate, shard = over:get_group(1), over:get_group(2)
  elseif over == nil and given.auto_wrap_policy == nil then
    errors.raise('ValueError', 'Manual wrapping with %s requires explicit specification of process '
      .. 'group or device_mesh.', name)
  elseif over == nil then
    return { B.world() } -- one host: all its ranks
  elseif type(over) ~= 'table' or #over ~= 2 then
    errors.raise('ValueError', 'Expected process_group to be passed in as either None or '
      .. 'Tuple[dist.ProcessGroup, dist.ProcessGroup] but got %s', arguments.noun(over))
  else
    shard, replicate = over[1], over[2]
  end
  shard = arguments.group('FSDP', 'the shard group', shard)
  replicate = arguments.group('FSDP', 'the replicate group', replicate)
  check_across(shard, replicate)
  local _, inside = runtime.place(shard)
  local _, across = runtime.place(replicate)
  local _, world = runtime.place(B.world())
  if inside * across ~= world then
    errors.raise('NotImplementedError', '%s over groups of %d and %d ranks needs a job of %d '
      .. 'ranks, this one has %d', name, inside, across, inside * across, world)
  end
  return { shard, replicate }
end

-- The group over which is sharded.
local function group_of(given)
  local name = given.device_mesh ~= nil and 'device_mesh' or 'process_group'
  local over = given[name]
  if given.hybrid_groups or HYBRID[given.sharding_strategy] then
    return B.world()
  elseif mesh.is(over) then
    if over.ndim > 1 then
      errors.raise('ValueError', "FSDP: '%s' has %d dimensions, which the strategies HYBRID_SHARD "
        .. "and _HYBRID_SHARD_ZERO2 take; give one of them, as mesh['dp']", name, over.ndim)
    end
    return arguments.group('FSDP', name, over:get_group())
  elseif given.device_mesh ~= nil then
    arguments.refuse('FSDP', name, over, 'a DeviceMesh')
  end
  return over == nil and B.world() or arguments.group('FSDP', name, over)
end

--- FSDP_USE_FULL_PREC_IN_EVAL=1, with or without MS_ before it, when a model is wrapped: modules in
--- evaluation compute in the parameters' own dtype.
---@return boolean
function options.full_precision_in_eval()
  local name = 'FSDP_USE_FULL_PREC_IN_EVAL'
  return (os.getenv('MS_' .. name) or os.getenv(name)) == '1'
end

--- Options with their defaults filled in. What PyTorch takes and this does not is named.
---@param given ms.fsdp.Options?
---@return table
function options.normalised(given)
  given = errors.options('FSDP', given, options.KNOWN)
  if given.process_group ~= nil and given.device_mesh ~= nil then
    errors.raise('ValueError', 'Cannot pass both process_group and device_mesh at the same time')
  end
  if given.ignored_modules ~= nil and given.ignored_states ~= nil then
    errors.raise('ValueError',
      'Cannot pass both ignored_modules and ignored_states at the same time')
  end
  if given.param_init_fn ~= nil and type(given.param_init_fn) ~= 'function' then
    errors.raise('ValueError', 'Expected %s to be callable', arguments.noun(given.param_init_fn))
  end
  return {
    sharding_strategy = strategy(given.sharding_strategy),
    auto_wrap_policy = policies.of(given.auto_wrap_policy),
    backward_prefetch = one_of('backward_prefetch', given.backward_prefetch, 'BACKWARD_PRE',
      { 'BACKWARD_PRE', 'BACKWARD_POST', 'none' }),
    forward_prefetch = arguments.flag('FSDP', 'forward_prefetch', given.forward_prefetch, false),
    mixed_precision = precision(given.mixed_precision),
    use_orig_params = arguments.flag('FSDP', 'use_orig_params', given.use_orig_params, false),
    ignored_modules = given.ignored_modules,
    ignored_states = given.ignored_states,
    limit_all_gathers = arguments.flag('FSDP', 'limit_all_gathers', given.limit_all_gathers, true),
    process_group = group_of(given),
    device_mesh = given.device_mesh,
    hybrid_groups = given.hybrid_groups or HYBRID[given.sharding_strategy]
      and hybrid_groups(given.sharding_strategy, given) or nil,
    cpu_offload = offload(given.cpu_offload),
    device_id = check_device_id(given.device_id),
    param_init_fn = given.param_init_fn,
    sync_module_states = arguments.flag('FSDP', 'sync_module_states', given.sync_module_states,
      false),
  }
end

--- What PyTorch warns about, once per tree. It replaces the strategy in a world of one and names
--- DistributedDataParallel, which does not exist here.
function options.warn(opts)
  local _, world = runtime.place(opts.process_group)
  if world == 1 and opts.sharding_strategy ~= 'NO_SHARD' then
    errors.warn('UserWarning', ('%s shards nothing since the world size is 1. The strategy stays '
      .. 'as given.'):format(opts.sharding_strategy), opts.process_group)
  elseif world > 1 and opts.sharding_strategy == 'NO_SHARD' then
    errors.warn('FutureWarning', 'The `NO_SHARD` sharding strategy is deprecated. PyTorch has '
      .. '`DistributedDataParallel` instead; here a model wrapped with NO_SHARD replaces it, and '
      .. 'stays supported.', opts.process_group)
  end
end

return options
