--- What a captured call depends on beside its arguments: the fields of the modules below it, and
--- the upvalues and globals of its functions.
---
--- They are flattened to arrays when a call is captured, and compared before each replay:
---   of every module below: all fields, and the entries of its lists of parameters, buffers,
---     children and hooks; dtype and requires_grad of parameters; the functions of its class that
---     are not the library's
---   of every such function, and of a compiled function: upvalues, and globals that it names
---   of plain tables and of objects among these values: all fields, not those of tables inside, and
---     not of optimizers and schedulers, whose methods run in each replay
--- Modules among these values are guarded as those below.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local capture = require 'moonshard.base.capture'
local class = require 'moonshard.base.class'
local funck = require('jit.util').funck
local hooks = require 'moonshard.nn.hooks'
local parameter = require 'moonshard_ffi.parameter'
local tree = require 'moonshard.nn.tree'
local util = require 'moonshard.base.util'

local calls, count = B.calls, util.count
local rawget, rawequal, next, type = rawget, rawequal, next, type
local getupvalue = debug.getupvalue

---@class ms.compile.Guards  parallel arrays
---@field tables table[]
---@field keys any[]
---@field values any[]
---@field names string[]  for messages
---@field comparisons (fun(): integer?)[]
---@field counted { table: table, n: integer, name: string }[]  numbers of fields
---@field functions function[]
---@field indices integer[]
---@field upvalues any[]
---@field upvalue_names string[]
---@field params { tensor: ms.Tensor, dtype?: integer, requires_grad: boolean, name: string }[]
---@field fields_added integer
---@field modules { table: table, n: integer, name: string }[]  as `counted`
local Guards = class 'compile.Guards'

local function is_library(fn)
  local source = debug.getinfo(fn, 'S').source
  return source == '=[C]' or B.errors.is_own(source)
end

-- Tables of Lua itself.
local STANDARD = { [_G] = true }
for _, name in ipairs {
  'bit', 'coroutine', 'debug', 'io', 'jit', 'math', 'os', 'package', 'string', 'table',
} do
  STANDARD[_G[name]] = true
end

-- Fields that change without effect on a forward.
local UNREAD = { _fields = true, _scope = true, _owner = true, _home = true, _ready = true }

-- Fields that the library sets without an assignment.
local SET_LATER = { 'training', '_manager', '_sealed' }

-- Lists, and what a field of their entries shows; the tensor of a buffer is that of its field.
local LISTS = { _params = 'tensor', _buffers = 'name', _children = 'module' }
for _, field in ipairs(hooks.FIELDS) do
  LISTS[field] = 'fn'
end

local function add(self, name, t, key, value)
  local i = #self.tables + 1
  self.tables[i], self.keys[i], self.values[i], self.names[i] = t, key, value, name
end

local add_value

-- The fields of a table, and their number.
local function add_fields(self, t, name)
  self.counted[#self.counted + 1] = { table = t, n = count(t), name = name }
  for key, value in next, t do -- in any order: each is compared with itself
    local label = ("field '%s' of %s"):format(tostring(key), name)
    add(self, label, t, key, value)
    if tree.is_module(value) then
      add_value(self, value, label)
    end
  end
end

local function add_function(self, fn)
  if self.seen[fn] or is_library(fn) then
    return
  end
  self.seen[fn] = true
  for i = 1, debug.getinfo(fn, 'u').nups do
    local name, value = getupvalue(fn, i)
    local k, label = #self.functions + 1, ("upvalue '%s'"):format(name)
    self.functions[k], self.indices[k], self.upvalues[k], self.upvalue_names[k] = fn, i, value,
      label
    add_value(self, value, label)
  end
  local globals, i = debug.getfenv(fn), -1
  local constant = funck(fn, i)
  while constant ~= nil do -- the strings among the constants name its globals, and fields
    local is_name = type(constant) == 'string'
    local value = is_name and rawget(globals, constant)
    if is_name and not (type(value) == 'function' and is_library(value)) then
      local label = ("global '%s'"):format(constant)
      add(self, label, globals, constant, value)
      add_value(self, value, label)
    end
    i = i - 1
    constant = funck(fn, i)
  end
end

-- Functions of a class and its parents, down to the library's.
local function add_class(self, cls)
  while cls and not self.seen[cls] do
    self.seen[cls] = true
    for key, value in next, cls do -- in any order
      if type(value) == 'function' and not is_library(value) then
        add(self, ("function '%s' of %s"):format(tostring(key), tostring(cls._name)), cls, key,
          value)
        add_function(self, value)
      end
    end
    cls = rawget(cls, '_parent')
  end
end

local function add_param(self, p, name)
  local info = B.new 'ms_tensor_info'
  calls.tensor_describe(p, info)
  self.params[#self.params + 1] = {
    tensor = p, requires_grad = info.requires_grad, name = name,
    dtype = not parameter.manager(p) and info.dtype or nil, -- a unit shows another one if gathered
  }
end

-- The entries of a list of parameters, buffers, children or hooks.
local function add_list(self, list, shows, label)
  for i, entry in ipairs(list) do
    add(self, label, list, i, entry)
    add(self, label, entry, shows, entry[shows])
  end
  add(self, label, list, #list + 1, nil)
end

local function add_module(self, module, path)
  if self.seen[module] then
    return
  end
  self.seen[module] = true
  local name = path == '' and tree.describe(module) or ("'%s'"):format(path)
  self.modules[#self.modules + 1] = { table = module, n = count(module), name = name }
  for key, value in next, module do -- in any order
    if not UNREAD[key] then
      local label = ("field '%s' of %s"):format(tostring(key), name)
      add(self, label, module, key, value)
      local is_plain = type(value) == 'table' and getmetatable(value) == nil
      if is_plain and not LISTS[key] and key ~= '_sealed' then
        add_fields(self, value, label)
      elseif type(value) == 'function' then
        add_function(self, value)
      end
    end
  end
  for _, field in ipairs(SET_LATER) do
    if rawget(module, field) == nil then
      add(self, ("field '%s' of %s"):format(field, name), module, field, nil)
    end
  end
  for field, shows in next, LISTS do -- in any order
    local list = rawget(module, field)
    local label = field:find 'hook' and ('the hooks of %s'):format(name)
      or ("'%s' of %s"):format(field:sub(2), name)
    if list then
      add_list(self, list, shows, label)
    else
      add(self, label, module, field, nil)
    end
  end
  for _, p in ipairs(module._params) do
    if B.is_ref(p.tensor) then
      add_param(self, p.tensor, ("parameter '%s' of %s"):format(p.name, name))
    end
  end
  add_class(self, getmetatable(module))
end

local function add_modules(self, top)
  for _, entry in ipairs(tree.walk(top)) do
    add_module(self, entry.module, tree.path(entry.module))
  end
end

function add_value(self, value, name)
  if type(value) == 'function' then
    add_function(self, value)
  elseif tree.is_module(value) then
    add_modules(self, value)
  elseif type(value) == 'table' and not self.seen[value] and not STANDARD[value] then
    local meta = getmetatable(value)
    local is_class = rawget(value, '_name') ~= nil
    if not is_class and not (type(meta) == 'table' and (meta._namespace or meta._is_optimizer
      or meta._is_scheduler)) then
      self.seen[value] = true
      add_fields(self, value, name)
    end
  end
end

-- [Note: comparisons] With constant keys a lookup is one load in a trace: a comparison takes 5 ns,
-- in a loop over arrays 20.
local PER_FUNCTION = 100

-- A function that compares entries `from` to `to`, and returns the first that differs.
local function comparison(self, from, to)
  local constants = {}
  local function constant(value)
    constants[#constants + 1] = value
    return ('K[%d]'):format(#constants)
  end
  local lines = { 'local K, rawget, rawequal = ...', 'return function()' }
  for i = from, to do
    local key, value = self.keys[i], self.values[i]
    lines[#lines + 1] = ('if not rawequal(rawget(%s, %s), %s) then return %d end'):format(
      constant(self.tables[i]), type(key) == 'string' and ('%q'):format(key) or constant(key),
      value == nil and 'nil' or constant(value), i)
  end
  lines[#lines + 1] = 'end'
  return assert(loadstring(table.concat(lines, '\n')))(constants, rawget, rawequal)
end

---@param target ms.nn.Module|function
function Guards:init(target)
  self.tables, self.keys, self.values, self.names = {}, {}, {}, {}
  self.functions, self.indices, self.upvalues, self.upvalue_names = {}, {}, {}, {}
  self.counted, self.modules, self.params = {}, {}, {}
  self.seen = { [self] = true }
  add_value(self, target, arguments.noun(target))
  self.seen = nil
  self.comparisons = {}
  for from = 1, #self.tables, PER_FUNCTION do
    table.insert(self.comparisons,
      comparison(self, from, math.min(from + PER_FUNCTION - 1, #self.tables)))
  end
  self.fields_added = capture.fields_added
end

local info = B.new 'ms_tensor_info'

-- The first entry that differs: an array of names, and the index there. Nothing is allocated.
local function different(self)
  local comparisons = self.comparisons
  for k = 1, #comparisons do
    local i = comparisons[k]()
    if i then
      return self.names, i
    end
  end
  local functions, indices, upvalues = self.functions, self.indices, self.upvalues
  for i = 1, #functions do
    local _, value = getupvalue(functions[i], indices[i])
    if not rawequal(value, upvalues[i]) then
      return self.upvalue_names, i
    end
  end
end

local function different_param(self)
  for _, p in ipairs(self.params) do
    calls.tensor_describe(p.tensor, info)
    if info.requires_grad ~= p.requires_grad or p.dtype and info.dtype ~= p.dtype then
      return p.name
    end
  end
end

local function other_count(list)
  for _, entry in ipairs(list) do
    if count(entry.table) ~= entry.n then
      return entry.name
    end
  end
end

--- What changed since the capture, as in "field 'scale' of 'blocks.1' changed"; nil if nothing
--- did.
---@return string?
function Guards:miss()
  local names, i = different(self)
  if i then
    return names[i] .. ' changed'
  end
  local param = different_param(self)
  if param then
    return param .. ' was cast, frozen or thawed'
  end
  local counted = other_count(self.counted)
  if not counted and self.fields_added ~= capture.fields_added then
    counted = other_count(self.modules)
    if not counted then
      self.fields_added = capture.fields_added
    end
  end
  return counted and ('%s has other fields'):format(counted) or nil
end

local function is_among(tensor, values)
  for i = 1, #values do
    if rawequal(values[i], tensor) then
      return true
    end
  end
end

--- True if the tensor is one of the compared values. As an argument it is recorded as that value.
---@param tensor ms.Tensor
---@return boolean
function Guards:holds(tensor)
  return is_among(tensor, self.values) or is_among(tensor, self.upvalues) or false
end

--- Number of compared values.
---@return integer
function Guards:count()
  return #self.tables + #self.functions + #self.params
end

return Guards
