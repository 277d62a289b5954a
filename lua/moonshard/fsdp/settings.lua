--- What the modules of a model compute with beside their parameters (heads, dropout, which class)
--- is compared when ranks first use it: the parameters alone would not show that they differ.

local agree = require 'moonshard.fsdp.agree'
local errors = require 'moonshard.errors'
local parameter = require 'moonshard_ffi.parameter'
local runtime = require 'moonshard_ffi.fsdp'
local tree = require 'moonshard.nn.tree'
local util = require 'moonshard.util'

local settings = {}

--- A setting in words: in as many digits as it takes, and on one line.
function settings.text(value)
  if type(value) == 'number' then
    local text = ('%.14g'):format(value)
    return tonumber(text) == value and text or ('%.17g'):format(value)
  elseif type(value) == 'table' then
    return 'a table'
  end
  return (tostring(value):gsub('%c', function(c) return ('\\%d'):format(c:byte()) end))
end

local text_of = settings.text

-- "nn.Dropout (p 0.1)"
local function description(module)
  local parts = {}
  for i, field in ipairs(module._settings) do
    parts[i] = ('%s %s'):format(field, text_of(module[field]))
  end
  return text_of(module._name) .. (parts[1] and (' (%s)'):format(table.concat(parts, ', ')) or '')
end

-- Fields beside those: what they mean the script knows. Names with '_' are nobody else's business.
-- Compared this once: what changes later is a note's to tell, and a note that differs is an error.
local function add_own_fields(lines, place, module)
  local known = { training = true }
  for _, field in ipairs(module._settings) do
    known[field] = true
  end
  for _, field in ipairs(util.sorted_keys(module)) do
    local value = rawget(module, field)
    local kind = type(value)
    if field:byte() ~= 95 and not known[field]
      and (kind == 'number' or kind == 'string' or kind == 'boolean') then
      lines[#lines + 1] = ("field '%s' of %s (%s)\t%s"):format(text_of(field), place,
        text_of(module._name), text_of(value))
    end
  end
end

--- A module in words, by its path below the root.
function settings.place(path)
  return path == '' and 'the model' or ("'%s'"):format(text_of(path))
end

-- What agree.on_lines() takes: modules, and fields.
local function lines_of(root, ignored)
  local modules, fields = {}, {}
  for _, entry in ipairs(tree.walk(root)) do
    local module, place = entry.module, settings.place(entry.path)
    if not module._is_fsdp then
      local list = ignored[module] and fields or modules
      list[#list + 1] = ('%s\t%s'):format(place, description(module))
      add_own_fields(fields, place, module)
    end
  end
  return modules, fields
end

-- What agree.on_lines() takes: buffers by their path.
local function buffer_lines_of(root)
  local lines = {}
  for i, b in ipairs(tree.buffers(root)) do
    local value = b.entry:uncast()
    lines[i] = ("buffer '%s'\t%s (%s) with the hash %s"):format(text_of(b.name), value:dtype(),
      table.concat(parameter.shape(value), ', '), value:hash())
  end
  return lines
end

--- CommError on all ranks where modules differ, but for ignored ones; a warning where these do, or
--- other fields of modules, or buffers. Collective.
---@param group ffi.cdata*
---@param root ms.nn.Module
---@param ignored table<ms.nn.Module, boolean>
function settings.compare(group, root, ignored)
  local rank, world = runtime.place(group)
  if world == 1 then
    return
  end
  local modules, fields = lines_of(root, ignored)
  local told = agree.on_lines(group, 'the first use of FSDP (modules)', modules)
  if told then
    errors.raise('CommError', 'the ranks wrapped different models: %s', told)
  end
  told = agree.on_lines(group, 'the first use of FSDP (fields of modules)', fields)
  if told and rank == 0 then
    errors.warn('UserWarning', told .. ': if it decides what is computed, give it one value; the '
      .. "name of what each rank has for itself begins with '_'", group)
  end
  told = agree.on_lines(group, 'the first use of FSDP (buffers)', buffer_lines_of(root))
  if told and rank == 0 then
    errors.warn('UserWarning', told .. ': nothing makes buffers the same or keeps them so, and '
      .. "checkpoints take rank 0's; if it decides what is computed, give it one value", group)
  end
end

return settings
