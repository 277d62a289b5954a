--- Methods of modules that list the modules, parameters and buffers below, or find them by path.

local errors = require 'moonshard.base.errors'
local tree = require 'moonshard.nn.tree'
local util = require 'moonshard.base.util'
local arguments = require 'moonshard_ffi.arguments'
local parameter = require 'moonshard_ffi.parameter'

local walking = {}

--- Iterate over (path, module), beginning with this module under the path ''. The result is also an
--- array of { path, module }.
---@param remove_duplicates? boolean  default true
---@return fun(): string?, ms.nn.Module?
function walking:named_modules(remove_duplicates)
  arguments.flag('named_modules', 'remove_duplicates', remove_duplicates, true)
  return tree.iterable(tree.walk(self, remove_duplicates), 'path', 'module')
end

--- All distinct modules, this one first. An array; also `for module in model:modules() do`.
---@return ms.nn.Module[]
function walking:modules()
  local out = {}
  for i, entry in ipairs(tree.walk(self)) do
    out[i] = entry.module
  end
  return tree.iterable(out)
end

--- Direct children, in order of declaration.
---@return ms.nn.Module[]
function walking:children()
  local out = {}
  for i, entry in ipairs(tree.children(self)) do
    out[i] = entry.module
  end
  return tree.iterable(out)
end

--- Iterate over (name, child).
---@return fun(): string?, ms.nn.Module?
function walking:named_children()
  return tree.iterable(tree.children(self), 'name', 'module')
end

--- Iterate over (path, parameter) in order of declaration. The result is also an array of { name,
--- tensor, shape, module }; `shape` is that of the whole parameter. FSDP with use_orig_params =
--- false lists one flat parameter for each unit, `<path>._flat_param`, except inside
--- summon_full_params.
---@param recurse? boolean  include submodules (default true)
---@param remove_duplicates? boolean  list a tied parameter once, by its first name (default true)
---@return fun(): string?, ms.Tensor?
function walking:named_parameters(recurse, remove_duplicates)
  arguments.flag('named_parameters', 'recurse', recurse, true)
  arguments.flag('named_parameters', 'remove_duplicates', remove_duplicates, true)
  self:_prepare()
  local params = tree.params(self, recurse, remove_duplicates, '_flat_parameter')
  return tree.iterable(params, 'name', 'tensor')
end

--- All distinct parameters, for an optimizer. An array; also `for p in model:parameters() do`.
--- Between forwards the parameters of a wrapped module are this rank's shards, so a sum over them
--- is not the model's. Compute a loss term over parameters in the forward of the module wrapped
--- with them; elsewhere its backward raises RuntimeError.
---@param recurse? boolean  default true
---@return ms.Tensor[]
function walking:parameters(recurse)
  arguments.flag('parameters', 'recurse', recurse, true)
  self:_prepare()
  local out = {}
  for i, p in ipairs(tree.params(self, recurse, true, '_flat_parameter')) do
    out[i] = p.tensor
  end
  return tree.iterable(out)
end

--- Iterate over (path, buffer). The result is also an array of { name, tensor, module }.
---@param recurse? boolean  include submodules (default true)
---@param remove_duplicates? boolean  list a tensor once, by its first name (default true)
---@return fun(): string?, ms.Tensor?
function walking:named_buffers(recurse, remove_duplicates)
  arguments.flag('named_buffers', 'recurse', recurse, true)
  arguments.flag('named_buffers', 'remove_duplicates', remove_duplicates, true)
  return tree.iterable(tree.buffers(self, recurse, remove_duplicates), 'name', 'tensor')
end

--- All distinct buffers. An array; also `for b in model:buffers() do`.
---@param recurse? boolean  default true
---@return ms.Tensor[]
function walking:buffers(recurse)
  arguments.flag('buffers', 'recurse', recurse, true)
  local out = {}
  for i, b in ipairs(tree.buffers(self, recurse)) do
    out[i] = b.tensor
  end
  return tree.iterable(out)
end

--- Path of this module from the outermost one ('' for that one).
---@return string
function walking:path()
  return tree.path(self)
end

--- The module at a path; '' is this one. KeyError if it does not exist.
---@param path string
---@return ms.nn.Module
function walking:get_submodule(path)
  arguments.text('get_submodule', 'path', path)
  for _, entry in ipairs(tree.walk(self, false)) do
    if entry.path == path then
      return entry.module
    end
  end
  errors.raise('KeyError', "%s has no submodule '%s'", self._name, path)
end

local function named(self, what, list, path)
  for _, entry in ipairs(list) do
    if entry.name == path then
      return entry.tensor
    end
  end
  errors.raise('KeyError', "%s has no %s '%s'", self._name, what, path)
end

--- The parameter at a path of named_parameters(). KeyError if it does not exist.
---@param path string
---@return ms.Tensor
function walking:get_parameter(path)
  arguments.text('get_parameter', 'path', path)
  return named(self, 'parameter', self:named_parameters(true, false), path)
end

--- The buffer at a path. KeyError if it does not exist.
---@param path string
---@return ms.Tensor
function walking:get_buffer(path)
  arguments.text('get_buffer', 'path', path)
  return named(self, 'buffer', tree.buffers(self, true, false), path)
end

--- Replace the module at a path: set_child() of its parent.
---@param path string  not ''
---@param module ms.nn.Module
function walking:set_submodule(path, module)
  arguments.text('set_submodule', 'path', path)
  local parent, name = path:match '^(.*)%.([^.]*)$'
  self:get_submodule(parent or ''):set_child(name or path, module)
end

--- Number of elements of all distinct parameters, sharded or not.
---@return integer
function walking:num_parameters()
  local total = 0
  for _, p in ipairs(tree.params(self)) do
    total = total + util.product(p.shape)
  end
  return total
end

--- A hash of 16 hexadecimal digits over names and values of all parameters in order of declaration.
--- An FSDP model with the same values has the same hash(). RuntimeError if some parameters are
--- sharded: call hash() of the FSDP model.
---@return string
function walking:hash()
  local tensors = {}
  for i, p in ipairs(tree.params(self:materialize())) do
    tensors[i] = p.tensor
  end
  return parameter.hash(tensors)
end

return walking
