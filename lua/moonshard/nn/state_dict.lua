--- State dicts: tensors by path, in order.
---
--- `sd[name]` is a tensor and `sd[i]` the i-th name, so `for _, name in ipairs(sd)` iterates in
--- order of declaration; pairs() visits both kinds of keys. A tied parameter, and a buffer of a
--- shared module, has an entry for each of its names. Scripts may rename and drop entries by name
--- only: the list gives no more than the order.

local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'
local members = require 'moonshard.dist.members'
local parameter = require 'moonshard_ffi.parameter'
local util = require 'moonshard.base.util'
local tree = require 'moonshard.nn.tree'

local state_dict = {}

--- Parameters and buffers by name: `sd[name]` is a tensor, `sd[i]` the i-th name.
---@class ms.StateDict: { [string]: ms.Tensor|ms.dist.ShardedTensor, [integer]: string }

local function is_sharded(value)
  return type(value) == 'table' and value._name == 'dist.ShardedTensor'
end

--- Persistent buffers, each under its first name.
function state_dict.buffers(module)
  local out, seen = {}, {}
  for _, b in ipairs(tree.buffers(module, true, false)) do
    if b.entry.persistent and not seen[b.entry] then
      out[#out + 1], seen[b.entry] = b, true
    end
  end
  return out
end

-- The innermost FSDP instance that manages each module from `module` down. Ignored modules have
-- none.
local function managers_of(module, around, out)
  around = tree.manager(module) or around
  out[module] = around and not around:_ignores(module) and around or nil
  for _, child in ipairs(tree.children(module)) do
    managers_of(child.module, around, out)
  end
  return out
end

-- Parameters and persistent buffers under all their names; a module's own before its children's.
local function entries(module)
  module:_prepare()
  local by_path = {}
  local function add(entry)
    local path = entry.name:match '^(.*)%.' or ''
    by_path[path] = by_path[path] or {}
    table.insert(by_path[path], entry)
  end
  for _, p in ipairs(tree.params(module, true, false, '_flat_in_state_dict')) do
    local flat_of = p.flat_of
    add {
      name = p.name, tensor = p.tensor, flat_of = flat_of,
      shape = flat_of and flat_of:_local_state():shape() or p.shape,
    }
  end
  local managers = managers_of(module, nil, {})
  for _, b in ipairs(tree.buffers(module, true, false)) do
    if b.entry.persistent then
      add { name = b.name, tensor = b.tensor, shape = b.tensor:shape(), buffer = b.entry,
        manager = managers[b.module] }
    end
  end
  local out = {}
  for _, place in ipairs(tree.walk(module, false)) do
    for _, entry in ipairs(by_path[place.path] or {}) do
      out[#out + 1] = entry
    end
    by_path[place.path] = nil
  end
  return out
end

-- The value of an entry. Managed parameters are gathered unit by unit: the first access gathers the
-- whole unit.
local function value_of(entry, opts, gathered)
  local manager = parameter.manager(entry.tensor)
  if entry.buffer then
    return not (entry.manager and entry.manager:_is_left_out(opts.rank0_only))
      and entry.buffer:uncast()
  elseif entry.flat_of then
    return entry.flat_of:_local_state()
  end
  return manager and manager:_state_value(entry.tensor, gathered, opts)
    or not manager and entry.tensor:detach()
end

---@param module ms.nn.Module
---@param opts? { full_state_dict?: boolean, rank0_only?: boolean }
---@return ms.StateDict
function state_dict.of(module, opts)
  opts = errors.options('state_dict', opts, { full_state_dict = 'flag', rank0_only = 'flag' })
  module:materialize()
  local sd, seen, gathered = {}, {}, {}
  for _, entry in ipairs(entries(module)) do
    local key = parameter.key(entry.tensor)
    if seen[key] == nil then
      seen[key] = value_of(entry, opts, gathered) or false
    end
    if seen[key] then
      sd[#sd + 1] = entry.name
      sd[entry.name] = seen[key]
    end
  end
  return sd
end

--- Names of the entries of `sd`: the listed ones, except those set to nil, then the others, sorted.
--- List items that are not strings are returned too, so that they can be reported.
---@param sd ms.StateDict|table<string, ms.Tensor>
---@return any[]
function state_dict.names(sd)
  local names, listed = {}, {}
  for _, name in ipairs(sd) do
    if type(name) ~= 'string' then
      names[#names + 1] = name
    elseif sd[name] ~= nil and not listed[name] then
      names[#names + 1], listed[name] = name, true
    end
  end
  for _, name in ipairs(util.sorted_keys(sd)) do
    if not listed[name] then
      names[#names + 1] = name
    end
  end
  return names
end

-- Raise for values that cannot be loaded; returns missing and unexpected names.
local function examine(module, list, sd, strict)
  local wanted, missing, unexpected, problems = {}, {}, {}, {}
  for _, entry in ipairs(list) do
    wanted[entry.name] = true
    local value = sd[entry.name]
    if value == nil then
      missing[#missing + 1] = entry.name
    elseif not parameter.is_tensor(value) and not is_sharded(value) then
      problems[#problems + 1] = ('%s is %s, expected a tensor'):format(entry.name,
        arguments.noun(value))
    elseif not util.equal(value:shape(), entry.shape) then
      problems[#problems + 1] = ('size mismatch for %s: copying a parameter with shape (%s), the '
        .. 'shape in the current model is (%s)'):format(entry.name,
        table.concat(value:shape(), ', '), table.concat(entry.shape, ', '))
    end
  end
  for _, name in ipairs(state_dict.names(sd)) do
    if not wanted[name] then
      unexpected[#unexpected + 1] = type(name) == 'string' and name or arguments.noun(name)
    end
  end
  if strict and #unexpected > 0 then
    table.insert(problems, 1,
      'unexpected key(s) in state dict: ' .. table.concat(unexpected, ', '))
  end
  if strict and #missing > 0 then
    table.insert(problems, 1, 'missing key(s) in state dict: ' .. table.concat(missing, ', '))
  end
  if #problems > 0 then
    errors.raise('RuntimeError', 'error(s) in loading state dict for %s: %s', module._name,
      table.concat(problems, '; '))
  end
  return { missing_keys = missing, unexpected_keys = unexpected }
end

-- The units' parameters by process group, the largest group first.
local function by_group(list, numbers)
  local parts = {}
  for _, entry in ipairs(list) do
    local unit = entry.flat_of or not entry.buffer and parameter.manager(entry.tensor)
    local part
    for _, other in ipairs(unit and parts or {}) do
      part = other.unit.process_group == unit.process_group and other or part
    end
    if unit and not part then
      part = { unit = unit, names = {}, keys = {} }
      parts[#parts + 1] = part
      if members.size(unit.process_group) > members.size(parts[1].unit.process_group) then
        parts[1], parts[#parts] = part, parts[1]
      end
    end
    if unit then
      table.insert(part.names, entry.name)
      table.insert(part.keys, numbers[entry.name] or 0)
    end
  end
  return parts
end

-- Raise `problem`, if there is one. With units, raise on all ranks if one rank has a problem or if
-- `numbers`, by name, differ between ranks.
local function agree(list, numbers, problem)
  local parts = by_group(list, numbers)
  for _, part in ipairs(parts) do -- the first group raises the problem
    part.unit:_agree_on_load(problem, part.names, part.keys)
  end
  if problem then
    error(problem, 0)
  end
end

-- Returns the function that writes the entry.
local function prepare_entry(entry, value, numbers)
  local unit = entry.flat_of or not entry.buffer and parameter.manager(entry.tensor)
  if is_sharded(value) and unit then
    numbers[entry.name] = 1 -- constant, because shards differ between ranks
    return unit:_prepare_part(entry.tensor, value)
  end
  value = is_sharded(value) and value:full_tensor() or value
  if entry.buffer then
    return entry.buffer:prepare_load(value)
  end
  local write, number = parameter.prepare_load(entry.tensor, value)
  numbers[entry.name] = number
  return write
end

-- Do all of a load that can fail, except comparing ranks.
---@return { report: table, writes: fun()[], numbers: table<string, integer> }  numbers: of the
---  values of managed parameters
local function prepare_load(module, list, sd, strict)
  local load = { report = examine(module, list, sd, strict), writes = {}, numbers = {} }
  module:materialize()
  for _, entry in ipairs(list) do
    load.writes[#load.writes + 1] = sd[entry.name] ~= nil
      and prepare_entry(entry, sd[entry.name], load.numbers) or nil
  end
  return load
end

---@param module ms.nn.Module
---@param sd ms.StateDict|table<string, ms.Tensor>
---@param opts? { strict?: boolean }
---@return { missing_keys: string[], unexpected_keys: string[] }
function state_dict.load(module, sd, opts)
  opts = errors.options('load_state_dict', opts, { strict = 'flag' })
  arguments.list('load_state_dict', 'sd', sd)
  local list = entries(module)
  local ok, load = pcall(prepare_load, module, list, sd, opts.strict ~= false)
  agree(list, ok and load.numbers or {}, not ok and load or nil)
  for _, write in ipairs(load.writes) do
    write()
  end
  return load.report
end

return state_dict
