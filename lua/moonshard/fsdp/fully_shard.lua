--- fully_shard(module, options): the parameters of a module sharded over ranks in place, as
--- PyTorch's FSDP2. The module gets a class of its own, with the methods of
--- moonshard.fsdp.fsdp_module; it keeps its fields and paths.

local B = require 'moonshard_ffi'
local Module = require 'moonshard.nn.module'
local ModuleDict = require 'moonshard.nn.module_dict'
local ModuleList = require 'moonshard.nn.module_list'
local State = require 'moonshard.fsdp.state'
local arguments = require 'moonshard_ffi.arguments'
local class = require 'moonshard.base.class'
local errors = require 'moonshard.base.errors'
local fsdp_module = require 'moonshard.fsdp.fsdp_module'
local mesh = require 'moonshard.dist.mesh'
local module_tree = require 'moonshard.nn.tree'
local options = require 'moonshard.fsdp.options'
local parameter = require 'moonshard_ffi.parameter'
local placement = require 'moonshard.dist.placement'
local util = require 'moonshard.base.util'

---@class ms.fsdp.MixedPrecisionPolicy
---@field param_dtype? ms.DType  of compute and gather; default: the parameters' own
---@field reduce_dtype? ms.DType  of the reduction of gradients; default: the parameters' own,
---  whatever param_dtype is
---@field output_dtype? ms.DType  of the floating results of forward; default: as they are
---@field cast_forward_inputs? boolean  floating inputs are cast to param_dtype (default true)

--- Parameters, gradients and optimizer states are on the device.
---@class ms.fsdp.OffloadPolicy
local OffloadPolicy = class 'fsdp.OffloadPolicy'

--- This rank's parts of parameters, gradients and optimizer states are in host memory. The device
--- accesses it, so it is pinned whatever `pin_memory` is, and the device runs an optimizer's step.
---@class ms.fsdp.CPUOffloadPolicy: ms.fsdp.OffloadPolicy
---@field pin_memory boolean
local CPUOffloadPolicy = class('fsdp.CPUOffloadPolicy', OffloadPolicy)

---@param opts? {}
function OffloadPolicy:init(opts)
  errors.options(self._name, opts, {})
end

---@param opts? { pin_memory?: boolean }  default true
function CPUOffloadPolicy:init(opts)
  local given = errors.options(self._name, opts, { pin_memory = 'flag' })
  self.pin_memory = given.pin_memory ~= false
end

---@class ms.fsdp.FullyShardOptions
---@field mesh? ms.dist.DeviceMesh  default: all ranks, in one dimension. With two named dimensions
---  the ranks along the second divide parameters, those along the first have equal parts
---@field reshard_after_forward? boolean|integer  free the full parameters after forward, and
---  gather them again for the backward. Default: true, and false for the root. A divisor k of the
---  number of ranks: 1 is false, others are true (PyTorch divides parameters among k ranks then)
---@field shard_placement_fn? fun(param: ms.Tensor): ms.dist.Placement?  called once with each
---  parameter. nil and Shard(1) divide its first dimension; others are NotImplementedError
---@field mp_policy? ms.fsdp.MixedPrecisionPolicy
---@field offload_policy? ms.fsdp.OffloadPolicy
---@field ignored_params? ms.Tensor[]  left as they are

---@class ms.fsdp.ReplicateOptions
---@field mesh? ms.dist.DeviceMesh  of one dimension; default: all ranks
---@field mp_policy? ms.fsdp.MixedPrecisionPolicy
---@field offload_policy? ms.fsdp.OffloadPolicy
---@field ignored_params? ms.Tensor[]  left as they are

-- What differs between the functions: the prefix of classes, dimensions that a mesh may have, known
-- options, and options of FSDP, by dimensions of the mesh.
local APIS = {
  fully_shard = {
    prefix = 'FSDP', ndim = 2, dims = '1D or 2D',
    known = { mesh = 'any', reshard_after_forward = 'any', shard_placement_fn = 'any',
      mp_policy = 'any', offload_policy = 'any', ignored_params = 'list' },
    { sharding_strategy = 'FULL_SHARD', shard_layout = 'rows' },
    { sharding_strategy = 'HYBRID_SHARD', shard_layout = 'rows' },
  },
  replicate = {
    prefix = 'Replicate', ndim = 1, dims = '1D',
    known = { mesh = 'any', mp_policy = 'any', offload_policy = 'any', ignored_params = 'list' },
    { sharding_strategy = 'NO_SHARD' },
  },
}

local POLICY = { param_dtype = 'floating', reduce_dtype = 'floating', output_dtype = 'floating',
  cast_forward_inputs = 'flag' }

-- The number of dimensions of the mesh.
local function mesh_ndim(api, given)
  if given == nil then
    return 1
  elseif not mesh.is(given) then
    arguments.refuse(api, 'mesh', given, 'a DeviceMesh')
  elseif given.ndim > APIS[api].ndim then
    errors.raise('ValueError', '%s expects a %s DeviceMesh but got %s', api, APIS[api].dims,
      tostring(given))
  elseif given.ndim == 2 and not given.mesh_dim_names then
    errors.raise('AssertionError', 'Please init the 2D mesh for HSDP with mesh_dim_names '
      .. 'specified')
  end
  return given.ndim
end

local function reshards(value, n_shards)
  if value == nil or type(value) == 'boolean' then
    return value
  elseif type(value) ~= 'number' then
    errors.raise('ValueError', 'reshard_after_forward should be a bool or an int representing the '
      .. 'group size to reshard to, not %s', arguments.noun(value))
  elseif value < 1 or n_shards % value ~= 0 then
    errors.raise('ValueError', 'If passing reshard_after_forward as an int, it should be a factor '
      .. 'of %d, not %.17g', n_shards, value)
  end
  return value > 1
end

local function check_module(api, module)
  local manager = module_tree.manager(module)
  local by = manager and manager.api
  if by and api == 'replicate' and by ~= api then
    errors.raise('RuntimeError', 'Cannot apply `replicate()` on a Module already managed by '
      .. '`fully_shard`: %s', module._name)
  elseif by then
    errors.raise('AssertionError', 'Each distinct composable distributed API can only be applied '
      .. 'to a module once. %s is sharded by %s already.', module._name, by)
  elseif manager then
    errors.raise('ValueError', '%s: %s is sharded by FSDP already', api, module._name)
  elseif util.is_any(module, { ModuleList, ModuleDict }) and module.forward == Module.forward then
    errors.raise('ValueError', '%s does not support containers that do not implement forward: %s',
      api, module._name)
  end
end

-- The modules of a group, without those that another one contains.
local function group_of(api, given)
  local listed = module_tree.is_module(given) and { given } or given
  if type(given) ~= 'table' or #listed == 0 then
    arguments.refuse(api, 'module', given, 'a module or a list of modules')
  end
  for i, module in ipairs(arguments.array(api, 'module', listed)) do
    if not module_tree.is_module(module) then
      arguments.refuse(api, ('module[%d]'):format(i), module, 'a module')
    end
    check_module(api, module)
  end
  local out, inner = {}, {}
  for _, module in ipairs(listed) do
    for _, below in ipairs(module:modules()) do
      inner[below] = inner[below] or below ~= module
    end
  end
  for _, module in ipairs(listed) do
    if not inner[module] then
      out[#out + 1], inner[module] = module, true
    end
  end
  return out
end

local function offloads(api, policy)
  if policy ~= nil and not util.is(policy, OffloadPolicy) then
    arguments.refuse(api, 'offload_policy', policy, 'a fsdp.OffloadPolicy')
  end
  return util.is(policy, CPUOffloadPolicy)
end

-- What `fn` gives for a parameter must be what `rows` does.
local function check_placement(fn, p, name)
  local placed, ndim = fn(p), parameter.facts(p).ndim
  if placed == nil then
    return
  elseif not (placement._is(placed) and placed:is_shard()) then
    errors.raise('ValueError', "Invalid shard_placement_fn result for '%s': expected nil or "
      .. 'dist.Shard(dim), got %s', name, placement._is(placed) and tostring(placed)
      or arguments.noun(placed))
  end
  local dim = placed.dim < 0 and placed.dim + ndim + 1 or placed.dim
  if dim < 1 or dim > ndim then
    errors.raise('AssertionError', "Shard dim %d is invalid for '%s' of %d dimensions", placed.dim,
      name, ndim)
  elseif dim > 1 then
    errors.raise('NotImplementedError', "shard_placement_fn gives %s for '%s', but fully_shard "
      .. 'divides dimension 1 of parameters; return nil or Shard(1)', tostring(placed), name)
  end
end

-- Checks each parameter once.
local function placement_check(fn)
  local seen = {}
  if fn == nil then
    return nil
  end
  arguments.fn('fully_shard', 'shard_placement_fn', fn)
  return function(p, name)
    if not seen[parameter.key(p)] then
      seen[parameter.key(p)] = true
      check_placement(fn, p, name)
    end
  end
end

local function state_options(api, given)
  for i, p in ipairs(given.ignored_params or {}) do
    if not parameter.is_parameter(p) then
      arguments.refuse(api, ('ignored_params[%d]'):format(i), p, 'a parameter')
    end
  end
  local policy = errors.options('mp_policy', given.mp_policy, POLICY)
  local casts = policy.cast_forward_inputs ~= false
  local opts = options.normalised(util.merged(APIS[api][mesh_ndim(api, given.mesh)], {
    device_mesh = given.mesh, use_orig_params = true, ignored_states = given.ignored_params,
    cpu_offload = offloads(api, given.offload_policy),
    mixed_precision = {
      param_dtype = policy.param_dtype, reduce_dtype = policy.reduce_dtype,
      cast_forward_inputs = casts, cast_root_forward_inputs = casts,
    },
  }))
  local shards = opts.hybrid_groups and opts.hybrid_groups[1] or opts.process_group
  opts.settings = {
    reshard_after_forward = reshards(given.reshard_after_forward, B.C.ms_comm_size(shards)),
  }
  opts.api, opts.reason = api, 'by hand'
  opts.output_dtype = policy.output_dtype
  opts.check_param = placement_check(given.shard_placement_fn)
  opts.reduces_in_own_dtype = not policy.reduce_dtype
  return opts
end

local function shard(api, module, opts)
  local given = errors.options(api, opts, APIS[api].known)
  local modules, complete = group_of(api, module), state_options(api, given)
  complete.others = util.slice(modules, 2)
  State(modules[1], modules[1], complete)
  for _, m in ipairs(modules) do
    fsdp_module.adopt(m, APIS[api].prefix)
  end
  return module
end

local api = { OffloadPolicy = OffloadPolicy, CPUOffloadPolicy = CPUOffloadPolicy }

--- Shard a module in place. Its parameters, except those of modules below that are sharded
--- already, are gathered around its forward and backward as one group. The module that runs first
--- is the root of its tree. Of several modules, which run one after another, the parameters are one
--- group: it is gathered for the first that runs, and freed after the last; a module inside
--- another one of the list is left out. The class of a module becomes one that derives from it,
--- with more methods. ValueError for a list of modules without forward, and for a scalar parameter;
--- AssertionError for a module that is sharded already.
---@generic M: ms.nn.Module|ms.nn.Module[]
---@param module M
---@param opts? ms.fsdp.FullyShardOptions
---@return M|ms.fsdp.FSDPModule
function api.fully_shard(module, opts)
  return shard('fully_shard', module, opts)
end

--- The same without sharding: every rank has all parameters, and gradients are averaged.
--- RuntimeError for a module that fully_shard() was called on.
---@generic M: ms.nn.Module|ms.nn.Module[]
---@param module M
---@param opts? ms.fsdp.ReplicateOptions
---@return M|ms.fsdp.FSDPModule
function api.replicate(module, opts)
  return shard('replicate', module, opts)
end

return api
