--- The reference of the public names, from the annotations in the sources: ms.help() and the pages
--- in docs/reference/ (bindings/reference.lua).

local annotations = require 'moonshard.reference.annotations'
local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'
local library = require 'moonshard_ffi.library'
local util = require 'moonshard.base.util'

local reference = {}

-- -- the sources ----------------------------------------------------------------------------------

local by_module = {} ---@type table<string, ms.Annotation.File|false>
local classes = {} ---@type table<string, ms.Annotation.Class>
local by_place = {} ---@type table<string, ms.Annotation>  by path:line
local paths = {} ---@type table<string, ms.Annotation.File>
local aliases = {} ---@type table<string, string>

-- A file of the library, and all that it requires, directly or not.
local function read_module(name)
  if by_module[name] ~= nil then
    return
  end
  local path = package.searchpath(name, ('%s;%s/?.lua'):format(package.path, library.generated))
  local file = path and annotations.read(path) or false
  by_module[name] = file
  if not file then
    return
  end
  paths[path] = file
  for _, fn in ipairs(file.functions) do
    by_place[path .. ':' .. fn.line] = fn
  end
  for alias, type_text in next, file.aliases do
    aliases[alias] = type_text
  end
  for _, class in ipairs(file.order) do
    local known, found = classes[class], file.classes[class]
    for _, field in ipairs(known and found.fields or {}) do -- a class in two files
      known.fields[#known.fields + 1] = field
    end
    classes[class] = known or found
    classes[class].file = found.file
  end
  for _, required in ipairs(file.requires) do
    read_module(required)
  end
end

-- -- entries --------------------------------------------------------------------------------------

---@class ms.Reference.Entry
---@field name string  without ms: 'nn.Linear', 'nn.Module:parameters'
---@field kind 'function'|'class'|'value'  of a type: a class, without value
---@field fn? ms.Annotation  of a class its init
---@field class? ms.Annotation.Class
---@field type? string  where only the type of a function or value is declared
---@field text string
---@field value any
---@field page string
---@field methods? ms.Reference.Entry[]  of a class

local function is_space(value)
  local meta = type(value) == 'table' and getmetatable(value)
  return type(meta) == 'table' and rawget(meta, '_names') and meta or nil
end

local function has_text(fn)
  return fn and (fn.text ~= '' or fn.type or #fn.params > 0 or #fn.returns > 0) or false
end

-- The described function that a file puts into a table by this name; `owner`: into this one.
local function named_in(file, name, owner)
  for _, fn in ipairs(file and file.functions or {}) do
    if fn.name == name and fn.owner ~= '' and fn.owner == (owner or fn.owner) and has_text(fn) then
      return fn
    end
  end
end

-- What find(class) gives for a class or the first of its parents for which it gives something.
local function inherited(class, find)
  local found = class and find(class)
  for _, parent in ipairs(class and not found and class.parents or {}) do
    found = found or inherited(classes[parent], find)
  end
  return found
end

local function method_in(class, name)
  return named_in(class.file, name, class.variable or '')
end

local function field_of(class, name)
  return inherited(class, function(c)
    for _, field in ipairs(c.fields) do
      if field.name == name then
        return { type = aliases[field.type] or field.type,
          text = field.text ~= '' and field.text or c.text }
      end
    end
  end)
end

-- A function is described where it is defined, by its name in its class, by a field of the class,
-- or in a file that the file of a namespace requires.
local function described(value, class, key)
  local info = type(value) == 'function' and debug.getinfo(value, 'S')
  local path = info and info.source:gsub('^@', '')
  local fn = path and by_place[path .. ':' .. info.linedefined]
  fn = has_text(fn) and fn or path and named_in(paths[path], key)
    or inherited(class, function(c) return method_in(c, key) end)
  local field = not fn and field_of(class, key)
  for _, module in ipairs(not fn and not field and class and class.file.requires or {}) do
    fn = fn or named_in(by_module[module], key)
  end
  return fn, field or nil
end

local function member_entry(name, value, class, key)
  local fn, field = described(value, class, key)
  return {
    name = name, kind = (fn or type(value) == 'function') and 'function' or 'value', value = value,
    fn = fn, type = field and field.type or fn and fn.type, text = (field or fn or {}).text or '',
  }
end

local NOT_LISTED = { init = true, forward = true, extra_repr = true }

local function is_public(key, value)
  local parent = key == 'extend' and value and rawget(value, '_parent') -- all children have it
  return not key:find '^_' and not NOT_LISTED[key] and not (parent and parent.extend)
end

-- The public methods of a class: those of its table, else those of its annotations.
local function methods_of(name, value, class)
  local keys = {}
  for _, fn in ipairs(not value and class.file.functions or {}) do
    keys[fn.name] = fn.owner == class.variable or nil
  end
  for key, method in next, value or {} do
    keys[key] = type(method) == 'function' or nil
  end
  local out = {}
  for _, key in ipairs(util.sorted_keys(keys)) do
    if is_public(key, value) then
      local entry = member_entry(name .. ':' .. key, value and rawget(value, key), class, key)
      if entry.fn and not entry.fn.method and key == 'extend' then
        entry.name = name .. '.' .. key
      end
      out[#out + 1] = entry
    end
  end
  return out
end

local function class_entry(name, value, class)
  local init = inherited(class, function(c) return method_in(c, 'init') end)
  return {
    name = name, kind = 'class', value = value, class = class, fn = init,
    text = class and (class.text ~= '' and class.text or class.variable and class.file.text) or '',
    methods = methods_of(name, value, class),
  }
end

-- -- types ----------------------------------------------------------------------------------------

-- Parts of a list that no bracket encloses.
local function split(list)
  local parts, depth, part = {}, 0, ''
  for c in (list .. ','):gmatch '.' do
    depth = depth + (c:find '[%(%[{<]' and 1 or c:find '[%)%]}>]' and -1 or 0)
    if c == ',' and depth == 0 then
      parts[#parts + 1], part = part:match '^%s*(.-)%s*$', ''
    else
      part = part .. c
    end
  end
  return parts
end

-- Parameters of 'fun(self: ms.Tensor, dim?: integer): ms.Tensor' and its results; without self, and
-- of a method, which may be a function of ops, without the first parameter.
local function of_type(text, of_method)
  local params, returns = {}, {}
  for i, part in ipairs(split((text:match '^fun(%b())' or '()'):sub(2, -2))) do
    local name, mark, kind = part:match '^([%w_.]+)(%??):?%s*(.*)$'
    if name and name ~= 'self' and not (of_method and i == 1) then
      params[#params + 1] = { name = name, optional = mark == '?', type = kind, text = '' }
    end
  end
  local result = text:match '^fun%b()%s*:%s*(.*)$'
  for _, kind in ipairs(result and split(result) or {}) do
    returns[#returns + 1] = { name = '', type = kind, text = '' }
  end
  return params, returns
end

local function params_of(entry)
  local fn, params = entry.fn, {}
  local of_method = entry.name:find(':', 1, true)
  if entry.type then
    return of_type(entry.type, of_method)
  end
  for _, arg in ipairs(fn and fn.args or {}) do
    params[#params + 1] = { name = arg, optional = false, type = '', text = '' }
  end
  if fn and fn.vararg then
    params[#params + 1] = { name = '...', optional = false, type = '', text = '' }
  end
  for i, param in ipairs(params) do
    for _, documented in ipairs(fn.params) do
      params[i] = documented.name == param.name and documented or params[i]
    end
  end
  if of_method and not fn.method then
    table.remove(params, 1)
  end
  if entry.kind == 'class' then -- an overload has types that the init of a parent lacks
    local overload = of_type(entry.class and entry.class.overloads[1] or '')
    params = fn and params or overload
    for _, declared in ipairs(overload) do
      for i, param in ipairs(params) do
        local vague = param.name == declared.name
          and (param.type == '' or param.type:find '^table%??$')
        params[i] = vague and declared or param
      end
    end
    return params, {}
  end
  return params, fn and fn.returns or {}
end

-- The fields of a class that are neither methods nor parameters.
local function fields_of(entry)
  local out, taken = {}, entry.kind == 'class' and util.merged(entry.value or {}) or {}
  for _, param in ipairs(entry.fn and (params_of(entry)) or {}) do
    taken[param.name] = true
  end
  for _, field in ipairs(entry.class and entry.class.fields or {}) do
    if not field.name:find '^_' and not taken[field.name] then
      out[#out + 1] = field
    end
  end
  return out
end

local function call_of(entry)
  local forward = entry.kind == 'class'
    and inherited(entry.class, function(c) return method_in(c, 'forward') end)
  return forward and { name = 'module', kind = 'function', fn = forward, text = forward.text }
end

-- Names of the types that an entry mentions, in order.
local function types_of(entry, out)
  local params, returns = params_of(entry)
  for _, list in ipairs { params, returns, fields_of(entry), { { type = entry.type or '' } } } do
    for _, value in ipairs(list) do
      for name in value.type:gmatch 'ms%.([%w_.]+)' do
        out[#out + 1] = name
      end
    end
  end
  for _, parent in ipairs(not entry.value and entry.class and entry.class.parents or {}) do
    out[#out + 1] = parent:match '^ms%.([%w.]+)$'
  end
  local call = call_of(entry)
  return call and types_of(call, out) or out
end

-- -- the index ------------------------------------------------------------------------------------

local all

local function add(page, entry)
  local name, last, value = entry.name, entry.name:match '[^.:]+$', entry.value
  entry.page = page
  table.insert(all.pages[page], entry)
  table.insert(all.list, entry)
  all.names[#all.names + 1] = name
  all.by_last[last] = all.by_last[last] or {}
  table.insert(all.by_last[last], name)
  for _, key in ipairs { name, (name:gsub(':', '.')), type(value) == 'table' and value._name } do
    all.by_name[key] = all.by_name[key] or entry
  end
  local same = (type(value) == 'table' or type(value) == 'function') and all.by_value[value]
  if same == nil or same and same.page == 'ms' then -- ms.cat is ops.cat
    all.by_value[value] = entry
  end
  for _, method in ipairs(entry.methods or {}) do
    add(page, method)
  end
end

local function add_value(page, name, value, class, key)
  local own = type(value) == 'table' and classes['ms.' .. (rawget(value, '_name') or name)]
  if is_space(value) then
    for _, inner in ipairs(is_space(value)._names()) do
      if not inner:find '^_' then
        add_value(page, name .. '.' .. inner, value[inner], classes['ms.' .. name], inner)
      end
    end
  elseif type(value) == 'table' and (own or rawget(value, '_name')) then
    add(page, class_entry(name, value, own or nil))
  else
    add(page, member_entry(name, value, class, key))
  end
end

local function add_type(name)
  local class, alias = classes['ms.' .. name], aliases['ms.' .. name]
  if (class or alias) and not all.by_name[name] and not all.pages[name] then
    local page = name:match '^[^.]+'
    add(all.pages[page] and page or 'ms', class and class_entry(name, nil, class)
      or { name = name, kind = 'class', type = alias, text = '' })
  end
end

local ms, ms_module

--- Set the namespace that is described; called before all other functions here.
---@param root table  what scripts call ms
---@param module string  the Lua module that annotates it
function reference.use(root, module)
  ms, ms_module = root, module
end

-- All entries, by page, name, last part of the name, and value.
local function index()
  if all then
    return all
  end
  all = {
    page_names = { 'ms' }, pages = { ms = {}, Tensor = {} }, list = {}, names = {}, by_name = {},
    by_last = {}, by_value = {},
  }
  local names = getmetatable(ms)._names()
  read_module(ms_module)
  for _, name in ipairs(names) do
    read_module('moonshard.' .. name)
    if type(ms[name]) == 'table' then
      all.pages[name], all.page_names[#all.page_names + 1] = {}, name
      all.names[#all.names + 1] = name
    end
  end
  table.insert(all.page_names, 'Tensor')
  for _, name in ipairs(names) do
    add_value(all.pages[name] and name or 'ms', name, ms[name], classes.ms, name)
  end
  add('Tensor', class_entry('Tensor', require 'moonshard.tensor', classes['ms.Tensor']))
  for _, entry in ipairs(all.list) do -- which grows
    for _, name in ipairs(types_of(entry, {})) do
      add_type(name)
    end
  end
  return all
end

--- The names of the pages: of ms itself, of its namespaces, and of tensors.
---@return string[]
function reference.pages()
  return index().page_names
end

--- The entries of a page: its names in order, then the types that they mention.
---@param page string
---@return ms.Reference.Entry[]
function reference.entries(page)
  return index().pages[page]
end

--- Has an entry anything to show beside its name?
---@param entry ms.Reference.Entry
---@return boolean
function reference.is_described(entry)
  return entry.text ~= '' or entry.type ~= nil or entry.class ~= nil or has_text(entry.fn)
end

-- -- text -----------------------------------------------------------------------------------------

local function type_text(text)
  return (text:gsub('ffi%.cdata%*', 'cdata'):gsub('ms%.', ''))
end

local function call_text(entry, typed)
  local params, returns = params_of(entry)
  local parts, results = {}, {}
  for i, param in ipairs(params) do
    parts[i] = param.name .. (param.optional and '?' or '')
      .. (typed and param.type ~= '' and ': ' .. type_text(param.type) or '')
  end
  for i, result in ipairs(typed and returns or {}) do
    results[i] = type_text(result.type)
  end
  return ('%s(%s)%s'):format(entry.name, table.concat(parts, ', '),
    results[1] and ': ' .. table.concat(results, ', ') or '')
end

--- The call as written, 'optim.clip_grad_norm_(params, max_norm, norm_type?)', or the name.
---@param entry ms.Reference.Entry
---@param typed? boolean  with types of parameters and results
---@return string
function reference.signature(entry, typed)
  if entry.kind == 'function' or entry.fn or entry.class and entry.class.overloads[1] then
    return call_text(entry, typed)
  end
  return entry.name .. (typed and entry.type and ': ' .. type_text(entry.type) or '')
end

-- Lines of those values that have a text, or of all.
local function add_values(out, values, everything)
  for _, value in ipairs(values) do
    if everything or value.text ~= '' then
      local name = value.name == '' and 'returns ' .. type_text(value.type)
        or ('`%s%s`'):format(value.name, value.optional and '?' or '')
      out[#out + 1] = ('- %s%s%s'):format(name,
        everything and ' (' .. type_text(value.type) .. ')' or '',
        value.text ~= '' and ': ' .. value.text or '')
    end
  end
end

-- The first of a class's parents that has an entry.
local function public_parent(class)
  return inherited(class, function(c)
    local parent = c ~= class and all.by_name[c.name:gsub('^ms%.', '')]
    return parent and parent.name
  end)
end

-- The entry that describes a function with two names: of a method of tensors its operator.
local function original_of(entry)
  local original = entry.name:match '^Tensor:' and all.by_name['ops.' .. entry.name:match '[^:]+$']
    or entry.kind == 'function' and all.by_value[entry.value]
  return original ~= entry and original or nil
end

--- An entry as Markdown: its call with types, its text, what its values mean, its errors.
---@param entry ms.Reference.Entry
---@return string
function reference.text(entry)
  local out = { '`' .. reference.signature(entry, true) .. '`' }
  local original = original_of(entry)
  if original then
    return ('%s as `%s`'):format(out[1], reference.signature(original))
  end
  out[#out + 1] = entry.text ~= '' and entry.text or nil
  local params, returns = params_of(entry)
  add_values(out, params)
  add_values(out, returns)
  add_values(out, fields_of(entry), true)
  local parent = public_parent(entry.class)
  out[#out + 1] = parent and ('- inherits `%s`'):format(parent) or nil
  local forward = call_of(entry)
  if forward then
    out[#out + 1] = ('- called as `%s`'):format(call_text(forward, true))
    for _, values in ipairs { params_of(forward) } do
      add_values(out, values)
    end
  end
  local raises = entry.kind == 'function' and entry.fn and entry.fn.raises or {}
  out[#out + 1] = raises[1] and '- raises `' .. table.concat(raises, '\0')
    :gsub('`', "'"):gsub('%z', '`, `') .. '`'
  return table.concat(out, '\n')
end

-- The types in code as links to their entries; `own`: the class that it belongs to.
local function linked(code, own)
  local text = code:gsub('[%a_][%w_.]*', function(word)
    local entry = word ~= own and word ~= 'Tensor' and all.by_name[word]
    if entry and entry.kind == 'class' then
      local anchor = entry.name:lower():gsub('%.', '')
      return ('`[`%s`](%s.md#%s)`'):format(entry.name, entry.page, anchor)
    end
  end)
  return (text:gsub('``', ''))
end

--- A page as Markdown. Methods are items below their class.
---@param page string
---@return string
function reference.page(page)
  local out = {
    '# ' .. (page == 'ms' and page or 'ms.' .. page), '',
    'Generated from the annotations in the sources by `./dev docs`.',
    '`ms.help(name)` prints an entry.',
  }
  for _, entry in ipairs(reference.entries(page)) do
    local text = reference.text(entry):gsub('^(`(.-)`\n?)', function(line, call)
      return call == entry.name and '' or linked(line, entry.name:match '^[^:]+')
    end)
    if entry.name:find(':', 1, true) then
      out[#out + 1] = '- ' .. text:gsub('\n', '\n  ')
    else
      out[#out + 1] = ('\n## %s\n%s'):format(entry.name, text:gsub('\n  ', '\n    ')) -- code
    end
  end
  return table.concat(out, '\n') .. '\n'
end

-- -- ms.help --------------------------------------------------------------------------------------

local function list_of(entries)
  local lines = {}
  for i, entry in ipairs(entries) do
    lines[i] = reference.signature(entry)
  end
  return table.concat(lines, '\n')
end

local function source_of(entry)
  local file = entry.class and entry.class.file or entry.fn and entry.fn.file
  local path = file and file.path:match '^.*/(moonshard[%w_]*/.*)$'
  if path == 'moonshard/options.lua' then -- generated
    return 'runtime/include/moonshard/fsdp.h'
  end
  return path and (path:find '^moonshard/' and 'lua/' or 'bindings/') .. path
end

-- An entry with its methods, the options that it takes, and its source.
local function entry_text(entry)
  local parts = { reference.text(entry) }
  entry = original_of(entry) or entry
  parts[2] = reference.text(entry) ~= parts[1] and reference.text(entry) or nil
  for _, name in ipairs(types_of(entry, {})) do
    local options = name:find 'Options$' and all.by_name[name]
    while options do
      parts[#parts + 1] = reference.text(options)
      options = all.by_name[public_parent(options.class)]
    end
  end
  if entry.methods and entry.methods[1] then
    parts[#parts + 1] = list_of(entry.methods)
  end
  local source = source_of(entry)
  parts[#parts + 1] = source and ('Source: `%s`'):format(source)
  return table.concat(parts, '\n\n')
end

local function overview()
  local lines = {
    "ms.help(what) prints the reference of a name ('nn.Linear', 'Tensor:cumsum') or of a value (a",
    "tensor, module, optimizer, class, function), and the names of a namespace ('nn').", '',
  }
  for _, page in ipairs(index().page_names) do
    local file = by_module['moonshard.' .. page:lower()] or by_module['moonshard.base.' .. page]
    local text = file.text:gsub('\n', ' ') .. ' '
    lines[#lines + 1] = ('%-11s%s'):format(page, text:match '^(.-%.) ')
  end
  return table.concat(lines, '\n')
end

local function append(out, list)
  for _, value in ipairs(list) do
    out[#out + 1] = value
  end
end

-- The names nearest to one that does not exist: those whose last part begins with its last part, or
-- else is nearest to it, as a whole or in its last part.
local function nearest(name)
  local last = name:match '[^.]*$'
  local lasts, names = util.sorted_keys(all.by_last), {}
  for _, known in ipairs(lasts) do
    if #last > 2 and known:lower():find(last:lower(), 1, true) == 1 then
      append(names, all.by_last[known])
    end
  end
  if not names[1] then
    names[1] = errors.nearest(name, all.names)
    append(names, all.by_last[errors.nearest(last, lasts)] or {})
  end
  local list, seen = {}, {}
  for _, found in ipairs(names) do
    if not seen[found] and #list < 4 then
      seen[found], list[#list + 1] = true, ("'%s'"):format(found)
    end
  end
  return list
end

local function entry_of_value(value)
  local found = all.by_value[value]
  local class = type(value) == 'table' and getmetatable(value)
  while type(class) == 'table' and not found do
    found = all.by_value[class] or all.by_name[rawget(class, '_name')]
    class = rawget(class, '_parent')
  end
  return found
end

--- The entry of a name or value, as text; of a namespace the signatures of all its names; of
--- nothing an overview.
---@param what any
---@return string
function reference.help(what)
  local entries = index()
  if what == nil or what == ms then
    return overview()
  elseif type(what) ~= 'string' then
    local entry = ms.is_tensor(what) and entries.by_name.Tensor or entry_of_value(what)
    local name = is_space(what) and is_space(what)._namespace:gsub('^ms%.', '')
    if not entry and not name then
      arguments.refuse('ms.help', 'what', what, "a name such as 'nn.Linear', a public function, a "
        .. 'class, an object of one or a tensor')
    end
    return entry and entry_text(entry) or reference.help(name)
  end
  local name = what:gsub('^ms%.', ''):gsub(':', '.')
  if entries.by_name[name] then
    return entry_text(entries.by_name[name])
  end
  local inside = entries.pages[name] or {}
  for _, known in ipairs(inside[1] and {} or entries.list) do
    if known.name:sub(1, #name + 1) == name .. '.' then
      inside[#inside + 1] = known
    end
  end
  if inside[1] then
    return list_of(inside)
  end
  local same = entries.by_last[name]
  if same and not same[2] then
    return entry_text(entries.by_name[same[1]])
  end
  local near = nearest(name)
  errors.raise('KeyError', "ms.help: nothing is called '%s'%s", what:sub(1, 80),
    near[1] and (', did you mean %s?'):format(table.concat(near, ', ')) or '')
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

return reference
