--- Checkpoints: model, optimizer, loader and what the script adds, written by all ranks together,
--- all or nothing, and read back on any number of ranks.
---
--- Every rank writes the elements it holds; nothing is gathered. What all ranks hold alike is
--- written by rank 0.
---
--- "All ranks" are those of the group over which the model or optimizer is sharded
--- (`process_group`), counted from 0. Each group saves under a path of its own, and steps under a
--- root of its own: of two groups that save one path, the last one replaces the other's.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local class = require 'moonshard.base.class'
local dist = require 'moonshard.dist'
local errors = require 'moonshard.base.errors'
local fits = require 'moonshard.checkpoint.fits'
local json = require 'moonshard.base.json'
local meta_data = require 'moonshard.checkpoint.meta'
local namespace = require 'moonshard.base.namespace'
local notes = require 'moonshard_ffi.notes'
local parts = require 'moonshard.checkpoint.parts'
local parameter = require 'moonshard_ffi.parameter'
local random = require 'moonshard.base.random'
local dropout_counters = require 'moonshard.nn.dropout_counters'
local runtime = require 'moonshard_ffi.checkpoint'
local sharding = require 'moonshard_ffi.fsdp'
local state = require 'moonshard.checkpoint.state'
local state_dict = require 'moonshard.nn.state_dict'
local tree = require 'moonshard.nn.tree'
local util = require 'moonshard.base.util'
local validate = require 'moonshard.checkpoint.validate'

local checkpoint = {}

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

---@class ms.checkpoint.SaveOptions: ms.checkpoint.State
---@field step integer
---@field config? table  numbers, strings, booleans, tables of them; comes back with the meta data

local function state_key(part, state_name, name)
  return ('%s%s/%s'):format(part.prefix, state_name, name)
end

-- Does this rank write its elements of a parameter? Rank 0 what all hold, and of the groups that
-- hold equal parts the first.
local function writes(param, rank)
  local manager = parameter.manager(param)
  if not manager or manager.sharding_strategy == 'NO_SHARD' then
    return rank == 0
  end
  return manager.replica == 0
end

-- A copy of a plain tensor as 1-D (nil when it has no elements), and the extent of all of it.
local function whole(t)
  return parameter.whole(t:clone():reshape(t:numel()), t)
end

-- -- writing -------------------------------------------------------------------------------------

local function add_model(writer, part_of, comm)
  local model, prefix = part_of.value, part_of.prefix
  local rank, params = sharding.place(comm), tree.prepared_params(model:materialize())
  for _, p in ipairs(params) do
    local part, extent = parameter.part(p.tensor)
    local mine = writes(p.tensor, rank)
    runtime.add(writer, prefix .. p.name, extent, mine and part or nil)
  end
  for _, b in ipairs(state_dict.buffers(model)) do
    local part, extent = whole(b.entry:uncast())
    runtime.add(writer, prefix .. b.name, extent, rank == 0 and part or nil)
  end
  return { dropout = dropout_counters.of(model) }
end

local function add_optimizer(writer, part_of, comm, list)
  local rank, optimizer = sharding.place(comm), part_of.value
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
        local key = state_key(part_of, state_name, name)
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
  local rank = sharding.place(comm)
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

-- Run what may fail on one rank only between two collectives. A failure goes to the commit, which
-- raises it on all ranks; alone, the error object itself is raised.
local function guarded(comm, handle, fail, discard, fn)
  local ok, err = pcall(fn)
  if ok then
    return err
  end
  local _, size = sharding.place(comm)
  if size == 1 then
    discard(handle)
    error(err, 0)
  end
  fail(handle, err)
end

--- Write `<root>/<name>`. Collective: every rank gives the same parts, step and config. A
--- checkpoint of this name is replaced as a whole, also by one that holds less. On a failure the
--- checkpoints before stay as they were. Rank 0 writes what every rank holds in full: parameters
--- outside of FSDP units or under NO_SHARD with their optimizer state, buffers, the seed and the
--- positions of the generators.
---@param root string  folder, made when missing; equal on all ranks, as `name` is
---@param name string
---@param opts ms.checkpoint.SaveOptions
---@return string path
function checkpoint.save(root, name, opts)
  opts = parts.options('checkpoint.save', opts, { 'step', 'config', 'process_group' })
  validate.path('checkpoint.save', 'root', root)
  validate.path('checkpoint.save', 'name', name)
  local list = check_save('checkpoint.save', opts)
  local comm = validate.group('checkpoint.save', list, opts.process_group)
  local writer = runtime.begin(comm, root, name)
  local meta = guarded(comm, writer, runtime.fail, runtime.discard, function()
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

-- -- reading -------------------------------------------------------------------------------------

-- A load has two halves. Everything that can fail comes first and writes no tensor; what is left
-- for after the commit is appended to `after`, what a failure takes back to `undo`. The
-- load_state_dict() of a part can fail, too: it comes first where the state has no tensors, else
-- last.

---@class ms.checkpoint.Load  one that is prepared
---@field loader ffi.cdata*
---@field keys table  all keys of the checkpoint in order, and the place of each by key
---@field after fun()[]  to be done when all is read
---@field undo fun()[]  ... or when that fails
---@field states fun()[]  after that, load_state_dict() of states with tensors
---@field parts ms.checkpoint.Part[]  what is loaded into
---@field strict boolean

-- Is all that the checkpoint has below `prefix` expected by the model or optimizer?
local function check_keys(load, prefix, expected, noun)
  for _, key in ipairs(load.strict and load.keys or {}) do
    if key:sub(1, #prefix) == prefix and not expected[key] then
      errors.raise('KeyError', "the checkpoint has '%s', which the %s has not", key, noun)
    end
  end
end

local function add_load_of_model(load, part_of, meta)
  local after, expected = load.after, {}
  local model, prefix = part_of.value:materialize(), part_of.prefix
  local function wanted(key)
    expected[key] = true
    return load.strict or load.keys[key]
  end
  for _, p in ipairs(tree.prepared_params(model)) do
    local part, extent = parameter.part(p.tensor)
    if wanted(prefix .. p.name) then
      runtime.load_add(load.loader, prefix .. p.name, extent, part)
      after[#after + 1] = function() parameter.touch(p.tensor) end
    end
  end
  for _, b in ipairs(state_dict.buffers(model)) do
    local part, extent = whole(b.entry:uncast())
    local value = part and part:reshape(b.tensor:shape()) or b.tensor
    if wanted(prefix .. b.name) then
      runtime.load_add(load.loader, prefix .. b.name, extent, part)
      after[#after + 1] = b.entry:prepare_load(value)
    end
  end
  check_keys(load, prefix, expected, part_of.label)
  after[#after + 1] = function() dropout_counters.continue(model, meta and meta.dropout) end
end

local function add_load_of_optimizer(load, part_of, meta)
  local keys, after, optimizer = load.keys, load.after, part_of.value
  local names = fits.names(optimizer, load.parts, type(meta.steps) == 'table' and meta.steps or nil)
  fits.models(optimizer, parts.values(load.parts, 'model'))
  if meta.kind ~= optimizer.kind then
    errors.raise('ValueError', 'the checkpoint holds the state of %s, expected %s',
      tostring(meta.kind), optimizer.kind)
  end
  if type(meta.groups) ~= 'table' then
    errors.raise('FormatError', 'the optimizer in the checkpoint has no options of its groups')
  end
  optimizer:_check_group_options(meta.groups)
  fits.options(meta.groups, optimizer.options)
  local groups = fits.groups(meta.groups, optimizer, names, not load.strict)
  after[#after + 1] = function() optimizer:_set_group_options(groups) end
  local steps = type(meta.steps) == 'table' and meta.steps
  optimizer:_await_later_states(function(state_name, i) -- old ones have zeros before step 1
    return keys[state_key(part_of, state_name, names[i])] and (steps and steps[names[i]]) ~= 0
  end, after, load.undo)
  local entries, states = optimizer:_entries()
  local expected = {}
  for i, entry in ipairs(entries) do
    local _, extent = parameter.part(entry.param)
    for _, state_name in ipairs(states) do
      local key = state_key(part_of, state_name, names[i])
      expected[key] = true
      if keys[key] or not optimizer:_is_later(state_name) then
        runtime.load_add(load.loader, key, extent, entry.state[state_name])
      end
    end
    local n = steps and steps[names[i]]
    if type(n) ~= 'number' or n % 1 ~= 0 or n < 0 or n > 2 ^ 53 then
      errors.raise('FormatError', "the optimizer in the checkpoint has taken %s steps for '%s', "
        .. 'expected a whole number', tostring(n), names[i])
    end
    after[#after + 1] = function() optimizer:_set_steps(i, n) end
  end
  check_keys(load, part_of.prefix, expected, part_of.label)
end

local function add_load_of_data(load, part, position)
  part.value:check_state(position)
  load.after[#load.after + 1] = function() part.value:load_state(position) end
end

local function add_load_of_state(load, part, encoded)
  local now, has_tensors = state.of(part), false
  local target = state.targets(part.label, now)
  local sd = state.decode(encoded, function(path)
    has_tensors = true
    local value, elements, extent = target(path)
    runtime.load_add(load.loader, part.prefix .. path, extent, elements)
    return value
  end)
  if has_tensors then
    load.states[#load.states + 1] = function() part.value:load_state_dict(sd) end
    return
  end
  load.undo[#load.undo + 1] = function() pcall(part.value.load_state_dict, part.value, now) end
  part.value:load_state_dict(sd)
end

local ADD_LOAD = {
  model = add_load_of_model, optimizer = add_load_of_optimizer, loader = add_load_of_data,
  state = add_load_of_state,
}

-- A load of models alone does not continue training and needs no warning.
local function warn_of_rest(comm, meta, list)
  local asked, rest, trains = {}, {}, false
  for _, part in ipairs(list) do
    asked[part.label], trains = true, trains or part.kind ~= 'model'
  end
  for _, label in ipairs(meta.parts or {}) do
    rest[#rest + 1] = trains and not asked[label] and label or nil
  end
  if #rest > 0 then
    errors.warn('UserWarning', 'the checkpoint has state that was not loaded: '
      .. table.concat(rest, ', '), comm)
  end
end

-- Give parts their states. An error on one rank is raised on all.
local function load_states(comm, load)
  local ok, err = true, nil
  for _, give in ipairs(load.states) do
    local taken, why = pcall(give)
    ok, err = ok and taken, err or why
  end
  local _, size = sharding.place(comm)
  if #load.states > 0 and size > 1 then
    local failed = sharding.exchange(comm, 'checkpoint.load', { ok and 0 or 1 })[1]
    for rank, flag in ipairs(failed) do
      if flag ~= 0 then
        local text = dist.broadcast_object(B.errors.text(err), rank - 1, comm)
        if ok then
          errors.raise('RuntimeError', 'checkpoint.load: rank %d failed: %s', rank - 1, text)
        end
        break
      end
    end
  end
  if not ok then
    error(err, 0)
  end
end

-- Read what `loader` has opened into the parts of `list`. Collective.
local function load_into(comm, loader, opts, list)
  local meta
  local load = {
    loader = loader, after = {}, undo = {}, states = {}, parts = list,
    strict = opts.strict ~= false,
  }
  notes.text(comm, 'what is loaded', table.concat(parts.labels(list), ', '))
  local function prepare()
    local continues = false
    local source = runtime.load_source(loader)
    load.keys, meta = runtime.keys(source), meta_data.read(source)
    for _, part in ipairs(list) do
      continues = continues or part.kind == 'optimizer' or part.kind == 'loader'
      ADD_LOAD[part.kind](load, part, meta_data.get(meta, part))
    end
    if meta.random and continues then -- older checkpoints have none
      load.after[#load.after + 1] = function() random.continue(meta.random) end
    end
  end
  local ok, err = pcall(function()
    guarded(comm, loader, runtime.load_fail, runtime.load_discard, prepare)
    runtime.load_commit(loader)
  end)
  for _, finish in ipairs(ok and load.after or load.undo) do
    finish()
  end
  if not ok then
    error(err, 0)
  end
  load_states(comm, load)
  if meta.seed ~= parameter.seed() then
    errors.warn('UserWarning', ('the checkpoint was made with seed %s, this run has %s'):format(
      tostring(meta.seed), parameter.seed()), comm)
  end
  warn_of_rest(comm, meta, list)
  return meta
end

local function check_load(what, opts)
  opts = parts.options(what, opts, { 'process_group', 'strict' })
  if opts.strict ~= nil then
    arguments.flag(what, 'strict', opts.strict)
  end
  return opts, validate.parts(what, opts)
end

---@class ms.checkpoint.LoadOptions: ms.checkpoint.State
---@field strict? boolean  false: parameters and buffers of models that the checkpoint lacks, or has
---  beside them, are left alone (default true)

---@class ms.checkpoint.Meta
---@field step integer
---@field config? table

--- Read a checkpoint into what is given. Collective: all ranks read the same one, each its own
--- elements, and when one of them fails nothing is changed on any. What no FSDP unit holds, and
--- buffers, have equal values on all ranks afterwards. With an optimizer or loader random numbers
--- go on, on all ranks, where rank 0 was. The seed is not set; another one is a warning.
---
--- load_state_dict() of a part whose state has no tensors runs before models and optimizers are
--- loaded. A failure of the load gives the part its earlier state again. With tensors in the state
--- it runs last: an error in it is raised on all ranks, but what else was given is loaded then.
---@param path string
---@param opts ms.checkpoint.LoadOptions
---@return ms.checkpoint.Meta
function checkpoint.load(path, opts)
  local list
  opts, list = check_load('checkpoint.load', opts)
  validate.path('checkpoint.load', 'path', path)
  local comm = validate.group('checkpoint.load', list, opts.process_group)
  return load_into(comm, runtime.load_begin(comm, path), opts, list)
end

--- What was saved beside the tensors, without reading them.
---@param path string
---@return ms.checkpoint.Meta
function checkpoint.read_meta(path)
  validate.path('checkpoint.read_meta', 'path', path)
  local handle = runtime.open(path)
  local ok, meta = pcall(meta_data.read, handle)
  runtime.close(handle)
  if not ok then
    error(meta, 0)
  end
  return meta
end

--- Path of the checkpoint under `root` that was saved last, whatever its step: where the link
--- `latest` points. When it is broken or gone, that of the newest intact one by step. Reads every
--- byte of it; broken ones are passed over with a warning, and when there are only such it is a
--- FormatError that says what is wrong with each.
---@param root string
---@return string?  nil when there is no checkpoint at all
function checkpoint.latest(root)
  validate.path('checkpoint.latest', 'root', root)
  return runtime.latest(root)
end

--- Remove all checkpoints but `keep`: the one that was saved last, then the newest by step, with a
--- warning when there is one of a greater step. And what died writers left. What cannot be removed
--- is a warning; what is not ours or broken stays.
---@param root string
---@param keep integer
function checkpoint.prune(root, keep)
  validate.path('checkpoint.prune', 'root', root)
  arguments.whole('checkpoint.prune', 'keep', keep, nil, 1)
  runtime.prune(root, keep)
end

-- -- one folder of checkpoints -------------------------------------------------------------------

--- Checkpoints of one run, named by their step. Each group of a job needs a root of its own.
---@class ms.checkpoint.Manager
---@field root string
---@field keep integer|false  false: nothing is removed
---@field process_group ms.dist.Group|false  false: each save() and resume() finds it as load() does
---@overload fun(opts: ms.checkpoint.Manager.Options): ms.checkpoint.Manager
local Manager = class('checkpoint.Manager')
checkpoint.Manager = Manager

---@class ms.checkpoint.Manager.Options
---@field root string
---@field keep? integer  how many to keep, see save() (without: all); rank 0's counts
---@field process_group? ms.dist.Group  of what is saved: see ms.checkpoint.State

---@param opts ms.checkpoint.Manager.Options
function Manager:init(opts)
  opts = errors.options(self._name, opts, { 'root', 'keep', 'process_group' })
  validate.path(self._name, 'root', opts.root)
  self.root = opts.root
  self.keep = opts.keep ~= nil and arguments.whole(self._name, 'keep', opts.keep, nil, 1)
  self.process_group = opts.process_group ~= nil
    and arguments.group(self._name, 'process_group', opts.process_group)
end

-- The options of one save or resume, and among them the manager's own.
local function in_group(self, opts)
  if opts.process_group ~= nil or not self.process_group then
    return opts
  end
  return util.merged(opts, { process_group = self.process_group })
end

--- Save `<root>/step-<8 digits>`. Collective. `keep = n` keeps the n newest of the checkpoints
--- named so, up to the step just saved. Later steps and checkpoints of other names are never
--- deleted. A save of a smaller step than one that is there warns, and resume() takes it. Files of
--- others in a folder that is replaced move aside, and a warning names the place.
---@param opts ms.checkpoint.SaveOptions
---@return string path
function Manager:save(opts)
  opts = in_group(self, parts.options('checkpoint.save', opts,
    { 'step', 'config', 'process_group' }))
  arguments.whole('checkpoint.save', 'step', opts.step, nil, 0)
  local path = checkpoint.save(self.root, runtime.step_name(opts.step), opts)
  local comm = validate.group('checkpoint.save', parts.of('checkpoint.save', opts),
    opts.process_group)
  if sharding.place(comm) == 0 then
    local ok, err = pcall(runtime.rotate, self.root, opts.step, self.keep or 0)
    if not ok then -- the checkpoint is safe: an old one too many ends no training
      errors.warn('UserWarning', 'old checkpoints are not removed: ' .. tostring(err), comm)
    end
  end
  return path
end

--- Read the checkpoint of a step that was saved last, else the newest by step that all ranks find
--- intact. When a checkpoint of another name was saved last, a warning names it. Collective. A
--- FormatError when there are checkpoints and none is intact; then nothing is changed.
---@param opts ms.checkpoint.LoadOptions
---@return ms.checkpoint.Meta?  nil when there is no checkpoint of a step
function Manager:resume(opts)
  local list
  opts, list = check_load('checkpoint.resume', opts)
  opts = in_group(self, opts)
  local comm = validate.group('checkpoint.resume', list, opts.process_group)
  local loader = runtime.load_latest_step(comm, self.root)
  return loader and load_into(comm, loader, opts, list)
end

-- -- interchange ---------------------------------------------------------------------------------

-- Do ranks give this model, which each holds in full, paths of their own?
local function apart(comm, path, model)
  for _, p in ipairs(tree.prepared_params(model)) do
    if parameter.manager(p.tensor) then
      return false
    end
  end
  local paths = sharding.exchange(comm, 'checkpoint.export', { parameter.text_number(path) })[1]
  for rank = 2, #paths do
    if paths[rank] ~= paths[1] then
      return true
    end
  end
  return false
end

---@class ms.checkpoint.ExportOptions
---@field process_group? ms.dist.Group  as ms.checkpoint.State has it
---@field dtype? ms.DType  of the floating tensors in the file (default: their own)

--- Write all full parameters as one safetensors file (by rank 0). Collective, with one outcome on
--- all ranks. Of what every rank holds in full, rank 0's values are written, unless ranks give
--- different paths: then each writes its own. Groups export to different paths.
---@param path string  equal on all ranks if FSDP units hold parameters; see write_safetensors()
---@param model ms.nn.Module
---@param opts? ms.checkpoint.ExportOptions
function checkpoint.export(path, model, opts)
  validate.path('checkpoint.export', 'path', path)
  opts = errors.options('checkpoint.export', opts, { process_group = 'group', dtype = 'floating' })
  local list = validate.parts('checkpoint.export', { model = model })
  local comm = validate.group('checkpoint.export', list, opts.process_group)
  model:materialize()
  local own = apart(comm, path, model)
  local sd = model:state_dict { rank0_only = true }
  local names, tensors, seen = {}, {}, {}
  if own or sharding.place(comm) == 0 then
    for _, name in ipairs(sd) do
      local key = parameter.key(sd[name])
      if not seen[key] then -- a tied parameter goes in once: the format refuses shared memory
        seen[key] = true
        names[#names + 1] = name
        local floating = opts.dtype and parameter.facts(sd[name]).floating
        tensors[#tensors + 1] = floating and sd[name]:to(opts.dtype) or sd[name]
      end
    end
  end
  if own then
    runtime.save_safetensors(path, names, tensors)
  else
    runtime.export(comm, path, names, tensors)
  end
end

local function read_tensors(path)
  local names, tensors = runtime.load_safetensors(path)
  local sd = {}
  for i, name in ipairs(names) do
    sd[i], sd[name] = name, tensors[i]
  end
  return sd
end

-- One parameter has one value, whatever its names.
local function check_tied(path, sd, first, second)
  if parameter.hash_number(sd[first]) ~= parameter.hash_number(sd[second]) then
    errors.raise('ValueError', "%s: '%s' and '%s' are one parameter of the model, but have two "
      .. 'values', path, first, second)
  end
end

-- Take out of a state dict what has another shape than in the model. Gives the names.
local function drop_mismatched(sd, model)
  local names = {}
  local function compare(name, shape)
    if sd[name] and table.concat(sd[name]:shape(), ' ') ~= table.concat(shape, ' ') then
      names[#names + 1], sd[name] = name, nil
    end
  end
  for _, p in ipairs(tree.params(model, true, false)) do
    compare(p.name, p.shape)
  end
  for _, b in ipairs(state_dict.buffers(model)) do
    compare(b.name, b.tensor:shape())
  end
  return names
end

local function import(path, model, opts)
  local sd, name_of = read_tensors(path), {}
  for _, p in ipairs(tree.params(model, true, false)) do
    local key = parameter.key(p.tensor)
    local first = name_of[key]
    if first and sd[p.name] then
      check_tied(path, sd, first, p.name)
    end
    name_of[key] = first or sd[p.name] and p.name
  end
  for _, p in ipairs(tree.params(model, true, false)) do
    local name = name_of[parameter.key(p.tensor)]
    if not sd[p.name] and name then
      sd[#sd + 1], sd[p.name] = p.name, sd[name]
    end
  end
  local mismatched = opts.ignore_mismatched_sizes and drop_mismatched(sd, model) or {}
  local report = model:load_state_dict(sd, { strict = opts.strict })
  report.mismatched_keys = mismatched
  return report
end

---@class ms.checkpoint.ImportOptions
---@field process_group? ms.dist.Group  as of export(); of a plain model every rank reads for
---  itself
---@field strict? boolean  names must match exactly (default true)
---@field ignore_mismatched_sizes? boolean  leave parameters and buffers alone whose shape is
---  another in the file (default false); they count as missing, so it needs strict = false

--- Read a safetensors file into a model; a tied parameter may be in it under any of its names.
--- Under several with other values it is a ValueError, and nothing is changed. Every rank holds the
--- whole file meanwhile.
---@param path string
---@param model ms.nn.Module
---@param opts? ms.checkpoint.ImportOptions
---@return { missing_keys: string[], unexpected_keys: string[], mismatched_keys: string[] }
function checkpoint.import(path, model, opts)
  validate.path('checkpoint.import', 'path', path)
  local list = parts.of('checkpoint.import', { model = model })
  opts = errors.options('checkpoint.import', opts,
    { process_group = 'group', strict = 'flag', ignore_mismatched_sizes = 'flag' })
  if opts.process_group ~= nil then -- else nobody is asked who the ranks are
    validate.group('checkpoint.import', list, opts.process_group)
  end
  local report = import(path, model, opts)
  B.give_back() -- the whole file, which a step may not have room beside
  return report
end

--- Tensors of a safetensors file by name, in its order.
---@param path string
---@return ms.StateDict
function checkpoint.read_safetensors(path)
  validate.path('checkpoint.read_safetensors', 'path', path)
  return read_tensors(path)
end

--- Write tensors by name as one safetensors file. Not collective: each rank that calls it
--- writes what it has (of sharded parameters its own part); of several that write one path the
--- last wins. So one rank calls it, or each with a path of its own; export() writes whole
--- models.
---@param path string  a regular file there is replaced, of a link its target; nothing else is. Its
---  folder is made when missing
---@param sd ms.StateDict|table<string, ms.Tensor>  all that has a name, listed or not
function checkpoint.write_safetensors(path, sd)
  validate.path('checkpoint.write_safetensors', 'path', path)
  arguments.list('checkpoint.write_safetensors', 'sd', sd)
  local names, tensors = state_dict.names(sd), {}
  for i, name in ipairs(names) do
    arguments.text('checkpoint.write_safetensors', 'name', name)
    tensors[i] = arguments.tensor('checkpoint.write_safetensors', name, sd[name])
  end
  runtime.save_safetensors(path, names, tensors)
end

return namespace.space('checkpoint', checkpoint)
