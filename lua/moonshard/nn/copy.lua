--- Copies of modules, with all below: of a layer that a model repeats.

local errors = require 'moonshard.internal.errors'
local parameter = require 'moonshard_ffi.parameter'
local tree = require 'moonshard.nn.tree'

-- What a module has by being where it is and having run.
local OWN = {
  _params = true, _buffers = true, _children = true, _owner = true, _home = true, _fields = true,
  _ready = true, _scope = true, _site = true, _stream = true,
}

local function copy_value(value)
  if type(value) ~= 'table' or getmetatable(value) ~= nil then
    return value
  end
  local copied = {}
  for key, entry in next, value do
    copied[key] = copy_value(entry)
  end
  return copied
end

-- Rules of parameters that stand where they were declared, by key.
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

local function copy_param(from, into, p, tensors, rules)
  local tensor = tree.param(from, p)
  if not tensor then
    return
  end
  local key = parameter.key(tensor)
  local made = tensors[key]
  if made then
    into:tie(p.name, made)
    return
  elseif parameter.has_values(tensor) then
    made = into:tie(p.name, tensor:detach():clone())
  elseif rules[key] then
    made = into:param(p.name, p.shape, rules[key], { dtype = tensor:dtype() })
  else
    errors.raise('RuntimeError', "parameter '%s' of %s is tied to one that is not copied, and has "
      .. 'no values yet: call materialize() first', p.name, from._name)
  end
  made:requires_grad_(tensor:requires_grad())
  tensors[key] = made
end

local function copy(from, tensors, modules, rules)
  if modules[from] then
    return modules[from]
  elseif tree.state(from) or rawget(from, '_planned') then
    errors.raise('RuntimeError', '%s is wrapped by FSDP; copy it before', from._name)
  end
  local into = setmetatable({}, getmetatable(from))
  modules[from] = into
  local declared = {}
  for _, p in ipairs(from._params) do
    declared[p.name] = true
    copy_param(from, into, p, tensors, rules)
  end
  for _, b in ipairs(from._buffers) do
    declared[b.name] = true
    local tensor = tree.buffer(b)
    if tensor then
      into:buffer(b.name, tensor:detach():clone(), { persistent = b.persistent })
    end
  end
  for _, entry in ipairs(from._children) do
    declared[entry.key] = true
    local child = tree.child(from, entry)
    if child then
      into:child(entry.name, copy(child, tensors, modules, rules), entry.key)
    end
  end
  if rawget(from, '_stream') then
    into:_take_stream()
  end
  for key, value in next, from do
    if not OWN[key] and not declared[key] then
      rawset(into, key, copy_value(value))
    end
  end
  return into
end

--- A module like this one. Parameters that have values are copied; the others are declared by the
--- same rules, so that each copy draws its own first values.
---@generic M: ms.nn.Module
---@param module M
---@return M
return function(module)
  return copy(module, {}, {}, rules_below(module))
end
