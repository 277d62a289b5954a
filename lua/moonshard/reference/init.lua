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
---@field is_method? boolean
---@field original? ms.Reference.Entry  that describes the same function

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
    method.is_method = true
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

-- The entry that describes a function with two names: of a method of tensors its operator, of a
-- method of two classes that of the first.
local function original_of(entry, by_fn)
  local last = entry.name:match '[^.:]+$'
  local original = entry.name:match '^Tensor:' and all.by_name['ops.' .. last]
    or entry.kind == 'function' and all.by_value[entry.value]
  if (not original or original == entry) and entry.name:find ':' and entry.fn then
    original = by_fn[entry.fn] and by_fn[entry.fn].name:match '[^:]+$' == last and by_fn[entry.fn]
    by_fn[entry.fn] = original or entry
  end
  return original ~= entry and original or nil
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
  local by_fn = {}
  for _, entry in ipairs(all.list) do
    entry.original = original_of(entry, by_fn)
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

--- Does an entry have anything to show beside its name?
---@param entry ms.Reference.Entry
---@return boolean
function reference.is_described(entry)
  return entry.text ~= '' or entry.type ~= nil or entry.class ~= nil or has_text(entry.fn)
end

-- -- text -----------------------------------------------------------------------------------------

local function type_text(text)
  return (text:gsub('ffi%.cdata%*', 'cdata'):gsub('ms%.', ''))
end

-- '(x, dim?)', or with types '(x: Tensor, dim?: integer): Tensor'; of a value ': type'.
local function call_text(entry, typed)
  if entry.kind ~= 'function' and not entry.fn
    and not (entry.class and entry.class.overloads[1]) then
    return typed and entry.type and ': ' .. type_text(entry.type) or ''
  end
  local params, returns = params_of(entry)
  local parts, results = {}, {}
  for i, param in ipairs(params) do
    parts[i] = param.name .. (param.optional and '?' or '')
      .. (typed and param.type ~= '' and ': ' .. type_text(param.type) or '')
  end
  for i, result in ipairs(typed and returns or {}) do
    results[i] = type_text(result.type)
  end
  return ('(%s)%s'):format(table.concat(parts, ', '),
    results[1] and ': ' .. table.concat(results, ', ') or '')
end

--- The call as written, 'optim.clip_grad_norm_(params, max_norm, norm_type?)', or the name.
---@param entry ms.Reference.Entry
---@return string
function reference.signature(entry)
  return entry.name .. call_text(entry)
end

-- Lines of those values that have a text, or of all with their types: fields without one share a
-- line with the field before.
local function add_values(out, values, everything)
  local bare = false
  for _, value in ipairs(values) do
    if everything or value.text ~= '' then
      local name = value.name == '' and 'returns ' .. type_text(value.type)
        or ('`%s%s`'):format(value.name, value.optional and '?' or '')
      local line = name .. (everything and ' (' .. type_text(value.type) .. ')' or '')
      if value.text == '' and bare and #out[#out] + #line < 96 then
        out[#out] = out[#out] .. ', ' .. line
      else
        out[#out + 1] = ('- %s%s'):format(line, value.text ~= '' and ': ' .. value.text or '')
      end
      bare = value.text == ''
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

-- Lines about the values of an entry, its parent and its call.
---@return string[]
local function details(entry)
  local out, params, returns = {}, params_of(entry)
  add_values(out, params)
  add_values(out, returns)
  add_values(out, fields_of(entry), true)
  local parent, call = public_parent(entry.class), call_of(entry)
  out[#out + 1] = parent and ('- inherits `%s`'):format(parent) or nil
  if call then
    out[#out + 1] = '- called as `module' .. call_text(call, true) .. '`'
    local of_call, results = params_of(call)
    add_values(out, of_call)
    add_values(out, results)
  end
  return out
end

-- An entry as Markdown: its call with types, its text, what its values mean.
local function text_of(entry)
  local head = ('`%s%s`'):format(entry.name, call_text(entry, true))
  if entry.original then
    return ('%s as `%s`'):format(head, reference.signature(entry.original))
  end
  local lines = details(entry)
  if entry.text ~= '' then
    table.insert(lines, 1, entry.text)
  end
  return table.concat({ head, unpack(lines) }, '\n')
end

-- -- pages ----------------------------------------------------------------------------------------

-- A class has a section of its page; an alias of a type is an item, as functions are.
local function is_section(entry)
  return entry.kind == 'class' and (entry.class ~= nil or entry.value ~= nil)
end

-- The types in code as links to their entries; `own`: the class that it belongs to.
local function linked(code, own)
  local text = code:gsub('[%a_][%w_.]*', function(word)
    local entry = word ~= own and word ~= 'Tensor' and all.by_name[word]
    if entry and entry.kind == 'class' then
      local anchor = is_section(entry) and '#' .. entry.name:lower():gsub('%.', '') or ''
      return ('`[`%s`](%s.md%s)`'):format(entry.name, entry.page, anchor)
    end
  end)
  return (text:gsub('``', ''))
end

-- '`a`, `b`, ...' in lines of at most 100 bytes; an alias of another last name with its original.
local function names_in_lines(first, entries)
  local lines = { first }
  for i, entry in ipairs(entries) do
    local name = (' `%s`'):format(entry.name)
    local original = entry.original and entry.original.name
    if original and original:match '[^.:]+$' ~= entry.name:match '[^.:]+$' then
      name = ('%s (`%s`)'):format(name, original)
    end
    name = name .. (entries[i + 1] and ',' or '')
    if #lines[#lines] + #name > 98 then
      lines[#lines + 1] = ' '
    end
    lines[#lines] = lines[#lines] .. name
  end
  return table.concat(lines, '\n')
end

-- Entries in groups that have the same call and details. Texts may differ if they have one line
-- each and there are details, or if the entries are classes.
local function groups_of(entries)
  local groups, by_key = {}, {}
  for _, entry in ipairs(entries) do
    local more = table.concat(details(entry), '\n')
    local many = entry.text:find '\n' or entry.kind ~= 'class' and more == ''
    local alone = entry.methods and entry.methods[1] or entry.kind == 'class' and not entry.value
    local key = table.concat({ entry.kind, many and entry.text or '', alone and entry.name or '',
      call_text(entry, true), more }, '\0')
    if not by_key[key] then
      by_key[key] = {}
      groups[#groups + 1] = by_key[key]
    end
    table.insert(by_key[key], entry)
  end
  return groups
end

local function names_of(group)
  local names = {}
  for i, entry in ipairs(group) do
    names[i] = entry.name
  end
  return table.concat(names, ', ')
end

-- The texts of a group, one for each name where they differ. A long text that the page has already
-- is a reference to the entry that has it; `seen`: the first name by text.
local function add_texts(out, group, seen)
  local text, differ = group[1].text, false
  for _, entry in ipairs(group) do
    differ = differ or entry.text ~= text
  end
  for _, entry in ipairs(differ and group or {}) do
    out[#out + 1] = ('- `%s`: %s'):format(entry.name, entry.text)
  end
  if not differ and seen[text] and text:find '\n' then
    out[#out + 1] = ('See `%s`.'):format(seen[text])
  elseif not differ and text ~= '' and (group[1].value or not seen[text]) then
    out[#out + 1], seen[text] = text, group[1].name
  end
end

-- A group as Markdown: the item of functions, values or aliases, or the body of a section. Lines
-- that the page has for all entries are left out.
local function group_text(group, is_item, seen)
  local first, out = group[1], {}
  local call = call_text(first, true)
  if is_item and group[2] then
    out[1] = names_in_lines('', group):sub(2) .. linked((': `%s`'):format(call))
  elseif is_item or call ~= '' then
    out[1] = linked(('`%s%s`'):format(first.name, call), first.name:match '^[^:]+')
  end
  add_texts(out, group, seen)
  if is_item and #out == 2 and #first.name + #call + #out[2] < 96 and not out[2]:find '\n' then
    out = { out[1] .. ': ' .. out[2] } -- in the form of a field
  end
  for _, line in ipairs(details(first)) do
    local in_parent = first.value and line:find '^%- inherits ' -- which lists its children
    if not in_parent and not seen[line] and line ~= '- called as `module(x: Tensor): Tensor`' then
      out[#out + 1] = line
    end
  end
  local text = table.concat(out, '\n')
  return is_item and '- ' .. text:gsub('\n', '\n  '):gsub('\n  \n', '\n\n') or text
end

-- Items of functions, methods or values; those that others describe are listed by these.
local function add_items(out, entries, seen)
  local own, owners, described_by = {}, {}, {}
  for _, entry in ipairs(entries) do
    local owner = entry.original and entry.original.name:match '^(.*)[.:]'
    if not owner then
      own[#own + 1] = entry
    elseif not described_by[owner] then
      owners[#owners + 1], described_by[owner] = owner, { entry }
    else
      table.insert(described_by[owner], entry)
    end
  end
  for _, group in ipairs(groups_of(own)) do
    out[#out + 1] = group_text(group, true, seen)
  end
  for _, owner in ipairs(owners) do
    out[#out + 1] = names_in_lines(('- As in `%s`:'):format(owner), described_by[owner])
  end
end

local function children_of(class)
  local out = {}
  for _, entry in ipairs(all.list) do
    local is_child = entry.kind == 'class' and entry.value
      and public_parent(entry.class) == class.name
    out[#out + 1] = is_child and entry or nil
  end
  return out
end

-- Lines about optional arguments that a page has at least four times; `seen` gets them.
local function common_lines(entries, seen)
  local counts, out = {}, {}
  for _, entry in ipairs(entries) do
    for _, line in ipairs(entry.original and {} or details(entry)) do
      counts[line] = line:find '^%- `[%w_]+%?`: ' and (counts[line] or 0) + 1 or 0
      if counts[line] == 4 then
        out[#out + 1], seen[line] = line, true
      end
    end
  end
  return out
end

--- A page as Markdown: functions and values, then classes with their methods.
---@param page string
---@return string
function reference.page(page)
  local entries, seen, items, sections = index().pages[page], {}, {}, {}
  local out = {
    '# ' .. (page == 'ms' and page or 'ms.' .. page), '',
    'Made from the annotations by `./dev docs`; `ms.help(name)` prints an entry.',
    unpack(common_lines(entries, seen)),
  }
  for _, entry in ipairs(entries) do
    local list = is_section(entry) and sections or not entry.is_method and items or {}
    list[#list + 1] = entry
  end
  out[3] = out[4] and out[3] .. ' Unless an entry gives another default:' or out[3]
  out[#out + 1] = items[1] and '' or nil
  add_items(out, items, seen)
  for _, group in ipairs(groups_of(sections)) do
    local text = group_text(group, false, seen)
    out[#out + 1] = '\n## ' .. names_of(group)
    out[#out + 1] = text ~= '' and text or nil
    local children = children_of(group[1])
    if children[1] then
      out[#out + 1] = names_in_lines('- inherited by', children)
    end
    add_items(out, group[1].methods or {}, seen)
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
  local parts = { text_of(entry) }
  if entry.original then
    entry = entry.original
    parts[2] = text_of(entry)
  end
  for _, name in ipairs(types_of(entry, {})) do
    local options = name:find 'Options$' and all.by_name[name]
    while options do
      parts[#parts + 1] = text_of(options)
      options = all.by_name[public_parent(options.class)]
    end
  end
  parts[#parts + 1] = entry.methods and entry.methods[1] and list_of(entry.methods) or nil
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

-- The names nearest to one that does not exist: those whose last part begins with its last part, or
-- else is nearest to it, as a whole or in its last part.
local function nearest(name)
  local last, lasts, list, seen = name:match '[^.]*$', util.sorted_keys(all.by_last), {}, {}
  local function add_names(names)
    for _, found in ipairs(names or {}) do
      if not seen[found] and #list < 4 then
        seen[found], list[#list + 1] = true, ("'%s'"):format(found)
      end
    end
  end
  for _, known in ipairs(lasts) do
    if #last > 2 and known:lower():find(last:lower(), 1, true) == 1 then
      add_names(all.by_last[known])
    end
  end
  if not list[1] then
    add_names { errors.nearest(name, all.names) }
    add_names(all.by_last[errors.nearest(last, lasts)])
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
