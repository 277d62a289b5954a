--- The tree of modules below one: who is in it, under which path, with which parameters. Everything
--- is read from arrays in order of declaration.
---
--- Fields are the truth: `model.head = other` takes the place of the child declared as 'head', and
--- `head.weight = tensor` ties a parameter.

local parameter = require 'moonshard_ffi.parameter'
local scope = require 'moonshard.scope'

local tree = {}

---@param path string
---@param name string
---@return string
function tree.join(path, name)
  return path == '' and name or path .. '.' .. name
end

local join = tree.join

--- The module that stands where `entry` of `module._children` was declared.
function tree.child(module, entry)
  local now = rawget(module, entry.key)
  if now ~= entry.module and type(now) == 'table' and now._children then
    entry.module = now
    rawset(now, '_owner', module)
  end
  return entry.module
end

-- The tensor that stands where `p` of `module._params` was declared.
local function param_tensor(module, p)
  local now = rawget(module, p.name)
  if now ~= p.tensor and parameter.is_tensor(now) then
    parameter.make(scope.keep(now))
    p.tensor, p.shape = now, parameter.shape(now)
  end
  return p.tensor
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
    local child_path = module._transparent and path or join(path, entry.name)
    walk(tree.child(module, entry), child_path, seen, out)
  end
  return out
end

--- All modules from this one down, parents first.
---@param distinct? boolean  a module reached twice is listed once (default true)
---@return { path: string, module: ms.nn.Module }[]
function tree.walk(module, distinct)
  return walk(module, '', distinct ~= false and {} or nil, {})
end

--- Children in order of declaration.
---@return { name: string, module: ms.nn.Module }[]
function tree.children(module)
  local out = {}
  for i, entry in ipairs(module._children) do
    out[i] = { name = entry.name, module = tree.child(module, entry) }
  end
  return out
end

---@class ms.nn.ParamEntry
---@field name string  path
---@field tensor ms.Tensor
---@field shape integer[]  of the whole parameter, sharded or not
---@field module ms.nn.Module  that declared it

--- Parameters by path.
---@param recurse? boolean  those of submodules too (default true)
---@param distinct? boolean  a tied parameter is listed once, under its first name (default true)
---@return ms.nn.ParamEntry[]
function tree.params(module, recurse, distinct)
  local out, seen = {}, {}
  distinct = distinct ~= false
  local modules = recurse == false and { { path = '', module = module } }
    or tree.walk(module, distinct)
  for _, entry in ipairs(modules) do
    for _, p in ipairs(entry.module._params) do
      local tensor = param_tensor(entry.module, p)
      local key = parameter.key(tensor)
      if not (distinct and seen[key]) then
        seen[key] = true
        out[#out + 1] = {
          name = join(entry.path, p.name), tensor = tensor, shape = p.shape, module = entry.module,
        }
      end
    end
  end
  return out
end

--- Buffers by path; `entry` is the declaration.
---@return { name: string, tensor: ms.Tensor, entry: table, module: ms.nn.Module }[]
function tree.buffers(module)
  local out = {}
  for _, entry in ipairs(tree.walk(module)) do
    for _, b in ipairs(entry.module._buffers) do
      out[#out + 1] = {
        name = join(entry.path, b.name), tensor = b.tensor, entry = b, module = entry.module,
      }
    end
  end
  return out
end

--- A list that can also be walked directly: `for name, value in list do`.
function tree.iterable(list, first, second)
  local i = 0
  return setmetatable(list, {
    __call = function()
      i = i + 1
      local entry = list[i]
      if entry then
        return entry[first], entry[second]
      end
    end,
  })
end

-- -- names ---------------------------------------------------------------------------------------

--- The module that contains this one and is contained by none.
function tree.outermost(module)
  local owner = rawget(module, '_owner')
  while owner do
    module, owner = owner, rawget(owner, '_owner')
  end
  return module
end

--- Path of a module from the outermost one, '' for that one itself.
---@return string
function tree.path(module)
  local owner = rawget(module, '_owner')
  if not owner then
    return ''
  elseif owner._transparent then
    return tree.path(owner)
  end
  for _, entry in ipairs(owner._children) do
    if tree.child(owner, entry) == module then
      return join(tree.path(owner), entry.name)
    end
  end
  return ''
end

--- Name the parameters from here down that have no name yet; a parameter keeps the first it got.
function tree.assign_names(module)
  local prefix = tree.path(module)
  for _, p in ipairs(tree.params(module)) do
    if parameter.name(p.tensor) == '' then
      parameter.set_name(p.tensor, join(prefix, p.name))
    end
  end
end

return tree
