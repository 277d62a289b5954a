--- Reads the LuaCATS annotations of source files.

local annotations = {}

---@class ms.Annotation.Value  a parameter, a result or a field
---@field name string  '' for a result
---@field optional boolean
---@field type string
---@field text string

---@class ms.Annotation  a function
---@field owner string  'optim' in function optim.clip_grad_norm_; '' without one
---@field method boolean  called with a colon
---@field name string
---@field args string[]
---@field text string
---@field params ms.Annotation.Value[]
---@field returns ms.Annotation.Value[]
---@field type? string  of a value that is declared as a function type
---@field file ms.Annotation.File
---@field line integer

---@class ms.Annotation.Class
---@field name string
---@field parents string[]
---@field text string
---@field fields ms.Annotation.Value[]
---@field overloads string[]
---@field variable? string  the local that holds it in its file
---@field file ms.Annotation.File

---@class ms.Annotation.File
---@field path string
---@field text string  the comment at its top
---@field functions ms.Annotation[]
---@field classes table<string, ms.Annotation.Class>
---@field order string[]  names of the classes
---@field aliases table<string, string>  types by name
---@field requires string[]  modules of the library that it mentions

-- A type ends at two spaces; text follows.
local function split_type(text)
  local before, after = text:match '^(.-)  %s*(.*)$'
  return before or text, after or ''
end

local function value_of(text, named)
  local name, mark, rest = '', '', text
  if named then
    name, mark, rest = text:match '^([^%s?]+)(%??)%s*(.*)$'
  end
  local kind, comment = split_type(rest)
  if not named then -- a result may have a name
    kind = kind:match '^([^%s({]+) [%a_][%w_]*$' or kind
  end
  return { name = name, optional = mark == '?', type = kind, text = comment }
end

-- The lines of a comment: free text, and tags with the lines that continue them up to an empty one.
local function block_of(lines)
  local text, tags, in_tag = {}, {}, false
  for _, line in ipairs(lines) do
    local body = line:gsub('^%s*%-%-%-', '')
    local tag, rest = body:match '^@(%w+)%s*(.*)$'
    if tag then
      tags[#tags + 1], in_tag = { tag = tag, text = rest }, true
    elseif in_tag and body:find '%S' then
      tags[#tags].text = tags[#tags].text .. ' ' .. body:gsub('^[|%s]+', '')
    else
      in_tag = false
      text[#text + 1] = body:gsub('^ ', '')
    end
  end
  return { text = table.concat(text, '\n'):match '^%s*(.-)%s*$', tags = tags }
end

local function tagged(block, tag, named)
  local out = {}
  for _, entry in ipairs(block.tags) do
    out[#out + 1] = entry.tag == tag and value_of(entry.text, named) or nil
  end
  return out
end

local function words(list)
  local out = {}
  for word in list:gsub('%b<>', ''):gsub('%b{}', ''):gmatch '[%w_.]+' do
    out[#out + 1] = word
  end
  return out
end

local DEFINITIONS = {
  '^%s*function ([%w_]+)([.:])([%w_]+)(%b())', '^%s*local function ()()([%w_]+)(%b())',
  '^%s*return function ?()()()(%b())', "^([%w_]+)()%['([%w_]+)'%] = function ?(%b())",
}

-- The function that is defined or assigned at a line; nil: none.
local function definition(lines, i)
  local line = lines[i]
  if line:find 'function' and not line:find '%)' then
    line = table.concat(lines, ' ', i, math.min(i + 6, #lines)):gsub('%s+', ' ')
  end
  for _, pattern in ipairs(DEFINITIONS) do
    local owner, mark, name, args = line:match(pattern)
    if args then
      return {
        owner = type(owner) == 'string' and owner or '', method = mark == ':',
        name = type(name) == 'string' and name or '', args = words(args:gsub('%.%.%.', ' ... ')),
      }
    end
  end
  local owner, name = line:match '^([%w_]+)%.([%w_]+) = '
  return owner and { owner = owner, method = false, name = name, args = {}, assigned = true }
end

local function add_classes(file, block, next_line)
  local class
  for _, entry in ipairs(block.tags) do
    if entry.tag == 'alias' then
      local name, alias = entry.text:match '^([%w_.]+)%s+(.*)$'
      file.aliases[name or ''] = alias and split_type(alias)
    elseif entry.tag == 'class' then
      local head, text = split_type(entry.text)
      local name, parents = head:match '^([%w_.]+):?%s*(.*)$'
      class = file.classes[name] -- a second block adds fields
      if not class then
        class = {
          name = name, parents = words(parents), text = block.text ~= '' and block.text or text,
          fields = {}, overloads = {}, file = file,
          variable = next_line:match '^local ([%w_]+) =',
        }
        file.classes[name], file.order[#file.order + 1] = class, name
      end
    elseif entry.tag == 'field' and class then
      class.fields[#class.fields + 1] = value_of(entry.text, true)
    elseif entry.tag == 'overload' and class then
      class.overloads[#class.overloads + 1] = entry.text
    end
  end
  return class ~= nil
end

local function add_function(file, lines, i, block)
  local found = definition(lines, i)
  if not found or found.assigned and not block.tags[1] then
    return
  end
  found.text, found.file, found.line = block.text, file, i
  found.params, found.returns = tagged(block, 'param', true), tagged(block, 'return', false)
  for k, param in ipairs(found.assigned and found.params or {}) do
    found.args[k] = param.name
  end
  found.type = (tagged(block, 'type', false)[1] or {}).type
  file.functions[#file.functions + 1] = found
end

--- Read the annotations of a file.
---@param path string
---@return ms.Annotation.File
function annotations.read(path)
  local lines, comment, file = {}, {}, {
    path = path, functions = {}, classes = {}, order = {}, aliases = {}, requires = {},
  }
  for line in io.lines(path) do
    lines[#lines + 1] = line
    for name in line:gmatch "'(moonshard[%w_.]*)'" do
      file.requires[#file.requires + 1] = name
    end
  end
  for i, line in ipairs(lines) do
    if line:find '^%s*%-%-%-' then
      comment[#comment + 1] = line
    else
      local block = block_of(comment)
      file.text = file.text or block.text
      if not (comment[1] and add_classes(file, block, line)) then
        add_function(file, lines, i, block)
      end
      comment = {}
    end
  end
  file.text = file.text or ''
  return file
end

return annotations
