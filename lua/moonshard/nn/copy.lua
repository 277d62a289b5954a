--- Copies of modules and all modules below them: repeated layers and whole models.

local errors = require 'moonshard.base.errors'
local autograd = require 'moonshard.autograd'
local hooks = require 'moonshard.nn.hooks'
local parameter = require 'moonshard_ffi.parameter'
local scope = require 'moonshard.base.scope'
local tree = require 'moonshard.nn.tree'

-- Fields that depend on a module's position in its tree or on its runs; they are not copied.
local OWN = {
  _params = true, _buffers = true, _children = true, _owner = true, _home = true, _fields = true,
  _compiled = true, _ready = true, _scope = true, _site = true, _stream = true, _sealed = true,
  _manager = true,
}

---@class ms.nn.Copy  a copy in progress
---@field tensors table<integer, ms.Tensor>  copies made so far, by key of the original
---@field modules table<ms.nn.Module, ms.nn.Module>
---@field rules table<integer, ms.nn.InitRule>  of parameters without values, by key
---@field ignored table<ms.fsdp.Ignored, ms.fsdp.Ignored>
---@field deep boolean  copy tensors in fields and FSDP instances as well

local function copy_value(c, value)
  if c.deep and parameter.is_tensor(value) then
    return scope.keep(value:detach():clone())
  elseif type(value) ~= 'table' or getmetatable(value) ~= nil then
    return value
  end
  local copied = {}
  for key, entry in next, value do
    copied[key] = copy_value(c, entry)
  end
  return copied
end

-- Initialization rules, by key, of parameters that were not replaced since their declaration.
local function rules_below(module)
  local rules = {}
  for _, entry in ipairs(tree.walk(module)) do
    for _, p in ipairs(entry.module._params) do
      local tensor = tree.param(entry.module, p)
      if tensor and rawequal(tensor, p.declared) then
        rules[parameter.key(tensor)] = p.rule
      end
    end
  end
  return rules
end

-- Declare a parameter that an FSDP instance manages: the copy's own instance gives it its values.
local function declare_managed(c, from, into, p, manager)
  if not c.modules[manager.outer_module] then
    errors.raise('RuntimeError', "parameter '%s' of %s belongs to an FSDP instance around that "
      .. 'module; copy the wrapped module', p.name, from._name)
  end
  local tensor = tree.param(from, p)
  local _, extent = parameter.part(tensor)
  return into:param(p.name, extent.shape, { kind = 'none' }, { dtype = extent.dtype })
end

local function copy_param(c, from, into, p)
  local tensor = tree.param(from, p)
  if not tensor then
    return
  end
  local key = parameter.key(tensor)
  local made, manager = c.tensors[key], parameter.manager(tensor)
  if made then
    into:tie(p.name, made)
    return
  elseif manager then
    made = declare_managed(c, from, into, p, manager)
  elseif parameter.has_values(tensor) then
    made = into:tie(p.name, tensor:detach():clone())
  elseif c.rules[key] then
    made = into:param(p.name, p.shape, c.rules[key], { dtype = tensor:dtype() })
  else
    errors.raise('RuntimeError', "parameter '%s' of %s is tied to one that is not copied, and has "
      .. 'no values yet: call materialize() first', p.name, from._name)
  end
  made:requires_grad_(tensor:requires_grad())
  c.tensors[key] = made
end

local function copy_fields(c, from, into, but)
  for key, value in next, from do
    if not OWN[key] and not but[key] then
      rawset(into, key, copy_value(c, value))
    end
  end
end

local copy

local function copy_wrapper(c, from, state)
  c.modules[from] = from -- parameters below may be managed by this instance
  local into = state:_copy_onto(c, copy(c, state:wrapped()))
  c.modules[from] = into
  for _, field in ipairs(hooks.FIELDS) do
    rawset(into, field, copy_value(c, rawget(from, field)))
  end
  return into
end

function copy(c, from)
  if c.modules[from] then
    return c.modules[from]
  end
  local state = tree.manager(from)
  if state and c.deep and not state.in_place then
    return copy_wrapper(c, from, state)
  elseif not c.deep and (state or rawget(from, '_sealed')) then
    errors.raise('RuntimeError', '%s is wrapped by FSDP; copy it before', from._name)
  end
  local into = setmetatable({}, getmetatable(from))
  c.modules[from] = into
  local declared = {}
  for _, p in ipairs(from._params) do
    declared[p.name] = true
    copy_param(c, from, into, p)
  end
  for _, b in ipairs(from._buffers) do
    declared[b.name] = true
    if tree.buffer(b) then
      into:buffer(b.name, b:uncast():clone(), { persistent = b.persistent })
    end
  end
  for _, entry in ipairs(from._children) do
    declared[entry.key] = true
    local child = tree.child(from, entry)
    if child then
      into:child(entry.name, copy(c, child), entry.key)
    end
  end
  if rawget(from, '_stream') then
    into:_take_stream()
  end
  copy_fields(c, from, into, declared)
  return state and state:_copy_onto(c, into) or into
end

local copies = {}

local function begin(module, deep)
  return { tensors = {}, modules = {}, ignored = {}, rules = rules_below(module), deep = deep }
end

--- A copy of a layer. Parameters that have values are copied; the others are declared with the same
--- rules, so each copy draws its own initial values.
---@generic M: ms.nn.Module
---@param module M
---@return M
function copies.layer(module)
  return copy(begin(module, false), module)
end

local function copy_parts(params, made)
  for i, p in ipairs(params) do
    local part = parameter.manager(p.tensor) and parameter.part(p.tensor)
    if part then
      parameter.part(made[i].tensor):copy_(part)
      parameter.touch(made[i].tensor)
    end
  end
end

--- See Module:deepcopy().
---@generic M: ms.nn.Module
---@param module M
---@return M
function copies.deep(module)
  local c = begin(module:materialize(), true)
  local into = copy(c, module)
  local params, made = tree.prepared_params(module), tree.prepared_params(into:materialize())
  autograd.no_grad(scope.run, 'deepcopy', copy_parts, params, made)
  for original, its in next, c.modules do -- only now: without it a copy of a parameter has values
    local state = tree.manager(original)
    if state then
      tree.manager(its).param_init_fn = state.param_init_fn
    end
  end
  return into
end

return copies
