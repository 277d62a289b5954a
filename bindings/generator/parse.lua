--- Parses the dialect of the public headers into declarations and rejects everything else.
---
--- The dialect (see moonshard/base.h): fixed-width integers, float, double, bool, size_t, char,
--- void behind pointers, opaque and plain structs, anonymous enums, functions. An error for
--- anything that LuaJIT or another language's binding would handle wrongly: structs by value,
--- varargs, bitfields, `long`, function pointers, inline code.

---@class ms.gen.Param
---@field type string  e.g. 'const ms_tensor *'
---@field name string
---@field nullable boolean  declared with MS_NULLABLE

---@class ms.gen.Function
---@field name string
---@field returns string
---@field params ms.gen.Param[]

---@class ms.gen.Field
---@field name string
---@field type string    e.g. 'int64_t'
---@field array? string  '[8]'

---@class ms.gen.Api
---@field text string  the declarations, one per paragraph, with MS_NULLABLE as a comment; can be
---  parsed again
---@field functions ms.gen.Function[]
---@field structs { name: string, fields: ms.gen.Field[] }[]
---@field opaque table<string, boolean>  structs declared without fields

local SCALARS = { float = true, double = true, bool = true, size_t = true }
for _, width in ipairs { 8, 16, 32, 64 } do
  SCALARS[('int%d_t'):format(width)] = true
  SCALARS[('uint%d_t'):format(width)] = true
end

local FORBIDDEN = {
  { '%.%.%.', 'varargs' },
  { '%f[%w_]long%f[^%w_]', 'long' },
  { '%f[%w_]unsigned%f[^%w_]', 'unsigned without a width' },
  { '%f[%w_]int%f[^%w_]', 'int without a width' },
  { '%f[%w_]short%f[^%w_]', 'short' },
  { '%f[%w_]static%f[^%w_]', 'static' },
  { '%f[%w_]inline%f[^%w_]', 'inline' },
  { '%f[%w_]extern%f[^%w_]', 'extern' },
  { '%f[%w_]union%f[^%w_]', 'union' },
  { '%f[%w_]_Static_assert%f[^%w_]', '_Static_assert' },
  { '__attribute__', 'attributes' },
  { '%(%s*%*', 'a function pointer' },
  { '#', 'a preprocessor line' },
}

local function refuse(why, line)
  error(('%s is outside the header dialect: %s'):format(why, (line:gsub('%s+', ' '))), 0)
end

local function trim(s)
  return (s:gsub('^%s+', ''):gsub('%s+$', ''))
end

--- Split the text at semicolons outside braces.
local function declarations(text)
  local out, depth, start = {}, 0, 1
  for at, c in text:gmatch('()([{};])') do
    if c == '{' then
      depth = depth + 1
    elseif c == '}' then
      depth = depth - 1
    elseif depth == 0 then
      out[#out + 1] = trim(text:sub(start, at - 1))
      start = at + 1
    end
  end
  local rest = trim(text:sub(start))
  if rest ~= '' then
    refuse('text without a closing semicolon', rest)
  end
  return out
end

--- Split `const ms_tensor *t` or `int64_t shape[8]` into type, name and array; checks the type.
local function declarator(text, known, line)
  local type, name, array = trim(text):match('^(.-)([%a_][%w_]*)%s*(%b[])$')
  if not type then
    type, name = trim(text):match('^(.-)([%a_][%w_]*)$')
  end
  if not type or trim(type) == '' then
    refuse('an unnamed parameter or field', line)
  end
  type = trim(type)
  local base = trim(type:gsub('%f[%w_]const%f[^%w_]', ''):gsub('%*', ''):gsub('^%s*struct%s+', ''))
  local pointer = type:find('*', 1, true) ~= nil
  if base == 'char' or base == 'void' then
    if not pointer then
      refuse(base .. ' without a pointer', line)
    end
  elseif known.structs[base] then
    if not pointer then
      refuse('struct ' .. base .. ' by value', line)
    end
  elseif not SCALARS[base] and not known.typedefs[base] then
    refuse('type ' .. base, line)
  end
  return type, name, array
end

local function parse_function(line, known)
  local head, params = line:match('^(.-)%s*(%b())$')
  if not head then
    return refuse('this declaration', line)
  end
  local returns, name = head:match('^(.-)([%a_][%w_]*)$')
  returns = trim(returns)
  if returns ~= 'void' then
    declarator(returns .. ' result', known, line)
  end
  local fn = { name = name, returns = returns, params = {} }
  params = trim(params:sub(2, -2))
  if params ~= 'void' then
    for param in (params .. ','):gmatch('%s*(.-)%s*,') do
      local bare, marks = param:gsub('^MS_NULLABLE%s+', '')
      local type, param_name, array = declarator(bare, known, line)
      if array then
        refuse('an array parameter', line)
      end
      fn.params[#fn.params + 1] = { type = type, name = param_name, nullable = marks > 0 }
    end
  end
  return fn
end

local function parse_struct(name, body, known, line)
  local fields = {}
  for field in body:gmatch('%s*(.-)%s*;') do
    if field:find(':', 1, true) then
      refuse('a bitfield', field)
    end
    local type, field_name, array = declarator(field, known, field .. ' (in ' .. name .. ')')
    fields[#fields + 1] = { name = field_name, type = type, array = array }
  end
  if #fields == 0 then
    refuse('an empty struct', line)
  end
  return { name = name, fields = fields }
end

---@param text string  preprocessed header
---@return ms.gen.Api
return function(text)
  local known = { structs = {}, typedefs = {} }
  local api = { functions = {}, structs = {}, opaque = {}, known = known }
  local out = {}
  for _, line in ipairs(declarations((text:gsub('/%*(MS_NULLABLE)%*/', '%1')))) do
    for _, rule in ipairs(FORBIDDEN) do
      if line:find(rule[1]) then
        refuse(rule[2], line)
      end
    end
    local opaque, alias = line:match('^typedef%s+struct%s+([%w_]+)%s+([%w_]+)$')
    local plain, body, plain_alias = line:match('^typedef%s+struct%s+([%w_]+)%s*(%b{})%s*([%w_]+)$')
    local scalar, typedef = line:match('^typedef%s+([%w_]+)%s+([%w_]+)$')
    if opaque or plain then
      if (opaque or plain) ~= (alias or plain_alias) then
        refuse('a struct whose typedef has another name', line)
      end
      known.structs[opaque or plain] = true
      api.opaque[opaque or plain] = opaque ~= nil or nil
      if plain then
        api.structs[#api.structs + 1] = parse_struct(plain, body:sub(2, -2), known, line)
      end
    elseif scalar then
      if not SCALARS[scalar] then
        refuse('a typedef of ' .. scalar, line)
      end
      known.typedefs[typedef] = true
    elseif line:find('^enum') then
      if not line:find('^enum%s*%b{}$') then
        refuse('a named enum', line)
      end
    else
      api.functions[#api.functions + 1] = parse_function(line, known)
    end
    out[#out + 1] = line:gsub('MS_NULLABLE', '/*%0*/') .. ';\n'
  end
  api.text = table.concat(out)
  return api
end
