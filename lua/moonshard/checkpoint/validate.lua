--- Argument checks of moonshard.checkpoint.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'
local members = require 'moonshard.dist.members'
local parameter = require 'moonshard_ffi.parameter'
local parts = require 'moonshard.checkpoint.parts'
local tree = require 'moonshard.nn.tree'

local validate = {}

--- Check that a path is a string and not empty.
function validate.path(what, name, value)
  if arguments.text(what, name, value) == '' then
    errors.raise('ValueError', "%s: '%s' is empty, expected a path", what, name)
  end
end

-- Parameters of a part; a state has them if it has _params().
local function params_of(part)
  local list = {}
  if part.kind == 'model' then
    for i, p in ipairs(tree.prepared_params(part.value)) do
      list[i] = p.tensor
    end
  elseif part.kind == 'optimizer' then
    for i, entry in ipairs((part.value:_entries())) do
      list[i] = entry.param
    end
  elseif part.kind == 'state' and type(part.value._params) == 'function' then
    return part.value:_params()
  end
  return list
end

-- Raise for a fake group: its other ranks would have to save or check their shards.
local function check_real(what, part)
  for _, param in ipairs(params_of(part)) do
    local manager = parameter.manager(param)
    if manager and B.C.ms_comm_is_fake(manager.process_group) then
      errors.raise('RuntimeError', "%s: '%s' is sharded over a fake group, whose other ranks are "
        .. 'not there to keep their parts', what, part.label)
    end
  end
end

--- The parts in the options; at least one is required.
---@return ms.checkpoint.Part[]
function validate.parts(what, opts)
  local list = parts.of(what, opts)
  for _, part in ipairs(list) do
    check_real(what, part)
  end
  return list
end

local function refuse_two(what, name, its, whose, group)
  errors.raise('ValueError', '%s: the %s is sharded over ranks %s, %s over ranks %s, as another '
    .. 'group: each group has checkpoints of its own, and a model over several groups has none '
    .. '(state_dict_type SHARDED_STATE_DICT gives its parts)', what, name, members.text(its), whose,
    members.text(group))
end

-- The group over which models and optimizers are sharded, and the part that determines it.
local function sharded_over(what, list)
  local group, owner
  for _, part in ipairs(list) do
    local its, another = members.of(params_of(part))
    if its and group and its ~= group then
      refuse_two(what, part.label, its, 'the ' .. owner, group)
    elseif another then
      refuse_two(what, part.label, its, 'in part', another)
    end
    group, owner = its or group, its and part.label or owner
  end
  return group, owner
end

--- The group whose ranks save or load together: the one over which model and optimizer are sharded,
--- else `process_group`, else the loader's group, else all ranks. ValueError if they have different
--- ranks.
---@param list ms.checkpoint.Part[]
---@param asked? ms.dist.Group  the option `process_group`
---@return ffi.cdata*
function validate.group(what, list, asked)
  local loader = parts.values(list, 'loader')[1]
  local group, owner = sharded_over(what, list)
  if asked ~= nil then
    arguments.group(what, 'process_group', asked)
    if group and not members.same(asked, group) then
      errors.raise('ValueError', "%s: 'process_group' has ranks %s, but the %s is sharded over "
        .. 'ranks %s; leave it out', what, members.text(asked), owner, members.text(group))
    end
  end
  local loaders, deals
  if loader ~= nil then
    loaders, deals = loader:group()
  end
  if deals and (group or asked) and not members.same(loaders, group or asked) then
    errors.raise('ValueError', '%s: the loader shares samples over ranks %s, but %s ranks %s; give '
      .. 'both the same process_group', what, members.text(loaders),
      group and ('the %s is sharded over'):format(owner) or "'process_group' has",
      members.text(group or asked))
  end
  return group or asked or loaders or B.world()
end

return validate
