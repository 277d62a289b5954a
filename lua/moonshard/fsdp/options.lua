--- Options of FSDP(module, options): known names, defaults, and what is refused.

local B = require 'moonshard_ffi'
local BatchNorm = require('moonshard.nn.batch_norm')._BatchNorm
local arguments = require 'moonshard_ffi.arguments'
local check = require 'moonshard.fsdp.check'
local declared = require 'moonshard.options'
local device = require 'moonshard.base.device'
local errors = require 'moonshard.base.errors'
local launch = require 'moonshard.dist.launch'
local members = require 'moonshard.dist.members'
local mesh = require 'moonshard.dist.mesh'
local parameter = require 'moonshard_ffi.parameter'
local policies = require 'moonshard.fsdp.policies'
local util = require 'moonshard.base.util'

local options = {}

---@class ms.fsdp.MixedPrecision
---@field buffer_dtype? ms.DType
---@field cast_forward_inputs? boolean  this instance casts its floating inputs (default false)
---@field cast_root_forward_inputs? boolean  the root does (default true)
---@field module_classes_to_ignore? table[]  wrapped alone, without mixed precision;
--- default { nn._BatchNorm }

---@class ms.fsdp.Options
---@field auto_wrap_policy? ms.fsdp.Policy|ms.fsdp.PolicyObject|ms.fsdp.Function
---@field mixed_precision? ms.fsdp.MixedPrecision|false  false: none, where a policy overrides it
---@field ignored_modules? ms.nn.Module|ms.nn.Module[]
---@field ignored_states? ms.Tensor|ms.Tensor[]|ms.nn.Module|ms.nn.Module[]
---@field limit_all_gathers? boolean  accepted; the slots bound what is gathered
---@field cpu_offload? boolean|ms.fsdp.CpuOffload  true: { offload_params = true }
---@field device_id? string|integer  the device of this process: 'cuda', 'cuda:1', or its index
---@field process_group? ms.dist.Group|ms.dist.DeviceMesh|ms.dist.Group[]  default: all ranks; a
--- mesh of one dimension is its group. Hybrid strategies take { shard group, replicate group }, or
--- a mesh of two dimensions: the ranks along the second one divide parameters, those along the
--- first have equal parts. Default of hybrid strategies: a shard group for each host
---@field device_mesh? ms.dist.DeviceMesh  the same
---@field param_init_fn? fun(module: ms.nn.Module)  called, before units are made, with each module
---                        that has parameters without values. Parameters have their full shapes
---                        there; those of one unit at a time take memory
---@field sync_module_states? boolean  all ranks take rank 0's parameters and buffers (default
---                        false)

-- Options that the runtime does not know; it knows those of moonshard/fsdp.h. `kind`: a check of
-- errors.options; `field`: scripts read it as a field of a wrapped module; `compared`: equal on all
-- ranks (a flag or a dtype).
local OF_LUA = {
  { name = 'auto_wrap_policy' },
  { name = 'ignored_modules' },
  { name = 'ignored_states' },
  { name = 'limit_all_gathers', kind = 'flag', default = true, field = true, compared = true },
  { name = 'process_group', field = true },
  { name = 'device_mesh', field = true },
  { name = 'device_id', field = true },
  { name = 'param_init_fn' },
  { name = 'sync_module_states', kind = 'flag', default = false },
  { name = 'hybrid_groups' }, -- of the root, for what its policy chooses
  { name = 'buffer_dtype', group = 'mixed_precision', kind = 'floating', compared = true },
  { name = 'cast_forward_inputs', group = 'mixed_precision', kind = 'flag', default = false,
    compared = true },
  { name = 'cast_root_forward_inputs', group = 'mixed_precision', kind = 'flag', default = true,
    compared = true },
  { name = 'module_classes_to_ignore', group = 'mixed_precision', kind = 'list',
    default = { BatchNorm } },
}

-- Defaults with lists of their own: a script may add to its.
local function copied(row)
  local out = {}
  for name, value in next, row do
    out[name] = type(value) == 'table' and util.merged(value) or value
  end
  return out
end

--- What errors.options() knows of the options of FSDP.
options.KNOWN = {}
--- Options that scripts read as fields of a wrapped module.
options.FIELDS = {}

local known, defaults = { FSDP = options.KNOWN }, { FSDP = {} } -- by group

local function words(row)
  local out = {}
  for i, value in ipairs(row.values) do
    out[i] = value[1]
  end
  return out
end

local function declare(row)
  local group = row.group or 'FSDP'
  if not known[group] then
    known[group], defaults[group], options.KNOWN[group] = {}, {}, 'any'
    table.insert(options.FIELDS, group)
  elseif row.field and not row.group then
    table.insert(options.FIELDS, row.name)
  end
  known[group][row.name] = row.values and words(row) or row.kind or 'any'
  defaults[group][row.name] = row.default
end

for _, rows in ipairs { declared.ms_fsdp_unit_options, declared.ms_fsdp_tree_options, OF_LUA } do
  for _, row in ipairs(rows) do
    if row.name then
      declare(row)
    end
  end
end

--- No mixed precision: every field as it is without the option.
---@return ms.fsdp.MixedPrecision
function options.full_precision()
  return copied(defaults.mixed_precision)
end

--- Names and numbers of the options that ranks compare, without those that the runtime compares.
---@param state ms.fsdp.State
---@return string names, number[] numbers
function options.compared(state)
  local names, numbers = {}, {}
  for _, row in ipairs(OF_LUA) do
    if row.compared then
      local value = (row.group and state[row.group] or state)[row.name]
      names[#names + 1] = row.name
      numbers[#numbers + 1] = row.kind == 'flag' and (value and 1 or 0)
        or value and parameter.dtype(value) or -1
    end
  end
  return table.concat(names, ' '), numbers
end

local function group_options(name, given)
  return util.merged(copied(defaults[name]), given and errors.options(name, given, known[name]))
end

local function precision(given)
  local out = group_options('mixed_precision', given)
  check.classes('module_classes_to_ignore', out.module_classes_to_ignore)
  return out
end

local function offload(given)
  if type(given) ~= 'table' then
    given = { offload_params = arguments.flag('FSDP', 'cpu_offload', given, false) }
  end
  return group_options('cpu_offload', given)
end

local function check_device_id(id)
  local kind = device.kind()
  local own = id ~= nil and id ~= kind and device.info()
  if own and (kind == 'cpu' or id ~= own.index and id ~= device.name()) then
    errors.raise('ValueError', "device_id is %s, but the device of this process is '%s'",
      type(id) == 'string' and ("'%s'"):format(id) or tostring(id), device.name())
  end
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
  local own = B.C.ms_comm_rank(B.world())
  if #common ~= 1 or common[1] ~= own then
    errors.raise('ValueError', 'the shard group has ranks %s and the replicate group ranks %s, '
      .. 'expected rank %d as the only common one', members.text(shard), members.text(replicate),
      own)
  end
end

local of_hosts -- a mesh of all hosts, made once

-- One host: all its ranks. Several: the ranks of each, and those of equal number on all.
local function groups_of_hosts()
  local world = launch.info()
  if world.hosts == 1 then
    return { B.world() }
  elseif world.hosts * world.local_world_size ~= world.world_size then
    errors.raise('ValueError', 'a hybrid strategy without groups needs as many ranks on each host, '
      .. 'got %d ranks on %d hosts; pass process_group or device_mesh', world.world_size,
      world.hosts)
  end
  of_hosts = of_hosts
    or mesh.init_device_mesh('cpu', { world.hosts, world.local_world_size })
  return { of_hosts:get_group(2), of_hosts:get_group(1) }
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
    return groups_of_hosts()
  elseif type(over) ~= 'table' or #over ~= 2 then
    errors.raise('ValueError', 'Expected process_group to be passed in as either None or '
      .. 'Tuple[dist.ProcessGroup, dist.ProcessGroup] but got %s', arguments.noun(over))
  else
    shard, replicate = over[1], over[2]
  end
  shard = arguments.group('FSDP', 'the shard group', shard)
  replicate = arguments.group('FSDP', 'the replicate group', replicate)
  check_across(shard, replicate)
  local inside = B.C.ms_comm_size(shard)
  local across = B.C.ms_comm_size(replicate)
  local world = B.C.ms_comm_size(B.world())
  if inside * across ~= world then
    errors.raise('NotImplementedError', '%s over groups of %d and %d ranks needs a job of %d '
      .. 'ranks, this one has %d', name, inside, across, inside * across, world)
  end
  return { shard, replicate }
end

-- The group over whose ranks gradients are summed.
local function group_of(given)
  local name = given.device_mesh ~= nil and 'device_mesh' or 'process_group'
  local over = given[name]
  if given.hybrid_groups or check.HYBRID[given.sharding_strategy] then
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

--- The options with defaults, checked.
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
  check_device_id(given.device_id)
  local strategy = given.sharding_strategy
  return util.merged(util.merged(defaults.FSDP, given), {
    auto_wrap_policy = policies.of(given.auto_wrap_policy),
    mixed_precision = precision(given.mixed_precision),
    cpu_offload = offload(given.cpu_offload),
    process_group = group_of(given),
    hybrid_groups = check.HYBRID[strategy]
      and (given.hybrid_groups or hybrid_groups(strategy, given)) or nil,
  })
end

--- What PyTorch warns about, once per tree. It replaces the strategy in a world of one and names
--- DistributedDataParallel, which does not exist here.
function options.warn(opts)
  local world = B.C.ms_comm_size(opts.process_group)
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
