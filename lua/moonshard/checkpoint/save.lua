--- Saving: every rank writes its own elements.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local fits = require 'moonshard.checkpoint.fits'
local json = require 'moonshard.base.json'
local meta_data = require 'moonshard.checkpoint.meta'
local parts = require 'moonshard.checkpoint.parts'
local parameter = require 'moonshard_ffi.parameter'
local random = require 'moonshard.base.random'
local dropout_counters = require 'moonshard.nn.dropout_counters'
local runtime = require 'moonshard_ffi.checkpoint'
local state = require 'moonshard.checkpoint.state'
local state_dict = require 'moonshard.nn.state_dict'
local tree = require 'moonshard.nn.tree'
local validate = require 'moonshard.checkpoint.validate'
local shared = require 'moonshard.checkpoint.shared'

---@class ms.checkpoint.State  objects to save or load; all are optional, but one is required
---@field model? ms.nn.Module
---@field modules? table<string, ms.nn.Module>  several models by name
---@field optimizer? ms.optim.Optimizer
---@field optimizers? table<string, ms.optim.Optimizer>  several by name
---@field loader? ms.data.Loader
---@field [string] table  any object with state_dict() and load_state_dict(): scheduler, scaler,
---  ema or another name. Its state consists of numbers (including infinity and NaN), strings,
---  booleans, tensors that all ranks have, ShardedTensors, and tables of these; it must be equal on
---  all ranks, except for ShardedTensors. Keys of tables that contain tensors must not contain '/'
---@field process_group? ms.dist.Group  whose ranks save or load together (default: the group over
---  which model or optimizer is sharded, else the loader's, else all ranks). Required for a plain
---  model that was trained by a group without FSDP
---
--- A checkpoint contains exactly the objects passed to save(). Loading an object that it lacks
--- raises KeyError; a load of more than models warns about objects that it leaves out. State of an
--- optimizer is stored by parameter name, whether the parameter is frozen or not. If several models
--- of an optimizer have parameters with equal names, state is stored by the models' names in
--- `modules` too: save and load the optimizer with `modules`. All parameters of an optimizer must
--- belong to the models passed with it (ValueError). When it is loaded, each group gets the options
--- of the group with the same parameters, and each parameter its stored state: an optimizer without
--- momentum gets momentum from a checkpoint that has it.

-- Does this rank write its elements of a parameter? Rank 0 writes those that all ranks hold; among
-- groups with equal shards the first one writes.
local function writes(param, rank)
  local manager = parameter.manager(param)
  if not manager or manager.sharding_strategy == 'NO_SHARD' then
    return rank == 0
  end
  return manager.replica == 0
end

local function add_model(writer, part_of, comm, opts)
  local model, prefix = part_of.value, part_of.prefix
  local rank, params = B.C.ms_comm_rank(comm), tree.prepared_params(model:materialize())
  for _, p in ipairs(params) do
    if opts.frozen ~= false or p.tensor:requires_grad() then
      local part, extent = parameter.part(p.tensor)
      local mine = writes(p.tensor, rank)
      runtime.add(writer, prefix .. p.name, extent, mine and part or nil)
    end
  end
  for _, b in ipairs(state_dict.buffers(model)) do
    local part, extent = shared.whole(b.entry:uncast())
    runtime.add(writer, prefix .. b.name, extent, rank == 0 and part or nil)
  end
  return { dropout = dropout_counters.of(model), frozen = opts.frozen }
end

local function add_optimizer(writer, part_of, comm, _, list)
  local rank, optimizer = B.C.ms_comm_rank(comm), part_of.value
  runtime.same(writer, 'the ' .. part_of.label, optimizer.kind)
  local names, order = fits.names(optimizer, list)
  fits.models(optimizer, parts.values(list, 'model'))
  local steps = {}
  local entries, states = optimizer:_entries()
  for _, i in ipairs(order) do
    local entry, name = entries[i], names[i]
    local _, extent = parameter.part(entry.param)
    local mine = writes(entry.param, rank)
    steps[name] = entry.steps
    for _, state_name in ipairs(states) do
      local value = entry.state[state_name]
      if value then
        local key = shared.state_key(part_of, state_name, name)
        runtime.add(writer, key, extent, mine and value or nil)
      end
    end
  end
  local groups = optimizer:_group_options(function(i) return names[i] end)
  return { kind = optimizer.kind, steps = steps, groups = groups }
end

local function add_loader(writer, part)
  local position = part.value:state()
  runtime.same(writer, 'the position in the data', json.encode(position))
  return position
end

local function add_state(writer, part, comm)
  local rank = B.C.ms_comm_rank(comm)
  local encoded = state.encode(state.of(part), function(value, path)
    local elements, extent, sharded, first = state.elements(value)
    local mine = sharded and first or not sharded and rank == 0
    runtime.add(writer, part.prefix .. path, extent, mine and elements or nil)
  end)
  runtime.same(writer, 'the state of ' .. part.label, json.encode(encoded))
  return encoded
end

local ADD = { model = add_model, optimizer = add_optimizer, loader = add_loader, state = add_state }

local function check_save(what, opts)
  arguments.whole(what, 'step', opts.step, nil, 0)
  arguments.list(what, 'config', opts.config, {})
  arguments.flag(what, 'frozen', opts.frozen, true)
  return validate.parts(what, opts)
end

---@class ms.checkpoint.SaveOptions: ms.checkpoint.State
---@field step integer
---@field config? table  numbers, strings, booleans, and tables of these; returned with the
---  metadata
---@field frozen? boolean  false: leave out parameters that do not require gradients, as those
---  below adapters; a load keeps the values that the model has (default true)

--- Write `<root>/<name>`. Collective: every rank passes the same parts, step and config. An
--- existing checkpoint of this name is replaced as a whole. If the save fails, existing checkpoints
--- are unchanged. Rank 0 writes what every rank holds in full: parameters outside FSDP units or
--- under NO_SHARD and their optimizer state, buffers, the seed and the positions of the random
--- generators.
---@param root string  folder, made if it is missing; root and name must be equal on all ranks
---@param name string
---@param opts ms.checkpoint.SaveOptions
---@return string path
return function(root, name, opts)
  opts = parts.options('checkpoint.save', opts, { 'step', 'config', 'frozen', 'process_group' })
  validate.path('checkpoint.save', 'root', root)
  validate.path('checkpoint.save', 'name', name)
  local list = check_save('checkpoint.save', opts)
  local comm = validate.group('checkpoint.save', list, opts.process_group)
  local writer = runtime.begin(comm, root, name)
  local meta = shared.guarded(comm, writer, runtime.fail, runtime.discard, function()
    local config = state.encode(opts.config)
    local all = { step = opts.step, config = config, seed = parameter.seed(),
      random = random.position(), parts = parts.labels(list) }
    runtime.same(writer, 'what is saved', table.concat(all.parts, ', ')
      .. (opts.frozen == false and ', without frozen parameters' or ''))
    runtime.same(writer, 'the config', json.encode(config or {}))
    for _, part in ipairs(list) do
      meta_data.set(all, part, ADD[part.kind](writer, part, comm, opts, list))
    end
    return json.encode(all)
  end)
  runtime.commit(writer, meta)
  return root .. '/' .. name
end
