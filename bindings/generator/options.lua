--- Reads the options that a header declares (the grammar is in moonshard/fsdp.h), and writes the
--- tables that C and Lua read them from.

local options = {}

---@class ms.gen.Option
---@field field string     of the C struct
---@field kind 'handle'|'flag'|'choice'|'floating'|'count'
---@field text string      what it does
---@field default string   a C expression, or a name of a choice
---@field group? string    option of scripts that it is a field of
---@field name? string     as scripts write it; nil: scripts do not have it
---@field lua_default? string
---@field names string[]   of a choice, in order
---@field numbers table<string, string>  enumerators by name
---@field compared boolean

---@class ms.gen.Options
---@field struct string
---@field [integer] ms.gen.Option

local function refuse(struct, field, why, ...)
  error(('%s.%s: %s'):format(struct, field, why:format(...)), 0)
end

-- The text of a comment, and its tags by name. A tag ends where the next one begins.
local function split(comment)
  local plain = comment:gsub('%s*\n%s*%*%s*', ' '):gsub('^%s+', ''):gsub('%s+$', '')
  local text, tags = plain:match '^(.-)%s*@' or plain, {}
  for tag, value in plain:gmatch '@(%w+)%s*([^@]*)' do
    tags[tag] = value:gsub('%s+$', '')
  end
  return text, tags
end

local KNOWN = { values = true, default = true, lua = true, compared = true }
local KINDS = { bool = 'flag', int32_t = 'count' }

local function add_names(option, values)
  for name, number in values:gmatch '([%w_]+) = ([%w_]+)' do
    table.insert(option.names, name)
    option.numbers[name] = number
  end
end

local function option_of(struct, comment, type_name, field)
  local text, tags = split(comment)
  for tag in pairs(tags) do
    if not KNOWN[tag] then
      refuse(struct, field, 'unknown tag @%s, expected @values, @default, @lua, @compared', tag)
    end
  end
  local option = {
    field = field, kind = KINDS[type_name] or 'handle', text = text, default = tags.default or '0',
    names = {}, numbers = {}, compared = tags.compared ~= nil,
  }
  if tags.values == 'floating' then
    option.kind = 'floating'
  elseif tags.values then
    option.kind = 'choice'
    add_names(option, tags.values)
    if not option.numbers[option.default] then
      refuse(struct, field, "@default is '%s', expected a name of @values", option.default)
    end
  elseif option.kind == 'flag' then
    option.default = tags.default or 'false'
  end
  local path, own = (tags.lua or ''):match '^([%w_.]+)%s*=?%s*(.-)$'
  option.group, option.name = (path or ''):match '^(.-)%.?([%w_]+)$'
  option.group = option.group ~= '' and option.group or nil
  if own and own ~= '' then
    option.lua_default = own
  elseif option.kind == 'choice' then
    option.lua_default = ("'%s'"):format(option.default)
  elseif option.kind == 'flag' then
    option.lua_default = option.default
  end
  return option
end

--- The structs of options in a header: those whose name ends with _options.
---@param header string  with comments
---@return ms.gen.Options[]
function options.parse(header)
  local out = {}
  for struct, body in header:gmatch 'typedef struct (ms_[%w_]+_options) (%b{})' do
    local list = { struct = struct }
    body = body:match 'uint32_t struct_size;(.*)}'
    for comment, type_name, field in body:gmatch '/%*%*(.-)%*/%s*([%w_]+) %*?([%w_]+);' do
      list[#list + 1] = option_of(struct, comment, type_name, field)
    end
    local _, n_fields = body:gsub('/%*.-%*/', ''):gsub(';', '')
    if n_fields ~= #list then
      refuse(struct, 'struct_size', '%d of %d fields after it have a comment before them', #list,
        n_fields)
    end
    out[#out + 1] = list
  end
  return out
end

-- -- C --------------------------------------------------------------------------------------------

local TABLE = [[

static const STRUCT STRUCT_defaults = {
    .struct_size = sizeof(STRUCT),
DEFAULTS};
static const msi_field STRUCT_fields[] = {
    MSI_FIELD(STRUCT, struct_size),
FIELDS};
static const msi_option STRUCT_rows[] = {
ROWS};
_Static_assert(MSI_COUNT(STRUCT_rows) <= MSI_MAX_OPTIONS, "more options than MSI_MAX_OPTIONS");

extern const msi_option_table INTERNAL;
const msi_option_table INTERNAL = {
    .name = "STRUCT",
    .defaults = &STRUCT_defaults,
    .options = STRUCT_rows,
    .fields = STRUCT_fields,
    .n_options = MSI_COUNT(STRUCT_rows),
};

void STRUCT_init(STRUCT *o, uint32_t struct_size)
{
    msi_struct_give(o, struct_size, &STRUCT_defaults, sizeof(STRUCT_defaults));
}
]]

local function c_names(list, option)
  local rows, seen = {}, {}
  for _, name in ipairs(option.names) do
    local number = option.numbers[name]
    if not seen[number] then
      seen[number], rows[#rows + 1] = true, ('    [%s] = "%s",\n'):format(number, name)
    end
  end
  local variable = ('%s_%s'):format(list.struct, option.field)
  return variable, #rows, ('\nstatic const char *const %s[] = {\n%s};\n'):format(variable,
    table.concat(rows))
end

--- The definitions of the table msi_<struct> and of ms_<struct>_init(), for each struct.
---@param lists ms.gen.Options[]
---@return string
function options.source(lists)
  local out = { '/* Generated from the options of the public headers. */\n',
    '#include "option_table.h"\n\n#include "moonshard.h"\n' }
  for _, list in ipairs(lists) do
    local defaults, fields, rows = {}, {}, {}
    for i, option in ipairs(list) do
      local names, n_names = 'NULL', 0
      if option.kind == 'choice' then
        local definition
        names, n_names, definition = c_names(list, option)
        out[#out + 1] = definition
      end
      defaults[i] = ('    .%s = %s,\n'):format(option.field,
        option.numbers[option.default] or option.default)
      fields[i] = ('    MSI_FIELD(%s, %s),\n'):format(list.struct, option.field)
      rows[i] = ('    {"%s", MSI_OPTION_%s, %s, %s, %d},\n'):format(option.name or option.field,
        option.kind:upper(), tostring(option.compared), names, n_names)
    end
    out[#out + 1] = TABLE:gsub('%u%u%u+%f[%W_]', {
      STRUCT = list.struct, INTERNAL = list.struct:gsub('^ms_', 'msi_'),
      DEFAULTS = table.concat(defaults), FIELDS = table.concat(fields), ROWS = table.concat(rows),
    })
  end
  return table.concat(out)
end

-- -- Lua ------------------------------------------------------------------------------------------

local TYPES = { flag = 'boolean', floating = 'ms.DType', count = 'integer' }

-- 'mixed_precision' -> 'MixedPrecision'
local function class_of(group)
  return 'ms.fsdp.' .. (group and ('_' .. group):gsub('_(%l)', string.upper) or 'Options')
end

local function annotation(option)
  local type_text = TYPES[option.kind]
  if option.kind == 'choice' then
    type_text = "'" .. table.concat(option.names, "'|'") .. "'"
  end
  local text = option.text:gsub('%.$', '')
  return ('---@field %s? %s  %s%s\n'):format(option.name, type_text, text,
    option.lua_default and '; default ' .. option.lua_default or '')
end

local function quoted(text)
  return ("'%s'"):format(text)
end

local function lua_row(option)
  local values = {}
  for i, name in ipairs(option.names) do
    values[i] = ('{ %s, %s }'):format(quoted(name), quoted(option.numbers[name]))
  end
  local parts = { 'field = ' .. quoted(option.field), 'kind = ' .. quoted(option.kind) }
  for _, key in ipairs { 'name', 'group' } do
    parts[#parts + 1] = option[key] and ('%s = %s'):format(key, quoted(option[key])) or nil
  end
  parts[#parts + 1] = option.lua_default and 'default = ' .. option.lua_default or nil
  parts[#parts + 1] = values[1] and ('values = { %s }'):format(table.concat(values, ', ')) or nil
  return ('    { %s },\n'):format(table.concat(parts, ', '))
end

--- A module that returns the options of each struct, with their annotations.
---@param lists ms.gen.Options[]
---@return string
function options.module(lists)
  local out, rows, groups, texts = {}, {}, {}, {}
  for _, list in ipairs(lists) do
    rows[#rows + 1] = ('  %s = {\n'):format(list.struct)
    for _, option in ipairs(list) do
      rows[#rows + 1] = lua_row(option)
      local class = option.name and class_of(option.group)
      if class and not texts[class] then
        texts[class], groups[#groups + 1] = {}, class
      end
      if class then
        table.insert(texts[class], annotation(option))
      end
    end
    rows[#rows + 1] = '  },\n'
  end
  out[1] = '--- Generated from the options of the public headers.\n'
  for _, class in ipairs(groups) do
    out[#out + 1] = ('\n---@class %s\n%s'):format(class, table.concat(texts[class]))
  end
  out[#out + 1] = ('\nreturn {\n%s}\n'):format(table.concat(rows))
  return table.concat(out)
end

return options
