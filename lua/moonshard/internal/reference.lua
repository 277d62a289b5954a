--- The reference of the public names, from the annotations in the sources: ms.help() and the pages
--- in docs/reference/ (docs/generate.lua).

local annotations = require 'moonshard.internal.annotations'
local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.internal.errors'
local util = require 'moonshard.internal.util'

local reference = {}

-- -- the sources ----------------------------------------------------------------------------------

local by_module = {} ---@type table<string, ms.Annotation.File|false>
local classes = {} ---@type table<string, ms.Annotation.Class>
local by_place = {} ---@type table<string, ms.Annotation>  by path:line
local paths = {} ---@type table<string, ms.Annotation.File>
local aliases = {} ---@type table<string, string>

local function add_file(file)
  paths[file.path] = file
  for _, fn in ipairs(file.functions) do
    by_place[file.path .. ':' .. fn.line] = fn
  end
  for name, alias in next, file.aliases do
    aliases[name] = alias
  end
  for _, name in ipairs(file.order) do
    classes[name] = classes[name] or file.classes[name]
  end
end

-- A file of the library, and all that it requires, directly or not.
local function read_module(name)
  if by_module[name] ~= nil then
    return
  end
  local path = package.searchpath(name, package.path)
  by_module[name] = path and annotations.read(path) or false
  if path then
    add_file(by_module[name])
    for _, required in ipairs(by_module[name].requires) do
      read_module(required)
    end
  end
end

-- All files that scripts can reach by names, whichever are loaded.
local function read_all()
  read_module 'moonshard.ms'
  for _, name in ipairs(getmetatable(require 'moonshard')._names()) do
    read_module('moonshard.' .. name)
  end
end

-- -- names ----------------------------------------------------------------------------------------

local function is_space(value)
  local meta = type(value) == 'table' and getmetatable(value)
  return type(meta) == 'table' and rawget(meta, '_names') and meta or nil
end

local function is_class(value)
  return type(value) == 'table' and type(rawget(value, '_name')) == 'string'
end

---@class ms.Reference.Entry
---@field name string  without ms: 'nn.Linear', 'nn.Module:parameters'
---@field kind 'function'|'class'|'value'
---@field fn? ms.Annotation  of a class its init
---@field class? ms.Annotation.Class
---@field type? string  where only the type of a function is declared
---@field text string
---@field value any

-- The function that a file defines as a field of the variable of a class or namespace, or of its
-- parents.
local function defined_in(class, name)
  local found
  for _, fn in ipairs(class and class.file.functions or {}) do
    if fn.name == name and fn.owner ~= '' and fn.owner == class.variable then
      found = fn
    end
  end
  for _, parent in ipairs(not found and name ~= 'init' and class and class.parents or {}) do
    found = found or defined_in(classes[parent], name)
  end
  return found
end

-- A field of a class or its parents that is declared as a function, and its class.
local function declared_in(class, name)
  for _, field in ipairs(class and class.fields or {}) do
    local declared = aliases[field.type] or field.type
    if field.name == name and declared:find '^fun%(' then
      return { type = declared, text = field.text }, class
    end
  end
  for _, parent in ipairs(class and class.parents or {}) do
    local field, found = declared_in(classes[parent], name)
    if field then
      return field, found
    end
  end
end

local function has_text(fn)
  return fn and (fn.text ~= '' or fn.type or #fn.params > 0 or #fn.returns > 0)
end

-- The function that a file puts into a table by this name.
local function assigned_in(file, name)
  for _, fn in ipairs(file and file.functions or {}) do
    if fn.name == name and fn.owner ~= '' and has_text(fn) then
      return fn
    end
  end
end

-- The same in the files that the file of a namespace requires.
local function required_by(class, name)
  for _, module in ipairs(class and class.file.requires or {}) do
    local fn = assigned_in(by_module[module], name)
    if fn then
      return fn
    end
  end
end

-- What stands where a function is defined, or where its file puts it into a table by this name.
local function place_of(value, name)
  local info = type(value) == 'function' and debug.getinfo(value, 'S')
  local path = info and info.source:gsub('^@', '')
  local fn = path and by_place[path .. ':' .. info.linedefined]
  return not has_text(fn) and path and assigned_in(paths[path], name) or fn
end

-- A function by where it stands, else by the name in its class or namespace, else by its field.
local function function_entry(name, value, class, key)
  local fn = place_of(value, key)
  if not has_text(fn) then
    fn = defined_in(class, key) or fn
  end
  local field, declarer
  if not has_text(fn) then
    field, declarer = declared_in(class, key)
    fn = not field and required_by(class, key) or fn
  end
  return {
    name = name, kind = 'function', value = value, fn = not field and fn or nil,
    type = field and field.type or fn and fn.type, class = declarer,
    text = field and (field.text ~= '' and field.text or declarer.text) or fn and fn.text or '',
  }
end

local function class_of(value)
  return classes['ms.' .. value._name]
end

local SPECIAL = { init = true, forward = true, extra_repr = true, extend = true }

-- The public methods that a class itself has.
local function methods_of(value, prefix)
  local out, class = {}, class_of(value)
  for _, key in ipairs(util.sorted_keys(value)) do
    local method = rawget(value, key)
    if type(method) == 'function' and not key:find '^_' and not SPECIAL[key] then
      out[#out + 1] = function_entry(prefix .. ':' .. key, method, class, key)
      local fn = out[#out].fn
      if fn and fn.owner ~= '' and not fn.method then
        out[#out].name = prefix .. '.' .. key
      end
    end
  end
  return out
end

local function init_of(value)
  while value do
    local class = class_of(value)
    local fn = defined_in(class, 'init')
    if fn then
      return fn
    end
    value = rawget(value, '_parent')
  end
end

local function class_entry(name, value)
  local class = class_of(value)
  local text = class and (class.text ~= '' and class.text or class.file.text) or ''
  return {
    name = name, kind = 'class', value = value, class = class, fn = init_of(value), text = text,
  }
end

local function add_value(out, name, value, class, key)
  if is_class(value) then
    out[#out + 1] = class_entry(name, value)
    for _, entry in ipairs(methods_of(value, name)) do
      out[#out + 1] = entry
    end
  elseif is_space(value) then
    reference.of_space(name, value, out)
  elseif type(value) == 'function' then
    out[#out + 1] = function_entry(name, value, class, key)
  end
end

--- Entries of all public names of a namespace, in order of names.
---@param name string  'nn'
---@param space table  ms.nn
---@param out? ms.Reference.Entry[]
---@return ms.Reference.Entry[]
function reference.of_space(name, space, out)
  out = out or {}
  local keys = getmetatable(space)._names()
  read_all()
  local class = classes[name == 'ms' and 'ms' or 'ms.' .. name]
  for _, key in ipairs(keys) do
    if not key:find '^_' then
      add_value(out, name == 'ms' and key or name .. '.' .. key, space[key], class, key)
    end
  end
  return out
end

-- -- text -----------------------------------------------------------------------------------------

local function shown_type(text)
  return (text:gsub('ffi%.cdata%*', 'cdata'))
end

-- Parameters of 'fun(x: ms.Tensor, dim?: integer): ms.Tensor', and its results.
local function of_type(text)
  local params, rest = {}, text:match '^fun(%b())' or '()'
  local depth, word = 0, ''
  for c in (rest:sub(2, -2) .. ','):gmatch '.' do
    depth = depth + (c:find '[%(%[{<]' and 1 or c:find '[%)%]}>]' and -1 or 0)
    if c == ',' and depth == 0 then
      local name, mark, kind = word:match '^%s*([%w_.]+)(%??):?%s*(.*)$'
      if name then
        params[#params + 1] = { name = name, optional = mark == '?', type = kind, text = '' }
      end
      word = ''
    else
      word = word .. c
    end
  end
  local result = text:match '^fun%b()%s*:%s*(.*)$'
  return params, result and { { name = '', type = result, text = '' } } or {}
end

local function params_of(entry)
  local fn = entry.fn
  if entry.type then
    local params, returns = of_type(entry.type)
    if params[1] and params[1].name == 'self' then
      table.remove(params, 1)
    end
    return params, returns
  elseif not fn then
    return {}, {}
  end
  local params = {}
  for _, arg in ipairs(fn.args) do
    params[#params + 1] = { name = arg, optional = false, type = '', text = '' }
  end
  if fn.vararg then
    params[#params + 1] = { name = '...', optional = false, type = '', text = '' }
  end
  for i, param in ipairs(params) do
    for _, documented in ipairs(fn.params) do
      params[i] = documented.name == param.name and documented or params[i]
    end
  end
  return params, fn.returns
end

-- The parameters of a class: those of its init, with the types of its overload where the init, that
-- of a parent, does not give them.
local function params_of_class(entry)
  local params = params_of(entry)
  for _, overload in ipairs(entry.class and entry.class.overloads or {}) do
    local declared = of_type(overload)
    if not params[1] then
      return declared
    end
    for _, other in ipairs(declared) do
      for i, param in ipairs(params) do
        local vague = param.type == '' or param.type:find '^table%??$'
        params[i] = vague and other.name == param.name and other or param
      end
    end
  end
  return params
end

--- The call as written: 'optim.clip_grad_norm_(params, max_norm, norm_type?)'.
---@param entry ms.Reference.Entry
---@return string
function reference.signature(entry)
  local names = {}
  for i, param in ipairs(entry.kind == 'class' and params_of_class(entry) or (params_of(entry))) do
    names[i] = param.name .. (param.optional and '?' or '')
  end
  return ('%s(%s)'):format(entry.name, table.concat(names, ', '))
end

local function all_fields(class, out, seen)
  for _, parent in ipairs(class.parents) do
    if classes[parent] then
      all_fields(classes[parent], out, seen)
    end
  end
  for _, field in ipairs(class.fields) do
    if not seen[field.name] and not field.name:find '^_' then
      seen[field.name], out[#out + 1] = true, field
    end
  end
  return out
end

local function line_of(value, indent)
  local kind = value.type ~= '' and ' (' .. shown_type(value.type) .. ')' or ''
  local text = value.text ~= '' and ': ' .. value.text or ''
  if value.name == '' then -- a result
    return indent .. '- ' .. shown_type(value.type) .. text
  end
  return ('%s- `%s%s`%s%s'):format(indent, value.name, value.optional and '?' or '', kind, text)
end

-- Tables of options and results are described by classes of their own.
local function add_value_lines(out, value)
  out[#out + 1] = line_of(value, '')
  for name in value.type:gmatch 'ms%.[%w_.]+' do
    local class = classes[name]
    if class and not class.overloads[1] and not class.variable and name ~= 'ms.Tensor' then
      for _, field in ipairs(all_fields(class, {}, {})) do
        out[#out + 1] = line_of(field, '  ')
      end
    end
  end
end

local function add_list(out, title, values)
  if values[1] then
    out[#out + 1] = ''
    out[#out + 1] = title
    out[#out + 1] = ''
    for _, value in ipairs(values) do
      add_value_lines(out, value)
    end
  end
end

-- A class's fields, without those of its parents.
local function public_fields(class)
  local out = {}
  for _, field in ipairs(class and class.fields or {}) do
    if not field.name:find '^[_%[]' then
      out[#out + 1] = field
    end
  end
  return out
end

local function source_of(entry)
  local file = entry.class and entry.class.file or entry.fn and entry.fn.file
  local path = file and file.path:match '^.*/(moonshard[%w_]*/.*)$'
  return path and (path:find '^moonshard/' and 'lua/' or 'bindings/') .. path
end

local function call_of(entry)
  local forward = entry.class and defined_in(entry.class, 'forward')
  if has_text(forward) then
    local call = { name = 'module', kind = 'function', fn = forward, text = forward.text }
    return call, reference.signature(call)
  end
end

--- An entry as Markdown: signature, text, parameters with their defaults, results, errors, source.
---@param entry ms.Reference.Entry
---@return string
function reference.text(entry)
  local params, returns = params_of(entry)
  if entry.kind == 'class' then
    params = params_of_class(entry)
  end
  local out = { '### `' .. reference.signature(entry) .. '`' }
  if entry.text ~= '' then
    out[#out + 1] = ''
    out[#out + 1] = entry.text
  end
  local parent = entry.kind == 'class' and rawget(entry.value, '_parent')
  if parent then
    out[#out + 1] = ''
    out[#out + 1] = ('Inherits `%s`.'):format(parent._name)
  end
  add_list(out, 'Parameters:', params)
  if entry.kind == 'class' then
    add_list(out, 'Fields:', public_fields(entry.class))
    local call, signature = call_of(entry)
    if call then
      add_list(out, ('Called as `%s`:'):format(signature), (params_of(call)))
      add_list(out, 'Returns:', call.fn.returns)
    end
  else
    add_list(out, 'Returns:', returns)
  end
  local own = entry.kind == 'function'
    or entry.class and entry.fn and entry.fn.file == entry.class.file
  if own and entry.fn and entry.fn.raises[1] then
    out[#out + 1] = ''
    out[#out + 1] = 'Raises:'
    out[#out + 1] = ''
    for _, line in ipairs(entry.fn.raises) do
      out[#out + 1] = '- `' .. line:gsub('`', "'") .. '`'
    end
  end
  local source = source_of(entry)
  if source then
    out[#out + 1] = ''
    out[#out + 1] = 'Source: `' .. source .. '`'
  end
  return table.concat(out, '\n')
end

-- -- pages ---------------------------------------------------------------------------------------

--- The namespaces that have pages.
reference.PAGES = { 'ops', 'nn', 'optim', 'data', 'fsdp', 'dist', 'checkpoint' }

--- The page of a namespace, as Markdown.
---@param name string
---@return string
function reference.page(name)
  local out = {
    '# ms.' .. name, '', 'Generated from the annotations in the sources by `./dev docs`.',
    '`ms.help(name)` prints an entry.',
  }
  for _, entry in ipairs(reference.of_space(name, require('moonshard')[name])) do
    local text = reference.text(entry)
    out[#out + 1] = ''
    out[#out + 1] = entry.name:find(':', 1, true) and text or text:sub(2) -- methods below classes
  end
  return table.concat(out, '\n') .. '\n'
end

-- -- ms.help --------------------------------------------------------------------------------------

local all

-- All entries, also those of the methods of tensors, by name and by value.
local function index()
  if not all then
    local ms = require 'moonshard'
    all = { names = {}, by_name = {}, by_value = {} }
    local list = reference.of_space('ms', ms)
    local methods, class = require 'moonshard.tensor', classes['ms.Tensor']
    for _, key in ipairs(util.sorted_keys(methods)) do
      list[#list + 1] = function_entry('Tensor:' .. key, methods[key], class, key)
    end
    for _, entry in ipairs(list) do
      local name = entry.name:gsub(':', '.')
      all.names[#all.names + 1] = entry.name
      all.by_name[name] = all.by_name[name] or entry
      all.by_value[entry.value] = all.by_value[entry.value] or entry
    end
  end
  return all
end

local function list_of(space)
  local lines, prefix = {}, getmetatable(space)._namespace
  for i, entry in ipairs(reference.of_space(prefix, space)) do
    lines[i] = reference.signature(entry)
  end
  return table.concat(lines, '\n')
end

-- The namespace that a name means.
local function space_of(name)
  local value = require 'moonshard'
  for part in name:gmatch '[^.]+' do
    value = is_space(value) and rawget(getmetatable(value), '_names') and value[part]
  end
  return is_space(value) and value or nil
end

--- The entry of a name or value, as text; of a namespace the signatures of all its names.
---@param what any
---@return string
function reference.help(what)
  local entries = index()
  if is_space(what) then
    return list_of(what)
  elseif type(what) ~= 'string' then
    local entry = what ~= nil and entries.by_value[what]
      or type(what) == 'table' and entries.by_value[getmetatable(what)]
    if not entry then
      arguments.refuse('ms.help', 'what', what, "a name such as 'nn.Linear', a public function, a "
        .. 'class or an object of one')
    end
    return (reference.text(entry):gsub('^### `(.-)`', '%1'))
  end
  local name = what:gsub('^ms%.', ''):gsub(':', '.')
  local entry = entries.by_name[name]
  if entry then
    return (reference.text(entry):gsub('^### `(.-)`', '%1'))
  end
  local ok, space = pcall(space_of, name)
  if ok and space then
    return list_of(space)
  end
  local near = errors.nearest(name, entries.names)
  errors.raise('KeyError', "ms.help: nothing is called '%s'%s", what:sub(1, 80),
    near and (", did you mean '%s'?"):format(near) or '')
end

--- How a prompt shows a function: its call and where it is defined.
---@param fn function
---@return string
function reference.shown(fn)
  local entry = index().by_value[fn]
  local info = debug.getinfo(fn, 'S')
  if entry then
    return 'function ' .. reference.signature(entry)
  end
  return ('function: %s:%d'):format(info.short_src, info.linedefined)
end

--- Has an entry anything to show beside its name?
---@param entry ms.Reference.Entry
---@return boolean
function reference.is_described(entry)
  return entry.text ~= '' or entry.type ~= nil or entry.class ~= nil or has_text(entry.fn) or false
end

return reference
