--- The tree of modules below a module: its modules, their paths and their parameters, in order of
--- declaration.
---
--- Fields are authoritative: `model.head = other` replaces the child declared as 'head',
--- `head.weight = parameter` ties a parameter, and setting a field to nil removes its entry.

local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'
local parameter = require 'moonshard_ffi.parameter'
local scope = require 'moonshard.base.scope'

local tree = {}

---@param path string
---@param name string
---@return string
function tree.join(path, name)
  return path == '' and name or path .. '.' .. name
end

local join = tree.join

--- Attached to a module by the code that manages its parameters (fsdp.State).
---@class ms.nn.Manager
---@field in_place boolean  calls of the module go through forward()
---@field forward fun(self, call: function, module: ms.nn.Module, ...): ...
---@field _prepare fun(self)  called before parameters are returned
---@field _param_assigned fun(self, module: ms.nn.Module, p: ms.nn.DeclaredParam, now: any):
---  ms.Tensor  called when the field of a parameter below the module was assigned
---@field _ignores fun(self, module: ms.nn.Module): boolean
---@field _copy_onto fun(self, copy: ms.nn.Copy, module: ms.nn.Module): ms.nn.Module

--- The manager of a module, or nil.
---@param module ms.nn.Module
---@return ms.nn.Manager?
function tree.manager(module)
  return rawget(module, '_manager')
end

--- Is this value a module?
---@param value any
---@return boolean
function tree.is_module(value)
  local cls = type(value) == 'table' and getmetatable(value)
  return type(cls) == 'table' and cls._is_module == true
end

-- [Note: shown entries] ipairs() and # read fields without metamethods, so a wrapper around a list
-- also stores the list's entries in its own fields. `entry.module` is the value that both fields
-- had last: the field that differs from it was assigned since.
local function shown_by(module, entry)
  local owner = type(entry.key) == 'number' and rawget(module, '_owner')
  return owner and owner._shows_entries and owner or nil
end

--- The wrappers whose fields also hold an entry of this module, innermost first.
---@return ms.fsdp.FSDP[]
function tree.shown_by(module, entry)
  local out, wrapper = {}, shown_by(module, entry)
  while wrapper do
    out[#out + 1] = wrapper
    wrapper = shown_by(wrapper, entry)
  end
  return out
end

local function numbered(module)
  local out = {}
  for field in next, module do
    out[#out + 1] = type(field) == 'number' and field or nil
  end
  return out
end

-- The value that was assigned to a child's field last, on the module or on a wrapper.
local function assigned(module, entry)
  local now, wrapper = rawget(module, entry.key), shown_by(module, entry)
  while wrapper and now == entry.module do
    now, wrapper = rawget(wrapper, entry.key), shown_by(wrapper, entry)
  end
  return now
end

--- Set the field of a child, on the module and on its wrappers, to `value`.
---@param value ms.nn.Module?
function tree.place(module, entry, value)
  rawset(module, entry.key, value)
  for _, wrapper in ipairs(tree.shown_by(module, entry)) do
    rawset(wrapper, entry.key, value)
  end
end

--- Copy the entries of the wrapped module to the fields of a wrapper and of those around it.
---@param wrapper ms.nn.Module
function tree.show_entries(wrapper)
  local module = wrapper
  while module._shows_entries do
    for _, field in ipairs(numbered(module)) do
      rawset(module, field, nil)
    end
    module = module.module
  end
  for _, entry in ipairs(module._children) do
    tree.place(module, entry, entry.module)
  end
end

local function reaches(top, module, seen)
  if top == module then
    return true
  end
  seen[top] = true
  for _, entry in ipairs(top._children) do
    local child = assigned(top, entry)
    if tree.is_module(child) and not seen[child] and reaches(child, module, seen) then
      return true
    end
  end
  return false
end

--- Is `module` equal to `top` or below it?
---@param top ms.nn.Module
---@param module ms.nn.Module
---@return boolean
function tree.contains(top, module)
  return reaches(top, module, {})
end

--- Raise if a child contains its parent.
---@param module ms.nn.Module
---@param name string  of the child
---@param child ms.nn.Module
function tree.check_acyclic(module, name, child)
  if tree.contains(child, module) then
    errors.raise('ValueError', "child '%s' of %s is or contains that module: a tree has no cycles",
      tostring(name), module._name)
  end
end

-- [Note: seals] A manager that relies on a module's structure sets `_sealed`: a table with
-- refuse_new(module, what, name) and child_replaced(module, entry, now), which raise, and perhaps
-- check_called(module, manager), called before each forward.

--- Raise if the module is sealed.
---@param module ms.nn.Module
---@param what 'child'|'parameter'
---@param name string
---@param old? ms.nn.Module
---@param new? ms.nn.Module  replaces `old`; allowed if it wraps `old`, because parameters stay the
---  same
function tree.check_unsealed(module, what, name, old, new)
  while new and new._transparent and new ~= old do
    new = new.module
  end
  local seal = rawget(module, '_sealed')
  if seal and not (old and new == old) then
    seal.refuse_new(module, what, tostring(name))
  end
end

local function misplaced(what, name, module, value)
  errors.raise('TypeError', "%s '%s' of %s is now %s, expected a %s or nil", what, name,
    module._name, arguments.noun(value), what == 'child' and 'module' or 'tensor')
end

--- Record that declarations of this module or modules below it changed. It and the modules around
--- it are examined again at their next call.
---@param module ms.nn.Module
function tree.changed(module)
  while module do
    rawset(module, '_fields', false)
    module = rawget(module, '_owner')
  end
end

--- Record a module as a child. Its first parent stays its owner. State that depends on its path is
--- reset.
---@param owner ms.nn.Module
---@param module ms.nn.Module
function tree.adopt(owner, module)
  local first = rawget(module, '_owner')
  for _, entry in ipairs(first and first ~= owner and first._children or {}) do
    if assigned(first, entry) == module then
      owner = first
    end
  end
  rawset(module, '_owner', owner)
  rawset(module, '_ready', false)
  tree.changed(module)
end

--- The current module of the entry `entry` of `module._children`, or nil if the field was set to
--- nil.
function tree.child(module, entry)
  local now = assigned(module, entry)
  if now == entry.module then
    return now
  elseif rawget(module, '_sealed') then
    rawget(module, '_sealed').child_replaced(module, entry, now)
  elseif now == nil then
    entry.module = nil
    tree.place(module, entry, nil)
    tree.changed(module)
    return nil
  elseif not tree.is_module(now) then
    misplaced('child', entry.name, module, now)
  end
  tree.check_acyclic(module, entry.name, now)
  entry.module = now
  tree.place(module, entry, now)
  tree.adopt(module, now)
  return now
end

local function manager_around(module)
  while module and not tree.manager(module) do
    module = rawget(module, '_owner')
  end
  return module and tree.manager(module)
end

-- Put back the old value: an optimizer would continue with it if a plain tensor replaced it.
local function put_back_plain(module, p, now)
  rawset(module, p.name, p.tensor)
  errors.raise('TypeError', "parameter '%s' of %s was replaced by a plain tensor (%s), expected a "
    .. 'parameter or nil; the field shows the parameter again. Write into it instead: '
    .. 'ms.no_grad(function() module.%s:copy_(t) end)', join(tree.path(module), p.name),
    tree.describe(module), table.concat(parameter.shape(now), ', '), p.name)
end

--- The current tensor of the entry `p` of `module._params`, or nil.
---@return ms.Tensor?
function tree.param(module, p)
  local now = rawget(module, p.name)
  if rawequal(now, p.tensor) then
    return now
  end
  local tensor = parameter.is_tensor(now)
  if tensor and p.tensor and parameter.key(now) == parameter.key(p.tensor) then
    return p.tensor
  elseif p.tensor and parameter.manager(p.tensor) then
    return parameter.manager(p.tensor):_param_assigned(module, p, now)
  elseif now == nil then
    p.tensor = nil
    return nil
  elseif not tensor then
    misplaced('parameter', p.name, module, now)
  elseif p.tensor and not parameter.is_parameter(now) then
    local manager = manager_around(module)
    if manager then
      manager:_param_assigned(module, p, now)
    end
    put_back_plain(module, p, now)
  end
  parameter.make(scope.keep(now))
  p.tensor, p.shape = now, parameter.shape(now)
  return now
end

--- The current tensor of a buffer, or nil.
---@param b ms.nn.Buffer
---@return ms.Tensor?
function tree.buffer(b)
  local now = rawget(b.module, b.name)
  if rawequal(now, b.value.tensor) or now == nil then
    return now
  elseif not parameter.is_tensor(now) then
    misplaced('buffer', b.name, b.module, now)
  end
  b:replace(now)
  return now
end

local function walk(module, path, seen, out)
  if seen then
    if seen[module] then
      return out
    end
    seen[module] = true
  end
  out[#out + 1] = { path = path, module = module }
  for _, entry in ipairs(module._children) do
    local child = tree.child(module, entry)
    if child then
      walk(child, module._transparent and path or join(path, entry.name), seen, out)
    end
  end
  return out
end

--- All modules from this one down, parents before children.
---@param distinct? boolean  list a shared module once (default true)
---@return { path: string, module: ms.nn.Module }[]
function tree.walk(module, distinct)
  return walk(module, '', distinct ~= false and {} or nil, {})
end

--- Children in order of declaration.
---@return { name: string, module: ms.nn.Module }[]
function tree.children(module)
  local out = {}
  for _, entry in ipairs(module._children) do
    local child = tree.child(module, entry)
    if child then
      out[#out + 1] = { name = entry.name, module = child }
    end
  end
  return out
end

---@class ms.nn.ParamEntry
---@field name string  path
---@field tensor ms.Tensor
---@field shape integer[]  of the whole parameter, sharded or not
---@field module ms.nn.Module  that declared it
---@field flat_of? ms.fsdp.State  of a flat parameter: its FSDP instance

-- The flat parameter of an FSDP unit, which is listed in place of the unit's parameters.
local function flat_entry(path, state, method)
  local flat = state[method](state)
  return flat and {
    name = join(path, '_flat_param'), tensor = flat, shape = flat:shape(),
    module = state.outer_module, flat_of = state,
  }
end

--- Parameters by path.
---@param recurse? boolean  those of submodules too (default true)
---@param distinct? boolean  list a tied parameter once, under its first name (default true)
---@param flat? string  method of an FSDP instance that returns the flat parameter to list, or nil
---  to list the unit's parameters (default: list the parameters)
---@return ms.nn.ParamEntry[]
function tree.params(module, recurse, distinct, flat)
  local out, seen = {}, {}
  distinct = distinct ~= false
  local modules = recurse == false and { { path = '', module = module } }
    or tree.walk(module, distinct)
  for _, entry in ipairs(modules) do
    if flat and tree.manager(entry.module) then
      out[#out + 1] = flat_entry(entry.path, tree.manager(entry.module), flat)
    end
    for _, p in ipairs(entry.module._params) do
      local tensor = tree.param(entry.module, p)
      local key = tensor and parameter.key(tensor)
      local manager = flat and tensor and parameter.manager(tensor)
      if tensor and not (distinct and seen[key])
        and not (manager and manager[flat](manager)) then
        seen[key] = true
        out[#out + 1] = {
          name = join(entry.path, p.name), tensor = tensor, shape = p.shape, module = entry.module,
        }
      end
    end
  end
  return out
end

--- All original parameters with their paths, after units are formed.
---@param module ms.nn.Module
---@return ms.nn.ParamEntry[]
function tree.prepared_params(module)
  module:_prepare()
  return tree.params(module)
end

--- The buffers declared by this module itself.
---@return ms.nn.Buffer[]
function tree.own_buffers(module)
  local out = {}
  for _, b in ipairs(module._buffers) do
    out[#out + 1] = tree.buffer(b) and b
  end
  return out
end

--- Buffers by path; `entry` is the ms.nn.Buffer.
---@param recurse? boolean  those of submodules too (default true)
---@param distinct? boolean  list a tensor once, under its first name (default true)
---@return { name: string, tensor: ms.Tensor, entry: ms.nn.Buffer, module: ms.nn.Module }[]
function tree.buffers(module, recurse, distinct)
  local out, seen = {}, {}
  distinct = distinct ~= false
  local modules = recurse == false and { { path = '', module = module } }
    or tree.walk(module, distinct)
  for _, entry in ipairs(modules) do
    for _, b in ipairs(tree.own_buffers(entry.module)) do
      local key = parameter.key(b.value.tensor)
      if not (distinct and seen[key]) then
        seen[key] = true
        out[#out + 1] = {
          name = join(entry.path, b.name), tensor = b.value.tensor, entry = b,
          module = entry.module,
        }
      end
    end
  end
  return out
end

--- Make a list callable as an iterator: `for name, value in list do` yields the fields `first` and
--- `second` of each entry; without them `for value in list do` yields the entries.
function tree.iterable(list, first, second)
  local i = 0
  return setmetatable(list, {
    __call = function(_, ...)
      if select('#', ...) == 2 and select(2, ...) == nil then
        i = 0 -- a new loop: the last one may have ended early
      end
      i = i + 1
      local entry = list[i]
      if entry ~= nil and first then
        return entry[first], entry[second]
      end
      return entry
    end,
  })
end

-- -- paths ---------------------------------------------------------------------------------------

--- The outermost module that contains this one.
function tree.outermost(module)
  local owner = rawget(module, '_owner')
  while owner do
    module, owner = owner, rawget(owner, '_owner')
  end
  return module
end

-- The first path from `top` to the module in order of declaration, or nil.
local function way(top, module, seen)
  if top == module then
    return ''
  end
  seen[top] = true
  for _, entry in ipairs(top._children) do
    local child = tree.child(top, entry)
    local below = child and not seen[child] and way(child, module, seen)
    if below and top._transparent then
      return below
    elseif below then
      return below == '' and entry.name or join(entry.name, below)
    end
  end
end

--- Path of a module from the outermost one ('' for that one); the first path of a shared module.
---@return string
function tree.path(module)
  local home = rawget(module, '_home')
  return home and not rawget(home, '_owner') and way(home, module, {})
    or way(tree.outermost(module), module, {}) or ''
end

--- For messages: "head (nn.Linear)", or only the class for the outermost module.
---@param module ms.nn.Module
---@return string
function tree.describe(module)
  local path = tree.path(module)
  return path == '' and module._name or ('%s (%s)'):format(path, module._name)
end

--- Initialized parameters from here down that no FSDP instance manages.
---@return ms.nn.ParamEntry[]
function tree.unmanaged(module)
  local out = {}
  for _, p in ipairs(tree.params(module)) do
    if not parameter.manager(p.tensor) then
      parameter.materialize(p.tensor)
      out[#out + 1] = p
    end
  end
  return out
end

return tree
