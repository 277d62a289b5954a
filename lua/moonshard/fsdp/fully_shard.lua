--- fully_shard(module, options): the parameters of a module sharded over ranks in place, as
--- PyTorch's FSDP2. The module gets a class of its own, with the methods of
--- moonshard.fsdp.fsdp_module; it keeps its fields and paths.

local B = require 'moonshard_ffi'
local Module = require 'moonshard.nn.module'
local ModuleDict = require 'moonshard.nn.module_dict'
local ModuleList = require 'moonshard.nn.module_list'
local State = require 'moonshard.fsdp.state'
local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'
local fsdp_module = require 'moonshard.fsdp.fsdp_module'
local mesh = require 'moonshard.dist.mesh'
local module_tree = require 'moonshard.nn.tree'
local options = require 'moonshard.fsdp.options'
local util = require 'moonshard.base.util'

---@class ms.fsdp.MixedPrecisionPolicy
---@field param_dtype? ms.DType  of compute and gather; default: the parameters' own
---@field reduce_dtype? ms.DType  of the reduction of gradients; default: the parameters' own,
---  whatever param_dtype is
---@field output_dtype? ms.DType  of the floating results of forward; default: as they are
---@field cast_forward_inputs? boolean  floating inputs are cast to param_dtype (default true)

---@class ms.fsdp.FullyShardOptions
---@field mesh? ms.dist.DeviceMesh  of one dimension; default: all ranks
---@field reshard_after_forward? boolean|integer  free the full parameters after forward, and
---  gather them again for the backward. Default: true, and false for the root. A divisor k of the
---  number of ranks: 1 is false, others are true (PyTorch divides parameters among k ranks then)
---@field mp_policy? ms.fsdp.MixedPrecisionPolicy
---@field ignored_params? ms.Tensor[]  left as they are

local KNOWN = { mesh = 'any', reshard_after_forward = 'any', mp_policy = 'any',
  ignored_params = 'list' }

local POLICY = { param_dtype = 'floating', reduce_dtype = 'floating', output_dtype = 'floating',
  cast_forward_inputs = 'flag' }

-- The number of dimensions of the mesh; nil without one.
local function check_mesh(given)
  if given == nil then
    return
  elseif not mesh.is(given) then
    arguments.refuse('fully_shard', 'mesh', given, 'a DeviceMesh')
  elseif given.ndim > 2 then
    errors.raise('ValueError', 'fully_shard expects a 1D or 2D DeviceMesh but got %s',
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

local function check_module(module)
  local manager = module_tree.manager(module)
  if manager and manager.api then
    errors.raise('AssertionError', 'Each distinct composable distributed API can only be applied '
      .. 'to a module once. %s is sharded by %s already.', module._name, manager.api)
  elseif manager then
    errors.raise('ValueError', 'fully_shard: %s is sharded by FSDP already', module._name)
  elseif util.is_any(module, { ModuleList, ModuleDict }) and module.forward == Module.forward then
    errors.raise('ValueError', 'fully_shard does not support containers that do not implement '
      .. 'forward: %s', module._name)
  end
end

-- The modules of a group, without those that another one contains.
local function group_of(given)
  local listed = module_tree.is_module(given) and { given } or given
  if type(given) ~= 'table' or #listed == 0 then
    arguments.refuse('fully_shard', 'module', given, 'a module or a list of modules')
  end
  for i, module in ipairs(arguments.array('fully_shard', 'module', listed)) do
    if not module_tree.is_module(module) then
      arguments.refuse('fully_shard', ('module[%d]'):format(i), module, 'a module')
    end
    check_module(module)
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

local function state_options(given)
  local policy = errors.options('mp_policy', given.mp_policy, POLICY)
  check_mesh(given.mesh)
  local casts = policy.cast_forward_inputs ~= false
  local opts = options.normalised {
    device_mesh = given.mesh, shard_layout = 'rows', use_orig_params = true,
    ignored_states = given.ignored_params,
    mixed_precision = {
      param_dtype = policy.param_dtype, reduce_dtype = policy.reduce_dtype,
      cast_forward_inputs = casts, cast_root_forward_inputs = casts,
    },
  }
  opts.settings = {
    reshard_after_forward = reshards(given.reshard_after_forward,
      B.C.ms_comm_size(opts.process_group)),
  }
  opts.api, opts.reason = 'fully_shard', 'by hand'
  opts.output_dtype = policy.output_dtype
  opts.reduces_in_own_dtype = not policy.reduce_dtype
  return opts
end

--- Shard a module in place. Its parameters, except those of modules below that are sharded
--- already, are gathered around its forward and backward as one group. The module that runs first
--- is the root of its tree. Of several modules, which run one after another, the parameters are one
--- group: it is gathered for the first that runs, and freed after the last; a module inside
--- another one of the list is left out. ValueError for a list of modules without forward, and for a
--- scalar parameter; AssertionError for a module that is sharded already.
---@generic M: ms.nn.Module|ms.nn.Module[]
---@param module M
---@param opts? ms.fsdp.FullyShardOptions
---@return M
return function(module, opts)
  local given = errors.options('fully_shard', opts, KNOWN)
  local modules, complete = group_of(module), state_options(given)
  local state = State(modules[1], modules[1], complete)
  for i = 2, #modules do
    state:_join(modules[i], complete)
  end
  for _, m in ipairs(modules) do
    fsdp_module.adopt(m, 'FSDP')
  end
  return module
end
