--- State of optimizers of sharded models, by names of parameters: it moves between numbers of ranks
--- and wrappings. (A checkpoint does the same without bringing values together.)
---
---     sd.state[name] = { step = n, exp_avg = tensor, ... }
---     sd.param_groups[i] = { lr = ..., params = { name, ... } }
---
--- The state dict type of the model decides what the tensors are: whole ones (FULL_STATE_DICT), or
--- ShardedTensors with this rank's elements.

local B = require 'moonshard_ffi'
local ShardedTensor = require 'moonshard.dist.sharded_tensor'
local arguments = require 'moonshard_ffi.arguments'
local create = require 'moonshard.base.create'
local dist = require 'moonshard.dist'
local errors = require 'moonshard.base.errors'
local members = require 'moonshard.dist.members'
local parameter = require 'moonshard_ffi.parameter'
local runtime = require 'moonshard_ffi.fsdp'
local state_dict_type = require 'moonshard.fsdp.state_dict_type'
local tree = require 'moonshard.nn.tree'
local util = require 'moonshard.base.util'
local whole_state = require 'moonshard.optim.whole_state'

local optim_state = {}

local function check(what, model, optimizer)
  if not tree.is_module(model) then
    arguments.refuse(what, 'model', model, 'a module')
  elseif type(optimizer) ~= 'table' or not optimizer._is_optimizer then
    arguments.refuse(what, 'optim', optimizer, 'an optimizer')
  end
end

---@class ms.fsdp.OptimEntries  parameters of an optimizer over a model
---@field list table[]  of Optimizer:_entries()
---@field names string[]  in the model, of the same
---@field states string[]
---@field order integer[]  of the same in the model. Collectives go by it: ranks may give the
---  parameters to the optimizer in different orders

---@return ms.fsdp.OptimEntries
local function entries_of(model, optimizer)
  local list, states = optimizer:_entries()
  local index_of, names, order = {}, {}, {}
  for i, entry in ipairs(list) do
    index_of[parameter.key(entry.param)] = i
  end
  for _, p in ipairs(tree.prepared_params(model)) do
    local i = index_of[parameter.key(p.tensor)]
    if i then
      names[i], order[#order + 1] = p.name, i
    end
  end
  for i, entry in ipairs(list) do
    if not names[i] then
      errors.raise('ValueError', "the optimizer holds a parameter that is not the model's: '%s'",
        entry.name)
    end
  end
  return { list = list, names = names, states = states, order = order }
end

-- One state of one parameter, of which this rank has `value` (1-D, nil for no elements).
local function sharded(param, value)
  return parameter.manager(param):_sharded(param, value and value:clone(),
    value and value:dtype() or param:dtype())
end

local function is_sharded(param)
  local manager = parameter.manager(param)
  return manager and manager.sharding_strategy ~= 'NO_SHARD'
end

local function whole(param, value)
  local _, extent = parameter.part(param)
  return value:clone():reshape(extent.shape)
end

-- States of a parameter that any rank has; a rank without elements of it has no states.
local function exists(param, entry, states)
  local flags = {}
  for i, state in ipairs(states) do
    flags[i] = entry.state[state] and 1 or 0
  end
  if not is_sharded(param) or #states == 0 then
    return flags
  end
  for i, ranks in ipairs(runtime.exchange(parameter.manager(param).shard_group,
    'optim_state_dict', flags)) do
    flags[i] = math.max(unpack(ranks))
  end
  return flags
end

local function entry_state(entry, states, is_full)
  local param = entry.param
  local out, found = { step = entry.steps }, exists(param, entry, states)
  for i, state in ipairs(states) do
    if found[i] > 0 and not is_sharded(param) then
      out[state] = whole(param, entry.state[state])
    elseif found[i] > 0 then
      local value = sharded(param, entry.state[state])
      out[state] = is_full and value:full_tensor() or value
    end
  end
  return out
end

-- The group over which the model is sharded; nil for a plain one.
local function group_of(model)
  local params = {}
  for i, p in ipairs(tree.prepared_params(model)) do
    params[i] = p.tensor
  end
  return (members.of(params))
end

local function of(model, optimizer, is_full, rank0_only)
  local entries = entries_of(model, optimizer)
  local out = { state = {} }
  for _, i in ipairs(entries.order) do
    local entry = entries.list[i]
    if entry.steps > 0 then
      out.state[entries.names[i]] = entry_state(entry, entries.states, is_full)
    end
  end
  out.param_groups = optimizer:_group_options(function(i) return entries.names[i] end)
  return rank0_only and dist.get_rank(group_of(model)) ~= 0 and {} or out
end

--- The state of an optimizer over the model's parameters; those that took no step are absent.
--- Collective with the type FULL_STATE_DICT; with its `rank0_only` ranks other than 0 of the
--- model's process group get {}.
---@param model ms.nn.Module
---@param optim ms.optim.Optimizer
---@return table
function optim_state.of(model, optim)
  check('optim_state_dict', model, optim)
  local settings = state_dict_type.get(model)
  local is_full = settings.state_dict_type == 'FULL_STATE_DICT'
  return of(model, optim, is_full, is_full and settings.optim_state_dict_config.rank0_only)
end

-- This rank's elements of a whole tensor, or of one in parts.
local function elements(name, state, value, extent)
  if type(value) == 'table' and util.is(value, ShardedTensor) then
    whole_state.check_shape(name, state, value, extent)
    return value:_elements_of('optim_state_dict_to_load', extent)
  end
  return whole_state.elements('optim_state_dict_to_load', name, state, value, extent)
end

local function check_state(what, sd)
  if type(sd) ~= 'table' or type(sd.state) ~= 'table' or type(sd.param_groups) ~= 'table' then
    errors.raise('ValueError', '%s: the state dict must have the keys "state" and "param_groups"',
      what)
  end
end

-- A name that is not the model's is one of another model or wrapping, and its state would be lost.
local function check_names(what, state, model)
  local known, unknown = {}, {}
  for _, p in ipairs(tree.prepared_params(model)) do
    known[p.name] = true
  end
  for name in next, state do
    unknown[#unknown + 1] = not known[name] and tostring(name) or nil
  end
  if #unknown > 0 then
    table.sort(unknown)
    errors.raise('KeyError', "%s: the model has no parameter '%s'%s", what, unknown[1],
      #unknown > 1 and (', nor %d others of sd.state'):format(#unknown - 1) or '')
  end
end

local function check_groups(what, groups)
  for g, group in ipairs(groups) do
    local name = ('sd.param_groups[%d]'):format(g)
    arguments.array(what, name .. '.params', arguments.list(what, name, group).params)
  end
end

--- The argument of optim:load_state_dict(), from a result of optim_state_dict() on any number of
--- ranks and for any wrapping. Parameters without state in it start from zeros; KeyError for a name
--- that the model does not have. A group takes the options of the group with the same parameters,
--- in any order. Collective for ShardedTensors.
---@param model ms.nn.Module
---@param optim ms.optim.Optimizer
---@param sd table
---@return ms.optim.StateDict
function optim_state.to_load(model, optim, sd)
  local what = 'optim_state_dict_to_load'
  check(what, model, optim)
  check_state(what, sd)
  local entries = entries_of(model, optim)
  check_names(what, sd.state, model)
  check_groups(what, sd.param_groups)
  optim:_check_group_options(sd.param_groups)
  local out = { state = {}, param_groups = {} }
  for _, i in ipairs(entries.order) do
    local name = entries.names[i]
    out.state[i] = whole_state.entry(optim, entries.list[i], entries.states, sd.state[name],
      function(state, value, extent) return elements(name, state, value, extent) end)
  end
  for g, group in ipairs(optim:_match_groups(what, sd.param_groups, entries.names)) do
    out.param_groups[g] = util.merged(group, { params = util.slice(group.params, 1) })
  end
  return out
end

local function deprecated(name, other)
  errors.warn('FutureWarning', ('`%s` is being deprecated and is replaced by `%s`'):format(name,
    other))
end

--- optim_state_dict() with whole tensors, whatever the state dict type.
---@param model ms.nn.Module
---@param optim ms.optim.Optimizer
---@param opts? { rank0_only?: boolean }  default true
---@return table
function optim_state.full(model, optim, opts)
  check('full_optim_state_dict', model, optim)
  deprecated('full_optim_state_dict', 'optim_state_dict')
  opts = errors.options('full_optim_state_dict', opts, { rank0_only = 'flag' })
  return of(model, optim, true, opts.rank0_only ~= false)
end

--- optim_state_dict() with ShardedTensors.
---@param model ms.nn.Module
---@param optim ms.optim.Optimizer
---@return table
function optim_state.sharded(model, optim)
  check('sharded_optim_state_dict', model, optim)
  deprecated('sharded_optim_state_dict', 'optim_state_dict')
  return of(model, optim, false, false)
end

--- optim_state_dict_to_load() of a state dict with whole tensors, which every rank has.
---@param sd table
---@param model ms.nn.Module
---@param optim ms.optim.Optimizer
---@return ms.optim.StateDict
function optim_state.shard_full(sd, model, optim)
  check('shard_full_optim_state_dict', model, optim)
  deprecated('shard_full_optim_state_dict', 'optim_state_dict_to_load')
  return optim_state.to_load(model, optim, sd)
end

--- optim_state_dict_to_load() of a state dict with ShardedTensors.
---@param sd table
---@param model ms.nn.Module
---@param optim ms.optim.Optimizer
---@return ms.optim.StateDict
function optim_state.flatten_sharded(sd, model, optim)
  check('flatten_sharded_optim_state_dict', model, optim)
  deprecated('flatten_sharded_optim_state_dict', 'optim_state_dict_to_load')
  return optim_state.to_load(model, optim, sd)
end

-- The state dict as plain values, its tensors as { shape, dtype }, for ranks without it.
local function described(sd)
  local out = { state = {}, param_groups = sd.param_groups }
  for name, given in next, sd.state do -- any order: broadcast_object() sorts
    out.state[name] = {}
    for key, value in next, given do
      out.state[name][key] = B.is_ref(value) and { shape = value:shape(), dtype = value:dtype() }
        or value
    end
  end
  return out
end

-- This rank's part of rank 0's whole tensor.
local function received(param, value, about, group)
  value = value or create.empty(about.shape, { dtype = about.dtype })
  dist.broadcast(value, 0, group)
  if not is_sharded(param) then
    return value
  end
  local _, extent = parameter.part(param)
  return sharded(param, value:reshape(-1):narrow(1, extent.start + 1, extent.numel))
end

--- shard_full_optim_state_dict() of a state dict that rank 0 has; others may pass nil. Ranks keep
--- their elements only. Collective.
---@param sd? table
---@param model ms.nn.Module
---@param optim ms.optim.Optimizer
---@param group? ms.dist.Group  default: that over which the model is sharded, else all ranks
---@return ms.optim.StateDict
function optim_state.scatter_full(sd, model, optim, group)
  local what = 'scatter_full_optim_state_dict'
  check(what, model, optim)
  deprecated(what, 'optim_state_dict_to_load')
  group = group or group_of(model)
  local has_all = dist.get_rank(group) == 0
  if has_all and (type(sd) ~= 'table' or type(sd.state) ~= 'table') then
    errors.raise('ValueError', '%s: rank 0 must give the state dict', what)
  end
  local parts = dist.broadcast_object(has_all and described(sd) or nil, 0, group)
  for _, p in ipairs(tree.prepared_params(model)) do
    local about = parts.state[p.name] or {}
    for _, key in ipairs(util.sorted_keys(about)) do
      if type(about[key]) == 'table' then
        about[key] = received(p.tensor, has_all and sd.state[p.name][key], about[key], group)
      end
    end
  end
  return optim_state.to_load(model, optim, parts)
end

--- The state dict with numbers of parameters, from 0 in order of the model, in place of their names
--- ('PARAM_ID'), or the other way round ('PARAM_NAME').
---@param sd table
---@param key_type 'PARAM_ID'|'PARAM_NAME'
---@param model ms.nn.Module
---@return table
function optim_state.rekey(sd, key_type, model)
  local what, to, n = 'rekey_optim_state_dict', {}, 0
  check_state(what, sd)
  if not tree.is_module(model) then
    arguments.refuse(what, 'model', model, 'a module')
  end
  if key_type ~= 'PARAM_ID' and key_type ~= 'PARAM_NAME' then
    errors.choice(what, 'key_type', key_type, { 'PARAM_ID', 'PARAM_NAME' })
  end
  for _, p in ipairs(tree.prepared_params(model)) do
    if key_type == 'PARAM_ID' then
      to[p.name] = n
    else
      to[n] = p.name
    end
    n = n + 1
  end
  local function key_of(key)
    return to[key] or errors.raise('KeyError', "%s: the model has no parameter '%s'", what,
      tostring(key))
  end
  local out = { state = {}, param_groups = {} }
  for key, value in next, sd.state do
    out.state[key_of(key)] = value
  end
  for g, group in ipairs(sd.param_groups) do
    local params = {}
    for i, key in ipairs(group.params) do
      params[i] = key_of(key)
    end
    out.param_groups[g] = util.merged(group, { params = params })
  end
  return out
end

return optim_state
