--- Import and export of models and tensors as safetensors files.

local B = require 'moonshard_ffi'
local Writer = require 'moonshard.checkpoint.writer'
local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'
local parts = require 'moonshard.checkpoint.parts'
local parameter = require 'moonshard_ffi.parameter'
local runtime = require 'moonshard_ffi.checkpoint'
local state_dict = require 'moonshard.nn.state_dict'
local tree = require 'moonshard.nn.tree'
local validate = require 'moonshard.checkpoint.validate'

local safetensors = {}

---@class ms.checkpoint.ExportOptions
---@field process_group? ms.dist.Group  as in ms.checkpoint.State
---@field dtype? ms.DType  of the floating tensors in the file (default: unchanged)

--- Write all full parameters to one safetensors file (by rank 0). Collective, with the same outcome
--- on all ranks. A model that every rank holds in full is written by rank 0, unless ranks pass
--- different paths: then each rank writes its own. Different groups must use different paths.
---@param path string  equal on all ranks if FSDP units hold parameters; see write_safetensors()
---@param model ms.nn.Module
---@param opts? ms.checkpoint.ExportOptions
---@return boolean  did this rank write the file
function safetensors.export(path, model, opts)
  validate.path('checkpoint.export', 'path', path)
  opts = errors.options('checkpoint.export', opts, { process_group = 'group', dtype = 'floating' })
  local writer = Writer('checkpoint.export', path, model, opts.process_group)
  local sd = model:state_dict { rank0_only = true }
  local names, tensors, seen = {}, {}, {}
  if writer.writes then
    for _, name in ipairs(sd) do
      local key = parameter.key(sd[name])
      if not seen[key] then -- write a tied parameter once: the format does not allow shared memory
        seen[key] = true
        names[#names + 1] = name
        local floating = opts.dtype and parameter.facts(sd[name]).floating
        tensors[#tensors + 1] = floating and sd[name]:to(opts.dtype) or sd[name]
      end
    end
  end
  writer:save(path, names, tensors)
  return writer.writes
end

local function read_tensors(path)
  local names, tensors = runtime.load_safetensors(path)
  local sd = {}
  for i, name in ipairs(names) do
    sd[i], sd[name] = name, tensors[i]
  end
  return sd
end

-- Check that the names of a tied parameter have equal values.
local function check_tied(path, sd, first, second)
  if parameter.hash_number(sd[first]) ~= parameter.hash_number(sd[second]) then
    errors.raise('ValueError', "%s: '%s' and '%s' are one parameter of the model, but have two "
      .. 'values', path, first, second)
  end
end

-- Remove entries from a state dict whose shapes differ from the model's. Returns their names.
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
---@field process_group? ms.dist.Group  as for export(); by default each rank reads a plain model
---  on its own
---@field strict? boolean  names must match exactly (default true)
---@field ignore_mismatched_sizes? boolean  do not load parameters and buffers whose shape differs
---  in the file (default false); they count as missing, so strict must be false

--- Load a safetensors file into a model. A tied parameter may have any of its names in the file;
--- ValueError if it has several with different values, and then nothing is changed. Each rank holds
--- the whole file in memory during the load.
---@param path string
---@param model ms.nn.Module
---@param opts? ms.checkpoint.ImportOptions
---@return { missing_keys: string[], unexpected_keys: string[], mismatched_keys: string[] }
function safetensors.import(path, model, opts)
  validate.path('checkpoint.import', 'path', path)
  local list = parts.of('checkpoint.import', { model = model })
  opts = errors.options('checkpoint.import', opts,
    { process_group = 'group', strict = 'flag', ignore_mismatched_sizes = 'flag' })
  if opts.process_group ~= nil then -- only then: finding the ranks would join the job
    validate.group('checkpoint.import', list, opts.process_group)
  end
  local report = import(path, model, opts)
  B.give_back() -- release the whole file: a step may need its memory
  return report
end

--- Read the tensors of a safetensors file by name, in file order.
---@param path string
---@return ms.StateDict
function safetensors.read_safetensors(path)
  validate.path('checkpoint.read_safetensors', 'path', path)
  return read_tensors(path)
end

--- Write tensors by name to one safetensors file. Not collective: each rank that calls it writes
--- its own tensors (its shards of sharded parameters), and if several write to one path, the last
--- one wins. So call it on one rank, or with a different path on each. Use export() for whole
--- models.
---@param path string  replaced if it is a regular file; a link's target is replaced. The folder is
---  made if it is missing
---@param sd ms.StateDict|table<string, ms.Tensor>  all entries with a name are written, listed or
---  not
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
