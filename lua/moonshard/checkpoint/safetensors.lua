--- Models and tensors as safetensors files, for other programs.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'
local parts = require 'moonshard.checkpoint.parts'
local parameter = require 'moonshard_ffi.parameter'
local runtime = require 'moonshard_ffi.checkpoint'
local sharding = require 'moonshard_ffi.fsdp'
local state_dict = require 'moonshard.nn.state_dict'
local tree = require 'moonshard.nn.tree'
local validate = require 'moonshard.checkpoint.validate'

local safetensors = {}

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
function safetensors.export(path, model, opts)
  validate.path('checkpoint.export', 'path', path)
  opts = errors.options('checkpoint.export', opts, { process_group = 'group', dtype = 'floating' })
  local list = validate.parts('checkpoint.export', { model = model })
  local comm = validate.group('checkpoint.export', list, opts.process_group)
  model:materialize()
  local own = apart(comm, path, model)
  local sd = model:state_dict { rank0_only = true }
  local names, tensors, seen = {}, {}, {}
  if own or B.C.ms_comm_rank(comm) == 0 then
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
function safetensors.import(path, model, opts)
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
function safetensors.read_safetensors(path)
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
function safetensors.write_safetensors(path, sd)
  validate.path('checkpoint.write_safetensors', 'path', path)
  arguments.list('checkpoint.write_safetensors', 'sd', sd)
  local names, tensors = state_dict.names(sd), {}
  for i, name in ipairs(names) do
    arguments.text('checkpoint.write_safetensors', 'name', name)
    tensors[i] = arguments.tensor('checkpoint.write_safetensors', name, sd[name])
  end
  runtime.save_safetensors(path, names, tensors)
end

return safetensors
