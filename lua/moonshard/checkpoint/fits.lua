--- Does an optimizer fit the model it is saved or loaded with, and the checkpoint it is read from?

local errors = require 'moonshard.internal.errors'
local parameter = require 'moonshard_ffi.parameter'
local tree = require 'moonshard.nn.tree'

local fits = {}

--- Has every parameter of it a name of its own?
function fits.names(optimizer)
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

--- Does it train parameters of these models alone? It may leave some out.
---@param optimizer ms.optim.Optimizer
---@param models ms.nn.Module[]  none: whose they are does not matter
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

--- What a group does not say would stay what it is here, in silence.
---@param groups table[]  in the checkpoint
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

--- Options go to groups by their places: is every parameter in the group it was in?
---@param groups table[]  in the checkpoint
---@param own table[]  the same of the optimizer
function fits.groups(groups, own)
  local group_of = {}
  for g, group in ipairs(groups) do
    if group.params == nil then -- an older checkpoint
      return
    elseif type(group.params) ~= 'table' then
      errors.raise('FormatError', 'the optimizer in the checkpoint has a %s for the parameters of '
        .. 'group %d, expected a list', type(group.params), g)
    end
    for _, name in ipairs(group.params) do
      group_of[name] = g
    end
  end
  for g, group in ipairs(own) do
    for _, name in ipairs(group.params) do
      if group_of[name] ~= g then
        errors.raise('ValueError', "'%s' is in parameter group %d of the optimizer, but in %s of "
          .. 'the one in the checkpoint', name, g, group_of[name] and 'group ' .. group_of[name]
          or 'none')
      end
    end
  end
end

return fits
