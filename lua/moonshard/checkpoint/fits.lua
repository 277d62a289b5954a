--- Checks that an optimizer matches the models and the checkpoint that it is saved or loaded with.

local errors = require 'moonshard.base.errors'
local parameter = require 'moonshard_ffi.parameter'
local tree = require 'moonshard.nn.tree'

local fits = {}

-- The first name that occurs twice, or nil.
local function repeated(names)
  local seen = {}
  for _, name in ipairs(names) do
    if seen[name] then
      return name
    end
    seen[name] = true
  end
end

-- "<module>/" by parameter.key(), for modules given by name.
local function prefixes(list)
  local prefix_of = {}
  for _, part in ipairs(list) do
    for _, p in ipairs(part.kind == 'model' and part.name and tree.prepared_params(part.value)
      or {}) do
      local key = parameter.key(p.tensor)
      prefix_of[key] = prefix_of[key] or part.name .. '/'
    end
  end
  return prefix_of
end

--- Names of an optimizer's parameters in a checkpoint, in order of addition. They are the names in
--- their models; if two of those are equal, all are prefixed with the models' names in `modules`.
--- ValueError if names are still equal.
---@param optimizer ms.optim.Optimizer
---@param list ms.checkpoint.Part[]
---@param stored? table<string, any>  by name, in the checkpoint that is loaded
---@return string[] names
---@return integer[] order  indices of the parameters sorted by name, equal on all ranks
function fits.names(optimizer, list, stored)
  local entries, names, order = optimizer:_entries(), {}, {}
  local is_missing = false
  for i, entry in ipairs(entries) do
    if entry.name == '' then
      errors.raise('ValueError', 'a parameter of the optimizer has no name: it belongs to no '
        .. 'module')
    end
    names[i], order[i] = entry.name, i
    is_missing = is_missing or stored ~= nil and stored[entry.name] == nil
  end
  if repeated(names) or is_missing then
    local prefix_of = prefixes(list)
    for i, entry in ipairs(entries) do
      local full = (prefix_of[parameter.key(entry.param)] or '') .. entry.name
      names[i] = (not stored or stored[full] ~= nil) and full or entry.name
    end
  end
  local twice = repeated(names)
  if twice then
    errors.raise('ValueError', "two parameters of the optimizer are called '%s'; give their models "
      .. 'by names: modules = { name = model, ... }', twice)
  end
  table.sort(order, function(a, b) return names[a] < names[b] end)
  return names, order
end

--- Check that every parameter of the optimizer belongs to one of these models. Models may have
--- more.
---@param optimizer ms.optim.Optimizer
---@param models ms.nn.Module[]  if empty, nothing is checked
function fits.models(optimizer, models)
  local known, named = {}, {}
  for _, model in ipairs(models) do
    for _, p in ipairs(tree.prepared_params(model)) do
      known[parameter.key(p.tensor)], named[p.name] = true, true
    end
  end
  if #models == 0 then
    return
  end
  for i, entry in ipairs((optimizer:_entries())) do
    if not known[parameter.key(entry.param)] then
      errors.raise('ValueError', "the optimizer holds parameters that are not %s: %s%s",
        #models == 1 and "this model's" or "these models'",
        entry.name == '' and 'parameter ' .. i or ("'%s'"):format(entry.name),
        named[entry.name] and ', of which the model has another' or '')
    end
  end
end

--- Check that every group has all options: a missing one would silently keep its current value.
---@param groups table[]  of the checkpoint
---@param names string[]  options that the optimizer knows
function fits.options(groups, names)
  for g, group in ipairs(groups) do
    for _, name in ipairs(names) do
      if name == 'amsgrad' and group[name] == nil then -- checkpoints made before the option
        group[name] = false
      elseif group[name] == nil then
        errors.raise('FormatError', "group %d of the optimizer in the checkpoint has no '%s'", g,
          name)
      end
    end
  end
end

--- The groups of the checkpoint in the order of the optimizer's groups.
---@param groups table[]
---@param optimizer ms.optim.Optimizer
---@param names string[]  of the optimizer's parameters
---@param partial boolean  the checkpoint may have more parameters
---@return table[]
function fits.groups(groups, optimizer, names, partial)
  for g, group in ipairs(groups) do
    if group.params == nil then -- an older checkpoint: groups correspond by index
      return groups
    elseif type(group.params) ~= 'table' then
      errors.raise('FormatError', 'the optimizer in the checkpoint has a %s for the parameters of '
        .. 'group %d, expected a list', type(group.params), g)
    end
  end
  return optimizer:_match_groups('checkpoint.load', groups, names, partial)
end

return fits
