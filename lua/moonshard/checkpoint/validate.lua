--- What scripts give to moonshard.checkpoint, and whether it is that.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.internal.errors'
local members = require 'moonshard.dist.members'
local parameter = require 'moonshard_ffi.parameter'
local sharding = require 'moonshard_ffi.fsdp'
local tree = require 'moonshard.nn.tree'

local validate = {}

--- A path is a text with something in it.
function validate.path(what, name, value)
  if arguments.text(what, name, value) == '' then
    errors.raise('ValueError', "%s: '%s' is empty, expected a path", what, name)
  end
end

--- What is saved and restored.
validate.PARTS = { 'model', 'optimizer', 'loader' }
--- Names of the options of all that saves and restores.
validate.OPTIONS = { 'model', 'optimizer', 'loader', 'process_group' }
-- The mark by which each is known.
local MARKS = { model = '_is_module', optimizer = '_is_optimizer', loader = '_is_loader' }

function validate.part(what, name, part)
  local is_object = type(part) == 'table' and rawget(part, '_name') == nil
  if not (is_object and part[MARKS[name]] == true) then
    arguments.refuse(what, name, part, 'the ' .. name .. ' itself')
  end
end

-- Parameters that a model or an optimizer holds; a loader has none.
local function params_of(name, part)
  local list = {}
  if name == 'model' then
    for i, p in ipairs(tree.prepared_params(part)) do
      list[i] = p.tensor
    end
  elseif name == 'optimizer' then
    for i, entry in ipairs((part:_entries())) do
      list[i] = entry.param
    end
  end
  return list
end

--- In a fake group nobody holds what the other ranks would save or check.
function validate.check_real(what, name, part)
  for _, param in ipairs(params_of(name, part)) do
    local manager = parameter.manager(param)
    if manager and sharding.is_fake(manager.process_group) then
      errors.raise('RuntimeError', "%s: '%s' is sharded over a fake group, whose other ranks are "
        .. 'not there to keep their parts', what, name)
    end
  end
end

---@return string[] names  of those that are there, one at least
function validate.parts(what, opts)
  local names = {}
  for _, name in ipairs(validate.PARTS) do
    if opts[name] ~= nil then
      validate.part(what, name, opts[name])
      validate.check_real(what, name, opts[name])
      names[#names + 1] = name
    end
  end
  if #names == 0 then
    errors.raise('ValueError', '%s: got nothing to %s, expected a model, an optimizer or a loader',
      what, what:match('[^.]*$'))
  end
  return names
end

local function refuse_two(what, name, its, whose, group)
  errors.raise('ValueError', '%s: the %s is sharded over ranks %s, %s over ranks %s, as another '
    .. 'group: each group has checkpoints of its own', what, name, members.text(its), whose,
    members.text(group))
end

-- The group over which model and optimizer are sharded, and which of them says so.
local function sharded_over(what, opts)
  local group, owner
  for _, name in ipairs(validate.PARTS) do
    local its, another = members.of(opts[name] ~= nil and params_of(name, opts[name]) or {})
    if its and group and its ~= group then
      refuse_two(what, name, its, 'the ' .. owner, group)
    elseif another then
      refuse_two(what, name, another, 'in part', its)
    end
    group, owner = its or group, its and name or owner
  end
  return group, owner
end

--- The group whose ranks save or load this together: that over which model and optimizer are
--- sharded, a ValueError where there are two, or `process_group` says other ranks, or the loader
--- deals to others. What no unit holds goes with `process_group`, else with the loader's, else with
--- all ranks.
---@return ffi.cdata*
function validate.group(what, opts)
  local asked, loader = opts.process_group, opts.loader
  local group, owner = sharded_over(what, opts)
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
    errors.raise('ValueError', '%s: the loader deals to ranks %s, but %s ranks %s; give both the '
      .. 'same process_group', what, members.text(loaders),
      group and ('the %s is sharded over'):format(owner) or "'process_group' has",
      members.text(group or asked))
  end
  return group or asked or loaders or B.world()
end

return validate
