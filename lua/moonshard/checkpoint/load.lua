--- Loading: every rank reads its own elements. All ranks load everything, or none loads anything.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local dist = require 'moonshard.dist'
local errors = require 'moonshard.base.errors'
local fits = require 'moonshard.checkpoint.fits'
local meta_data = require 'moonshard.checkpoint.meta'
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
local validate = require 'moonshard.checkpoint.validate'
local shared = require 'moonshard.checkpoint.shared'

local loading = {}

-- A load has two phases. The first does everything that can fail and writes no tensor. It appends
-- to `after` what remains after the commit, and to `undo` what reverts a failed load.
-- load_state_dict() of a part can fail too: it is called in the first phase if the state has no
-- tensors, else last.

---@class ms.checkpoint.Load  a load in progress
---@field loader ffi.cdata*
---@field keys table  all keys of the checkpoint in order, and the index of each by key
---@field after fun()[]  called when everything is read
---@field undo fun()[]  called if the load fails
---@field states fun()[]  called after that: load_state_dict() of states with tensors
---@field parts ms.checkpoint.Part[]  the parts to load into
---@field strict boolean

-- Check that the model or optimizer expects every key of the checkpoint below `prefix`.
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
  local function left_out(p)
    return meta and meta.frozen == false and not load.keys[prefix .. p.name]
      and not p.tensor:requires_grad()
  end
  for _, p in ipairs(tree.prepared_params(model)) do
    local part, extent = parameter.part(p.tensor)
    if not left_out(p) and wanted(prefix .. p.name) then
      runtime.load_add(load.loader, prefix .. p.name, extent, part)
      after[#after + 1] = function() parameter.touch(p.tensor) end
    end
  end
  for _, b in ipairs(state_dict.buffers(model)) do
    local part, extent = shared.whole(b.entry:uncast())
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
  optimizer:_await_later_states(function(state_name, i) -- older checkpoints: zeros before step 1
    local key = shared.state_key(part_of, state_name, names[i])
    return keys[key] and (steps and steps[names[i]]) ~= 0
  end, after, load.undo)
  local entries, states = optimizer:_entries()
  local expected = {}
  for i, entry in ipairs(entries) do
    local _, extent = parameter.part(entry.param)
    for _, state_name in ipairs(states) do
      local key = shared.state_key(part_of, state_name, names[i])
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

-- A load of models alone does not continue training and needs no warning about other contents.
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

-- Call load_state_dict() of parts. An error on one rank is raised on all ranks.
local function load_states(comm, load)
  local ok, err = true, nil
  for _, give in ipairs(load.states) do
    local taken, why = pcall(give)
    ok, err = ok and taken, err or why
  end
  local size = B.C.ms_comm_size(comm)
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

--- Read the checkpoint opened as `loader` into the parts of `list`. Collective.
function loading.into(comm, loader, opts, list)
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
    if meta.random and continues then -- absent in older checkpoints
      load.after[#load.after + 1] = function() random.continue(meta.random) end
    end
  end
  local ok, err = pcall(function()
    shared.guarded(comm, loader, runtime.load_fail, runtime.load_discard, prepare)
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

function loading.options(what, opts)
  opts = parts.options(what, opts, { 'process_group', 'strict' })
  if opts.strict ~= nil then
    arguments.flag(what, 'strict', opts.strict)
  end
  return opts, validate.parts(what, opts)
end

---@class ms.checkpoint.LoadOptions: ms.checkpoint.State
---@field strict? boolean  false: ignore differences between the names of models' parameters and
---  buffers and those in the checkpoint (default true)

---@class ms.checkpoint.Meta
---@field step integer
---@field config? table

--- Read a checkpoint into the given objects. Collective: all ranks read the same checkpoint, each
--- its own elements, and if one fails, nothing is changed on any rank. Parameters outside FSDP
--- units and buffers are equal on all ranks afterwards. With an optimizer or loader, random numbers
--- continue on all ranks from rank 0's position. The seed is not set; a warning is issued if it
--- differs.
---
--- load_state_dict() of a part whose state has no tensors is called before models and optimizers
--- are loaded; if the load fails, the part gets its earlier state back. For a state with tensors it
--- is called last: its error is raised on all ranks, but the rest has been loaded.
---@param path string
---@param opts ms.checkpoint.LoadOptions
---@return ms.checkpoint.Meta
function loading.load(path, opts)
  local list
  opts, list = loading.options('checkpoint.load', opts)
  validate.path('checkpoint.load', 'path', path)
  local comm = validate.group('checkpoint.load', list, opts.process_group)
  return loading.into(comm, runtime.load_begin(comm, path), opts, list)
end

return loading
