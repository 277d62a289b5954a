--- Checkpoints: model, optimizer, loader and what the script adds, written by all ranks together,
--- all or nothing, and read back on any number of ranks.
---
--- Every rank writes the elements it holds; nothing is gathered. What all ranks hold alike is
--- written by rank 0.
---
--- Touches: moonshard.json, moonshard_ffi.checkpoint, moonshard_ffi.parameter.

local class = require 'moonshard.class'
local buffer = require 'moonshard.nn.buffer'
local errors = require 'moonshard.errors'
local json = require 'moonshard.json'
local parameter = require 'moonshard_ffi.parameter'
local runtime = require 'moonshard_ffi.checkpoint'
local sharding = require 'moonshard_ffi.fsdp'
local util = require 'moonshard.util'
local tree = require 'moonshard.nn.tree'

local checkpoint = {}

---@class ms.checkpoint.State  what is saved and restored; leave out what is not there
---@field model? ms.nn.Module
---@field optimizer? ms.optim.Optimizer
---@field loader? ms.data.Loader

---@class ms.checkpoint.SaveOptions: ms.checkpoint.State
---@field step integer
---@field config? table  numbers, strings, booleans, tables of them; comes back with the meta data

-- -- keys ----------------------------------------------------------------------------------------

local function model_key(name)
  return 'model/' .. name
end

local function state_key(state, name)
  return ('optim/%s/%s'):format(state, name)
end

-- Do all ranks hold all of this parameter?
local function is_replicated(param)
  local manager = parameter.manager(param)
  return not manager or manager.sharding_strategy == 'NO_SHARD'
end

local function persistent_buffers(model)
  local out = {}
  for _, b in ipairs(tree.buffers(model)) do
    if b.entry.persistent then
      out[#out + 1] = b
    end
  end
  return out
end

-- A copy of a plain tensor as 1-D (nil when it has no elements), and the extent of all of it.
local function whole(t)
  return parameter.whole(t:clone():reshape(t:numel()), t)
end

-- -- writing -------------------------------------------------------------------------------------

local function add_model(writer, model, rank)
  for _, p in ipairs(model:named_parameters()) do
    local part, extent = parameter.part(p.tensor)
    local mine = rank == 0 or not is_replicated(p.tensor)
    runtime.add(writer, model_key(p.name), extent, mine and part or nil)
  end
  for _, b in ipairs(persistent_buffers(model)) do
    local part, extent = whole(buffer.value(b.entry))
    runtime.add(writer, model_key(b.name), extent, rank == 0 and part or nil)
  end
end

local function add_optimizer(writer, optimizer, rank)
  local steps = {}
  local entries, states = optimizer:_entries()
  for _, entry in ipairs(entries) do
    local _, extent = parameter.part(entry.param)
    local mine = rank == 0 or not is_replicated(entry.param)
    steps[entry.name] = entry.steps
    for _, state in ipairs(states) do
      runtime.add(writer, state_key(state, entry.name), extent, mine and entry.state[state] or nil)
    end
  end
  return { kind = optimizer.kind, steps = steps, groups = optimizer:_group_options() }
end

local function check_names(optimizer)
  local seen = {}
  for _, entry in ipairs((optimizer:_entries())) do
    if entry.name == '' or seen[entry.name] then
      errors.raise('ValueError', entry.name == ''
        and 'a parameter of the optimizer has no name: it belongs to no module'
        or "two parameters of the optimizer are called '%s'", entry.name)
    end
    seen[entry.name] = true
  end
end

--- Write `<root>/<name>`. Collective; on a failure the checkpoints before stay as they were.
---@param root string  folder, made when missing
---@param name string
---@param opts ms.checkpoint.SaveOptions
---@return string path
function checkpoint.save(root, name, opts)
  opts = errors.options('checkpoint.save', opts,
    { 'step', 'model', 'optimizer', 'loader', 'config' })
  local comm = sharding.world()
  local rank = sharding.place(comm)
  local meta = { step = opts.step, config = opts.config, seed = parameter.seed() }
  if opts.loader then
    meta.loader = opts.loader:state()
  end
  if opts.model then
    opts.model:materialize()
  end
  if opts.optimizer then
    check_names(opts.optimizer)
  end
  local writer = runtime.begin(comm, root, name)
  local ok, err = pcall(function()
    if opts.model then
      add_model(writer, opts.model, rank)
    end
    if opts.optimizer then
      meta.optimizer = add_optimizer(writer, opts.optimizer, rank)
    end
    return json.encode(meta)
  end)
  if not ok then
    runtime.discard(writer)
    error(err, 0)
  end
  runtime.commit(writer, err)
  return root .. '/' .. name
end

-- -- reading -------------------------------------------------------------------------------------

local function check_shape(handle, key, extent)
  local found = runtime.shape(handle, key)
  local same = #found == #extent.shape
  for i = 1, #found do
    same = same and found[i] == extent.shape[i]
  end
  if not same then
    errors.raise('ValueError', "'%s' has shape (%s) in the checkpoint, expected (%s)", key,
      table.concat(found, ', '), table.concat(extent.shape, ', '))
  end
end

local function read_into(handle, key, extent, part)
  if not runtime.has(handle, key) then
    errors.raise('KeyError', "the checkpoint has no '%s'", key)
  end
  check_shape(handle, key, extent)
  if part then
    runtime.read(handle, key, extent, part)
  end
end

local function read_model(handle, model)
  for _, p in ipairs(model:named_parameters()) do
    local part, extent = parameter.part(p.tensor)
    read_into(handle, model_key(p.name), extent, part)
    parameter.touch(p.tensor)
  end
  for _, b in ipairs(persistent_buffers(model)) do
    local part, extent = whole(buffer.value(b.entry))
    read_into(handle, model_key(b.name), extent, part)
    buffer.load(b.entry, part and part:reshape(b.tensor:shape()) or b.tensor)
  end
end

local function read_optimizer(handle, optimizer, meta)
  if not meta then
    errors.raise('KeyError', 'the checkpoint has no optimizer')
  elseif meta.kind ~= optimizer.kind then
    errors.raise('ValueError', 'the checkpoint holds the state of %s, expected %s', meta.kind,
      optimizer.kind)
  end
  local entries, states = optimizer:_entries()
  for i, entry in ipairs(entries) do
    local _, extent = parameter.part(entry.param)
    for _, state in ipairs(states) do
      read_into(handle, state_key(state, entry.name), extent, entry.state[state])
    end
    optimizer:_set_steps(i, meta.steps[entry.name] or 0)
  end
  optimizer:_set_group_options(meta.groups)
end

---@class ms.checkpoint.Meta
---@field step integer
---@field config? table

--- Read a checkpoint into what is given. Every rank reads its own elements.
---@param path string
---@param opts ms.checkpoint.State
---@return ms.checkpoint.Meta
function checkpoint.load(path, opts)
  opts = errors.options('checkpoint.load', opts, { 'model', 'optimizer', 'loader' })
  local handle = runtime.open(path)
  local meta
  local ok, err = pcall(function()
    meta = json.decode(runtime.meta(handle))
    if opts.model then
      opts.model:materialize()
      read_model(handle, opts.model)
    end
    if opts.optimizer then
      read_optimizer(handle, opts.optimizer, meta.optimizer)
    end
    if opts.loader then
      opts.loader:load_state(meta.loader or errors.raise('KeyError',
        'the checkpoint has no position in the data'))
    end
  end)
  runtime.close(handle)
  if not ok then
    error(err, 0)
  end
  if meta.seed ~= parameter.seed() then
    errors.warn('UserWarning', ('the checkpoint was made with seed %s, this run has %s'):format(
      tostring(meta.seed), parameter.seed()))
  end
  return meta
end

--- What was saved beside the tensors, without reading them.
---@param path string
---@return ms.checkpoint.Meta
function checkpoint.read_meta(path)
  local handle = runtime.open(path)
  local ok, meta = pcall(function()
    return json.decode(runtime.meta(handle))
  end)
  runtime.close(handle)
  if not ok then
    error(meta, 0)
  end
  return meta
end

--- Path of the newest complete checkpoint under `root`, or nil.
---@param root string
---@return string?
function checkpoint.latest(root)
  return runtime.latest(root)
end

--- Remove all but the newest `keep`, and what died writers left.
---@param root string
---@param keep integer
function checkpoint.prune(root, keep)
  runtime.prune(root, keep)
end

-- -- one folder of checkpoints -------------------------------------------------------------------

--- Checkpoints of one run, named by their step.
---@class ms.checkpoint.Manager
---@field root string
---@field keep integer
---@overload fun(opts: { root: string, keep?: integer }): ms.checkpoint.Manager
local Manager = class('checkpoint.Manager')
checkpoint.Manager = Manager

---@param opts { root: string, keep?: integer }  keep: how many (default 2)
function Manager:init(opts)
  opts = errors.options(self._name, opts, { 'root', 'keep' })
  if type(opts.root) ~= 'string' then
    errors.raise('TypeError', 'root is a %s, expected a path', type(opts.root))
  end
  self.root, self.keep = opts.root, opts.keep or 2
end

--- Save, then remove what is too old. Collective.
---@param opts ms.checkpoint.SaveOptions
---@return string path
function Manager:save(opts)
  local path = checkpoint.save(self.root, ('step-%08d'):format(opts.step), opts)
  local comm = sharding.world()
  if sharding.place(comm) == 0 then
    checkpoint.prune(self.root, self.keep)
  end
  return path
end

--- Read the newest complete checkpoint. @return its meta data, nil when there is none
---@param opts ms.checkpoint.State
---@return ms.checkpoint.Meta?
function Manager:resume(opts)
  local path = checkpoint.latest(self.root)
  return path and checkpoint.load(path, opts) or nil
end

-- -- interchange ---------------------------------------------------------------------------------

--- Write all full parameters as one safetensors file (by rank 0). Collective.
---@param path string
---@param model ms.nn.Module
function checkpoint.export(path, model)
  local sd = model:state_dict { rank0_only = true }
  if sharding.place(sharding.world()) == 0 then
    local names, tensors, seen = {}, {}, {}
    for _, name in ipairs(sd) do
      local key = parameter.key(sd[name])
      if not seen[key] then -- a tied parameter goes in once: the format refuses shared memory
        seen[key] = true
        names[#names + 1] = name
        tensors[#tensors + 1] = sd[name]
      end
    end
    runtime.save_safetensors(path, names, tensors)
  end
end

--- Read a safetensors file into a model; a tied parameter may stand there under any of its names.
---@param path string
---@param model ms.nn.Module
function checkpoint.import(path, model)
  local names, tensors = runtime.load_safetensors(path)
  local sd, name_of = {}, {}
  for i, name in ipairs(names) do
    sd[i], sd[name] = name, tensors[i]
  end
  for _, p in ipairs(tree.params(model, true, false)) do
    local key = parameter.key(p.tensor)
    name_of[key] = name_of[key] or sd[p.name] and p.name
  end
  for _, p in ipairs(tree.params(model, true, false)) do
    local name = name_of[parameter.key(p.tensor)]
    if not sd[p.name] and name then
      sd[#sd + 1], sd[p.name] = p.name, sd[name]
    end
  end
  model:load_state_dict(sd)
end

--- Tensors of a safetensors file by name, in its order.
---@param path string
---@return ms.StateDict
function checkpoint.read_safetensors(path)
  local names, tensors = runtime.load_safetensors(path)
  local sd = {}
  for i, name in ipairs(names) do
    sd[i], sd[name] = name, tensors[i]
  end
  return sd
end

--- Write tensors by name as one safetensors file.
---@param path string
---@param sd ms.StateDict|table<string, ms.Tensor>
function checkpoint.write_safetensors(path, sd)
  local names, tensors = sd[1] and util.slice(sd, 1) or util.sorted_keys(sd), {}
  for i, name in ipairs(names) do
    tensors[i] = sd[name]
  end
  runtime.save_safetensors(path, names, tensors)
end

return checkpoint
