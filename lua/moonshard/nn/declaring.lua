--- Methods of modules that declare parameters, buffers and children.

local Buffer = require 'moonshard.nn.buffer'
local declared = require 'moonshard.nn.declared'
local errors = require 'moonshard.base.errors'
local scope = require 'moonshard.base.scope'
local tree = require 'moonshard.nn.tree'
local arguments = require 'moonshard_ffi.arguments'
local parameter = require 'moonshard_ffi.parameter'

local declaring = {}

---@class ms.nn.DeclaredParam
---@field name string
---@field tensor ms.Tensor?
---@field shape integer[]
---@field declared ms.Tensor?  the tensor made by `rule`; another tensor may have been tied since
---@field rule ms.nn.InitRule?

-- The instance's own array. The class has an empty one that all instances share.
local function own(self, field)
  local list = rawget(self, field)
  if not list then
    list = {}
    rawset(self, field, list)
  end
  return list
end

-- True if the class has a method or field of that name that a script must not hide.
local function is_taken(self, name)
  return self[name] ~= nil
end

local function check_name(self, what, name)
  arguments.text(what, 'name', name)
  if name == '' or name:find('.', 1, true) then
    errors.raise('KeyError', "%s name '%s' %s", what, name, name == '' and 'is empty'
      or 'contains a dot, which separates the names of modules')
  end
  for _, field in ipairs { '_params', '_buffers', '_children' } do
    if declared(self[field], 'name', name) then
      errors.raise('KeyError', "%s '%s' is already declared", what, name)
    end
  end
  if is_taken(self, name) then
    errors.raise('KeyError', "attribute '%s' already exists in %s", name, self._name)
  end
end

local function add_param(self, name, tensor, shape, rule)
  tree.check_unsealed(self, 'parameter', name)
  local list = own(self, '_params')
  list[#list + 1] = {
    name = name, tensor = tensor, shape = shape, declared = rule and tensor, rule = rule,
  }
  rawset(self, name, tensor)
  rawset(self, '_ready', false)
  tree.changed(self)
  return tensor
end

---@class ms.nn.InitRule
---@field kind 'none'|'constant'|'uniform'|'normal'
---@field a? number  constant, lower bound or mean
---@field b? number  upper bound or deviation
---@field zeros? integer[]  a range of elements that are 0 for every kind: { first from 0, count }

---@class ms.nn.ParamOptions
---@field dtype? ms.DType  of the master values (default 'f32')
---@field requires_grad? boolean  default true

-- Number the modules that draw random numbers, in order since the seed: see names.stream().
function declaring:_take_stream()
  rawset(self, '_stream', rawget(self, '_stream') or parameter.next_stream())
end

--- Declare a parameter. It has no memory until it is materialised.
---@param name string  unique in this module
---@param shape integer[]
---@param rule? ms.nn.InitRule  initial values (default: zeros, from which a weight may never
---  learn; nn.init has rules)
---@param opts? ms.nn.ParamOptions
---@return ms.Tensor
function declaring:param(name, shape, rule, opts)
  opts = errors.options('param', opts,
    { device = 'device', dtype = 'floating', requires_grad = 'flag' })
  check_name(self, 'parameter', name)
  arguments.array('param', 'shape', shape)
  for i = 1, #shape do
    arguments.whole('param', ('shape[%d]'):format(i), shape[i], nil, 0)
  end
  if rule ~= nil then
    arguments.rule('param', 'rule', rule)
  end
  rule = rule or { kind = 'constant', a = 0 }
  local tensor = parameter.declare(opts.dtype or 'f32', shape, rule)
  if opts.requires_grad == false then
    tensor:requires_grad_(false)
  end
  parameter.set_name(tensor, name) -- until it is named by its path
  self:_take_stream()
  local copy = {}
  for i = 1, #shape do
    copy[i] = shape[i]
  end
  return add_param(self, name, tensor, copy, rule)
end

--- Change the rules of this module's parameters that have no values yet.
---@param rule_of fun(shape: integer[]): ms.nn.InitRule?  nil: keep the rule
function declaring:_change_rules(rule_of)
  for _, p in ipairs(self._params) do
    local tensor, rule = tree.param(self, p), rule_of(p.shape)
    if rule and rawequal(tensor, p.declared) and not parameter.has_values(tensor) then
      local other = parameter.declare(tensor:dtype(), p.shape, rule)
      other:requires_grad_(tensor:requires_grad())
      parameter.set_name(other, p.name)
      p.tensor, p.declared, p.rule = other, other, rule
      rawset(self, p.name, other)
      tree.changed(self)
    end
  end
end

--- Give an existing parameter a second name in this module: both names are one tensor. To replace a
--- declared parameter, assign the tensor to its field.
---@param name string  unique in this module
---@param tensor ms.Tensor  a parameter
---@return ms.Tensor
function declaring:tie(name, tensor)
  if declared(self._params, 'name', name) then
    errors.raise('KeyError', "tie: parameter '%s' of %s is already declared, expected a name that "
      .. 'has none; to tie that one: module.%s = t', name, self._name, name)
  end
  check_name(self, 'parameter', name)
  arguments.tensor('tie', 'tensor', tensor)
  parameter.make(scope.keep(tensor))
  return add_param(self, name, tensor, parameter.shape(tensor))
end

--- Declare a tensor that belongs to the module but is not trained.
---@param name string
---@param tensor ms.Tensor
---@param opts? { persistent?: boolean }  persistent: part of state dicts (default true)
---@return ms.Tensor
function declaring:buffer(name, tensor, opts)
  opts = errors.options('buffer', opts, { persistent = 'flag' })
  check_name(self, 'buffer', name)
  arguments.tensor('buffer', 'tensor', tensor)
  local list = own(self, '_buffers')
  list[#list + 1] = Buffer.declare(self, name, tensor, opts.persistent ~= false)
  tree.changed(self)
  return tensor
end

--- Replace the tensor of a declared buffer.
---@param name string
---@param tensor ms.Tensor
function declaring:set_buffer(name, tensor)
  local entry = declared(self._buffers, 'name', name)
  if not entry then
    errors.raise('KeyError', "%s has no buffer '%s'", self._name, tostring(name))
  end
  arguments.tensor('set_buffer', 'tensor', tensor)
  entry:replace(tensor)
end

--- PyTorch's name of buffer().
---@param name string
---@param tensor ms.Tensor
---@param opts? { persistent?: boolean }
---@return ms.Tensor
function declaring:register_buffer(name, tensor, opts)
  arguments.tensor('register_buffer', 'tensor', tensor)
  return self:buffer(name, tensor, opts)
end

--- PyTorch's name of tie(): the tensor becomes a parameter.
---@param name string
---@param tensor ms.Tensor?  nil: reserve the name without a parameter
---@return ms.Tensor?
function declaring:register_parameter(name, tensor)
  if tensor == nil then
    return check_name(self, 'parameter', name)
  end
  arguments.tensor('register_parameter', 'tensor', tensor)
  return self:tie(name, tensor)
end

local function check_module(self, name, module)
  if not tree.is_module(module) then
    errors.raise('TypeError', "child '%s' of %s is %s, expected a module", tostring(name),
      self._name, arguments.noun(module))
  end
end

--- Declare a submodule.
---@generic M: ms.nn.Module
---@param name string  unique in this module
---@param module M
---@param key? string|integer  the field that holds it (default: name)
---@return M
function declaring:child(name, module, key)
  check_module(self, name, module)
  check_name(self, 'child', name)
  if key ~= nil and type(key) ~= 'string' then
    arguments.whole('child', 'key', key)
  end
  tree.check_unsealed(self, 'child', name)
  tree.check_acyclic(self, name, module)
  local list = own(self, '_children')
  local entry = { name = name, module = module, key = key or name }
  list[#list + 1] = entry
  tree.place(self, entry, module)
  tree.adopt(self, module)
  return module
end

--- PyTorch's names of child().
declaring.add_module, declaring.register_module = declaring.child, declaring.child

--- Replace a declared child, as wrapping does. RuntimeError if FSDP has formed units from this
--- module, unless the new module wraps the child.
---@param name string
---@param module ms.nn.Module
function declaring:set_child(name, module)
  local entry = declared(self._children, 'name', name)
  if not entry and self._transparent then -- the name may be the wrapped module's
    return self.module:set_child(name, module)
  elseif not entry then
    errors.raise('KeyError', "%s has no child '%s'", self._name, tostring(name))
  end
  check_module(self, name, module)
  local old = entry.module
  tree.check_unsealed(self, 'child', name, old, module)
  tree.check_acyclic(self, name, module)
  entry.module = module
  tree.place(self, entry, module)
  tree.adopt(self, module)
  if module._transparent and old == module.module then
    tree.adopt(module, old)
  end
  if self._shows_entries then
    tree.show_entries(self)
  end
end

return declaring
