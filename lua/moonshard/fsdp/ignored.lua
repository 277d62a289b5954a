--- What an FSDP instance leaves alone: modules with all below them, and parameters.

local Module = require 'moonshard.nn.module'
local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'
local parameter = require 'moonshard_ffi.parameter'
local util = require 'moonshard.base.util'
local tree = require 'moonshard.nn.tree'

local ignored = {}

---@class ms.fsdp.Ignored
---@field modules table<ms.nn.Module, boolean>
---@field params table<integer, boolean>  by parameter.key

-- One item, or a list of them.
local function listed(name, value)
  if value == nil then
    return {}
  elseif util.is(value, Module) or parameter.is_tensor(value) then
    return { value }
  end
  return arguments.array('FSDP', name, value)
end

local function kinds_of(list)
  local kinds = {}
  for i, item in ipairs(list) do
    kinds[i] = util.is(item, Module) and 'module' or parameter.is_parameter(item) and 'parameter'
      or parameter.is_tensor(item) and 'tensor' or type(item)
  end
  return kinds
end

local function all(kinds, kind)
  for _, found in ipairs(kinds) do
    if found ~= kind then
      return false
    end
  end
  return true
end

-- Split the two options into modules and parameters.
local function split(opts)
  if opts.ignored_modules ~= nil then
    local modules = listed('ignored_modules', opts.ignored_modules)
    local kinds = kinds_of(modules)
    if not all(kinds, 'module') then
      errors.raise('ValueError', 'ignored_modules expects nn.Module list elements but got types '
        .. '(%s)', table.concat(kinds, ', '))
    end
    return modules, {}
  end
  local states = listed('ignored_states', opts.ignored_states)
  local kinds = kinds_of(states)
  if all(kinds, 'module') then
    return states, {}
  elseif all(kinds, 'parameter') then
    return {}, states
  end
  errors.raise('ValueError', 'ignored_states expects all nn.Parameter or all nn.Module list '
    .. 'elements but got types (%s)', table.concat(kinds, ', '))
end

-- A module and all below it, down to nested instances.
local function add_subtree(set, module)
  if tree.manager(module) or set.modules[module] then
    return
  end
  set.modules[module] = true
  for _, child in ipairs(module:children()) do
    add_subtree(set, child)
  end
end

--- Expand the options of an instance around `module`; what nested instances ignore is ignored too.
---@param module ms.nn.Module
---@param opts ms.fsdp.Options  complete
---@return ms.fsdp.Ignored
function ignored.of(module, opts)
  local modules, params = split(opts)
  local set = { modules = {}, params = {} }
  for _, m in ipairs(modules) do
    if tree.manager(m) then
      errors.raise('ValueError', '`ignored_modules` should not include FSDP modules')
    elseif m == module then
      errors.warn('UserWarning', 'Trying to ignore the top-level module passed into the FSDP '
        .. 'constructor itself will result in all parameters being ignored',
        opts.process_group)
    end
    add_subtree(set, m)
  end
  for _, p in ipairs(params) do
    set.params[parameter.key(p)] = true
  end
  for _, m in ipairs(module:modules()) do
    if set.modules[m] then
      for _, p in ipairs(tree.params(m, false)) do
        set.params[parameter.key(p.tensor)] = true
      end
    elseif tree.manager(m) then
      for inner in next, tree.manager(m)._ignored.modules do
        set.modules[inner] = true
      end
      for key in next, tree.manager(m)._ignored.params do
        set.params[key] = true
      end
    end
  end
  return set
end

return ignored
