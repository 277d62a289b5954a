--- Parses the options that a header declares (see moonshard/fsdp.h) and writes tables for C and
--- Lua.

local options = {}

---@class ms.gen.Option
---@field field string     of the C struct
---@field kind 'handle'|'flag'|'choice'|'floating'|'count'
---@field text string  description
---@field values string[][]  of a choice or flag: name, C expression
---@field default string   a C expression
---@field lua_default? string  a Lua expression
---@field group? string  the script's option of which it is a field
---@field name? string  the script's name; nil: not available to scripts
---@field compared boolean

local KINDS = { bool = 'flag', int32_t = 'count' }
local KNOWN = { values = true, default = true, lua = true, compared = true }

local function quoted(text)
  return ("'%s'"):format(text)
end

-- The text of a comment, and its tags by name.
local function split(comment, where)
  local plain = comment:gsub('%s*\n%s*%*%s*', ' '):match '^%s*(.-)%s*$'
  local tags = {}
  for tag, value in plain:gmatch '@(%w+)%s*([^@]*)' do
    if not KNOWN[tag] then
      error(('%s: unknown tag @%s'):format(where, tag), 0)
    end
    tags[tag] = value:gsub('%s+$', '')
  end
  return plain:match '^(.-)%s*@' or plain, tags
end

local function option_of(struct, comment, type_name, field)
  local where = struct .. '.' .. field
  local text, tags = split(comment, where)
  local option = {
    field = field, kind = KINDS[type_name] or 'handle', text = text, values = {},
    default = tags.default or '0', compared = tags.compared ~= nil,
  }
  if tags.values == 'floating' then
    option.kind = 'floating'
  elseif tags.values then
    option.kind, option.default = 'choice', nil
    for name, number in tags.values:gmatch '([%w_]+) = ([%w_]+)' do
      table.insert(option.values, { name, number })
      option.default = name == tags.default and number or option.default
    end
    if not option.default then
      error(("%s: @default is '%s', expected a name of @values"):format(where, tags.default), 0)
    end
    option.lua_default = quoted(tags.default)
  elseif option.kind == 'flag' then
    option.values = { { 'false', '0' }, { 'true', '1' } }
    option.default = tags.default or 'false'
    option.lua_default = option.default
  end
  local path, own = (tags.lua or ''):match '^([%w_.]*)%s*=?%s*(.-)$'
  option.group, option.name = path:match '^([%w_]+)%.([%w_]+)$'
  option.name = option.name or path ~= '' and path or nil
  option.lua_default = own ~= '' and own or option.lua_default
  return option
end

--- The option structs of a header (named *_options): their options in order, and `struct`.
---@param header string  with comments
---@return { struct: string, [integer]: ms.gen.Option }[]
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
      error(('%s: %d of %d fields have a comment before them'):format(struct, #list, n_fields), 0)
    end
    out[#out + 1] = list
  end
  return out
end

local TABLE = [[

static const STRUCT STRUCT_defaults = {
    .struct_size = sizeof(STRUCT),
DEFAULTS};
static const msi_option STRUCT_rows[] = {
ROWS};
_Static_assert(MSI_COUNT(STRUCT_rows) <= MSI_MAX_OPTIONS, "more options than MSI_MAX_OPTIONS");

extern const msi_option_table INTERNAL;
const msi_option_table INTERNAL = {
    "STRUCT", &STRUCT_defaults, sizeof(STRUCT), STRUCT_rows, MSI_COUNT(STRUCT_rows),
};

void STRUCT_init(STRUCT *o, uint32_t struct_size)
{
    msi_struct_give(o, struct_size, &STRUCT_defaults, sizeof(STRUCT_defaults));
}
]]

-- The first name of each number of a choice, as a C array.
local function c_names(option)
  local rows, seen = {}, {}
  for _, value in ipairs(option.values) do
    local name, number = unpack(value)
    if not seen[number] then
      seen[number], rows[#rows + 1] = true, ('[%s] = "%s"'):format(number, name)
    end
  end
  return rows[1] and ('(const char *const[]){%s}, %d'):format(table.concat(rows, ', '), #rows)
    or 'NULL, 0'
end

--- C source: the table msi_<struct> and the function ms_<struct>_init() of each struct.
---@return string
function options.source(lists)
  local out = { '/* Generated from the options of the public headers. */\n'
    .. '#include "option_table.h"\n\n#include "moonshard.h"\n' }
  for _, list in ipairs(lists) do
    local defaults, rows = {}, {}
    for i, option in ipairs(list) do
      defaults[i] = ('    .%s = %s,\n'):format(option.field, option.default)
      rows[i] = ('    {"%s", MSI_FIELD(%s, %s), %s, %s, %s},\n'):format(
        option.name or option.field, list.struct, option.field,
        tostring(option.kind == 'floating'), tostring(option.compared), c_names(option))
    end
    out[#out + 1] = TABLE:gsub('%u%u%u+%f[%W_]', {
      STRUCT = list.struct, INTERNAL = list.struct:gsub('^ms_', 'msi_'),
      DEFAULTS = table.concat(defaults), ROWS = table.concat(rows),
    })
  end
  return table.concat(out)
end

local TYPES = { flag = 'boolean', floating = 'ms.DType', count = 'integer' }

local function annotation(option)
  local names = {}
  for i, value in ipairs(option.values) do
    names[i] = quoted(value[1])
  end
  return ('---@field %s? %s  %s%s\n'):format(option.name,
    TYPES[option.kind] or table.concat(names, '|'), option.text:gsub('%.$', ''),
    option.lua_default and '; default ' .. option.lua_default or '')
end

local function lua_row(option)
  local parts, values = { 'kind = ' .. quoted(option.kind) }, {}
  for _, key in ipairs { 'field', 'name', 'group' } do
    parts[#parts + 1] = option[key] and ('%s = %s'):format(key, quoted(option[key])) or nil
  end
  parts[#parts + 1] = option.lua_default and 'default = ' .. option.lua_default or nil
  for i, value in ipairs(option.kind == 'choice' and option.values or {}) do
    values[i] = ('{ %s, %s }'):format(quoted(value[1]), quoted(value[2]))
  end
  parts[#parts + 1] = values[1] and ('values = { %s }'):format(table.concat(values, ', ')) or nil
  return ('    { %s },\n'):format(table.concat(parts, ', '))
end

--- Source of a Lua module that returns the options of each struct, with annotations. Options of the
--- group `mixed_precision` are fields of ms.fsdp.MixedPrecision.
---@return string
function options.module(lists)
  local rows, classes, texts = {}, {}, {}
  for _, list in ipairs(lists) do
    rows[#rows + 1] = ('  %s = {\n'):format(list.struct)
    for _, option in ipairs(list) do
      local class = option.name and ('_' .. (option.group or 'options')):gsub('_(%l)', string.upper)
      if class and not texts[class] then
        texts[class], classes[#classes + 1] = {}, class
      end
      table.insert(class and texts[class] or {}, annotation(option))
      rows[#rows + 1] = lua_row(option)
    end
    rows[#rows + 1] = '  },\n'
  end
  local out = { '--- Generated from the options of the public headers.\n' }
  for _, class in ipairs(classes) do
    out[#out + 1] = ('\n---@class ms.fsdp.%s\n%s'):format(class, table.concat(texts[class]))
  end
  return table.concat(out) .. '\nreturn {\n' .. table.concat(rows) .. '}\n'
end

return options
