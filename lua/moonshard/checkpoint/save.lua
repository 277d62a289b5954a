--- Saving: every rank writes the elements that it holds.

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

---@class ms.checkpoint.State  what is saved and restored; leave out what is not there
---@field model? ms.nn.Module
---@field modules? table<string, ms.nn.Module>  several models by name
---@field optimizer? ms.optim.Optimizer
---@field optimizers? table<string, ms.optim.Optimizer>  several by name
---@field loader? ms.data.Loader
---@field [string] table  anything with state_dict() and load_state_dict(): scheduler, scaler, ema
---  or a name of the script's choice. Its state is numbers (infinite ones and NaN too), strings,
---  booleans, tensors that all ranks have or ShardedTensors, and tables of them; but for
---  ShardedTensors the same on all ranks. Keys of tables that hold tensors have no '/'
---@field process_group? ms.dist.Group  whose ranks save or load together, default: those over which
---  model or optimizer is sharded, else those the loader deals to, else all. A plain model that a
---  group has trained by hand wants it
---
--- One of them at least. A checkpoint holds what was given to save() and nothing else: loading
--- what is not in it is a KeyError; a load of more than models that leaves out what is in it warns.
--- State of an optimizer goes by the names of its parameters, whether they are frozen or not; that
--- is the model's business. If several models of one optimizer have parameters of equal names,
--- state goes by the models' names in `modules`, too: save and load the optimizer with `modules`.
--- Beside models it trains parameters of those models, a ValueError if not, though perhaps not all.
--- Each of its groups takes the options of the group with the same parameters in the checkpoint,
--- its parameters the state that is there: one without momentum gets it from a checkpoint that has
--- it.

-- Does this rank write its elements of a parameter? Rank 0 what all hold, and of the groups that
-- hold equal parts the first.
local function writes(param, rank)
  local manager = parameter.manager(param)
  if not manager or manager.sharding_strategy == 'NO_SHARD' then
    return rank == 0
  end
  return manager.replica == 0
end

local function add_model(writer, part_of, comm)
  local model, prefix = part_of.value, part_of.prefix
  local rank, params = B.C.ms_comm_rank(comm), tree.prepared_params(model:materialize())
  for _, p in ipairs(params) do
    local part, extent = parameter.part(p.tensor)
    local mine = writes(p.tensor, rank)
    runtime.add(writer, prefix .. p.name, extent, mine and part or nil)
  end
  for _, b in ipairs(state_dict.buffers(model)) do
    local part, extent = shared.whole(b.entry:uncast())
    runtime.add(writer, prefix .. b.name, extent, rank == 0 and part or nil)
  end
  return { dropout = dropout_counters.of(model) }
end

local function add_optimizer(writer, part_of, comm, list)
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
  return validate.parts(what, opts)
end

---@class ms.checkpoint.SaveOptions: ms.checkpoint.State
---@field step integer
---@field config? table  numbers, strings, booleans, tables of them; comes back with the meta data

--- Write `<root>/<name>`. Collective: every rank gives the same parts, step and config. A
--- checkpoint of this name is replaced as a whole, also by one that holds less. On a failure the
--- checkpoints before stay as they were. Rank 0 writes what every rank holds in full: parameters
--- outside of FSDP units or under NO_SHARD with their optimizer state, buffers, the seed and the
--- positions of the generators.
---@param root string  folder, made when missing; equal on all ranks, as `name` is
---@param name string
---@param opts ms.checkpoint.SaveOptions
---@return string path
return function(root, name, opts)
  opts = parts.options('checkpoint.save', opts, { 'step', 'config', 'process_group' })
  validate.path('checkpoint.save', 'root', root)
  validate.path('checkpoint.save', 'name', name)
  local list = check_save('checkpoint.save', opts)
  local comm = validate.group('checkpoint.save', list, opts.process_group)
  local writer = runtime.begin(comm, root, name)
  local meta = shared.guarded(comm, writer, runtime.fail, runtime.discard, function()
    local config = state.encode(opts.config)
    local all = { step = opts.step, config = config, seed = parameter.seed(),
      random = random.position(), parts = parts.labels(list) }
    runtime.same(writer, 'what is saved', table.concat(all.parts, ', '))
    runtime.same(writer, 'the config', json.encode(config or {}))
    for _, part in ipairs(list) do
      meta_data.set(all, part, ADD[part.kind](writer, part, comm, list))
    end
    return json.encode(all)
  end)
  runtime.commit(writer, meta)
  return root .. '/' .. name
end
