--- The objects to save or load, as a list in an order that is equal on all ranks: the model and
--- named models, the optimizer and named optimizers, the loader, then all other parts by name.

local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'
local util = require 'moonshard.base.util'

local parts = {}

---@class ms.checkpoint.Part
---@field kind 'model'|'optimizer'|'loader'|'state'
---@field name string|false  the script's name; false: the single part of its kind
---@field label string  for messages: "model", "model 'gen'", "scheduler"
---@field prefix string  prepended to the names of its tensors
---@field value any

--- Options that are not parts with a state of their own.
local OPTIONS = {
  step = true, config = true, frozen = true, process_group = true, strict = true, model = true,
  modules = true, optimizer = true, optimizers = true, loader = true,
}

-- The field that marks objects of each kind.
local MARKS = { model = '_is_module', optimizer = '_is_optimizer', loader = '_is_loader' }

--- TypeError if the value is not of this kind.
---@param what string
---@param name string  of the option
---@param kind string
function parts.check(what, name, kind, value)
  local is_object = type(value) == 'table' and rawget(value, '_name') == nil
  if not (is_object and value[MARKS[kind]] == true) then
    arguments.refuse(what, name, value, 'the ' .. kind .. ' itself')
  end
end

-- Is the value a part with a state of its own? (Models and optimizers have their own options.)
-- TypeError for a table that lacks the functions; false if the name is close to that of a known
-- option.
local function has_state(what, name, value, known)
  if type(value) ~= 'table' or value._is_module or value._is_optimizer or value._is_loader then
    return false
  end
  local saves = type(value.state_dict) == 'function'
  local loads = type(value.load_state_dict) == 'function'
  if saves ~= loads or not saves and not errors.nearest(name, known) then
    errors.raise('TypeError', "%s: '%s' is %s without %s(), expected one with state_dict() and "
      .. 'load_state_dict()', what, name, arguments.noun(value),
      saves and 'load_state_dict' or loads and 'state_dict' or 'state_dict() and load_state_dict')
  end
  return saves
end

local function check_name(what, option, name)
  arguments.text(what, 'a name in ' .. option, name)
  if name == '' or name:find('/', 1, true) then
    errors.raise('ValueError', "%s: '%s' in %s is not a valid name of a part: it is empty "
      .. "or contains '/'", what, name, option)
  end
end

local function add(list, kind, name, label, prefix, value)
  list[#list + 1] = { kind = kind, name = name, label = label, prefix = prefix, value = value }
end

-- TypeError for plain lists: every part needs a name in the checkpoint.
local function check_names(what, plural, given)
  for _, key in ipairs(util.ordered_keys(given)) do
    if type(key) ~= 'string' then
      errors.raise('TypeError', '%s: %s[%s] is %s without a name, expected names: %s = { name = '
        .. '... }', what, plural, tostring(key), arguments.noun(given[key]), plural)
    end
  end
  return given
end

-- Add the single part of a kind, then the named ones.
local function add_kind(list, what, opts, kind, plural, prefixes)
  if opts[kind] ~= nil then
    parts.check(what, kind, kind, opts[kind])
    add(list, kind, false, kind, prefixes[1], opts[kind])
  end
  local by_name = check_names(what, plural, arguments.list(what, plural, opts[plural], {}))
  for _, name in ipairs(util.sorted_keys(by_name)) do
    check_name(what, plural, name)
    parts.check(what, plural .. '.' .. name, kind, opts[plural][name])
    add(list, kind, name, ("%s '%s'"):format(kind, name), prefixes[2] .. name .. '/',
      opts[plural][name])
  end
end

--- Check the options of a save or load. Raises for an unknown option unless its value has
--- state_dict() and load_state_dict().
---@param what string
---@param opts table?
---@param known string[]  options that are not parts
---@return table
function parts.options(what, opts, known)
  opts = errors.options(what, opts, opts and util.sorted_keys(opts) or {})
  local plain, names = {}, { unpack(known) }
  for _, name in ipairs { 'model', 'modules', 'optimizer', 'optimizers', 'loader' } do
    names[#names + 1] = name
  end
  for _, name in ipairs(util.sorted_keys(opts)) do
    if OPTIONS[name] or not has_state(what, name, opts[name], names) then
      plain[name] = opts[name]
    end
  end
  errors.options(what, plain, names)
  return opts
end

--- The parts of checked options. ValueError if the list is empty.
---@param what string
---@param opts table
---@return ms.checkpoint.Part[]
function parts.of(what, opts)
  local list = {}
  add_kind(list, what, opts, 'model', 'modules', { 'model/', 'modules/' })
  add_kind(list, what, opts, 'optimizer', 'optimizers', { 'optim/', 'optimizers/' })
  if opts.loader ~= nil then
    parts.check(what, 'loader', 'loader', opts.loader)
    add(list, 'loader', false, 'loader', 'loader/', opts.loader)
  end
  for _, name in ipairs(util.sorted_keys(opts)) do
    if not OPTIONS[name] then
      check_name(what, 'the options', name)
      add(list, 'state', name, name, 'state/' .. name .. '/', opts[name])
    end
  end
  if #list == 0 then
    errors.raise('ValueError', '%s: got nothing to %s, expected a model, an optimizer or a loader',
      what, what:match('[^.]*$'))
  end
  return list
end

---@param list ms.checkpoint.Part[]
---@return string[]
function parts.labels(list)
  local labels = {}
  for i, part in ipairs(list) do
    labels[i] = part.label
  end
  return labels
end

---@param list ms.checkpoint.Part[]
---@param kind string
---@return any[] values
function parts.values(list, kind)
  local values = {}
  for _, part in ipairs(list) do
    if part.kind == kind then
      values[#values + 1] = part.value
    end
  end
  return values
end

return parts
