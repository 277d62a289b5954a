--- Compares settings of modules (class, heads, dropout) across ranks at the first use of a model.

local B = require 'moonshard_ffi'
local agree = require 'moonshard.fsdp.agree'
local errors = require 'moonshard.base.errors'
local tree = require 'moonshard.nn.tree'

local settings = {}

--- A setting as one line of text; numbers with all digits that are needed.
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

--- A module in words, by its path below the root.
function settings.module_text(path)
  return path == '' and 'the model' or ("'%s'"):format(text_of(path))
end

-- The modules that are not ignored, as lines for agree.on_lines().
local function lines_of(root, ignored)
  local lines = {}
  for _, entry in ipairs(tree.walk(root)) do
    if not entry.module._shows_entries and not ignored[entry.module] then
      local name = settings.module_text(entry.path)
      lines[#lines + 1] = ('%s\t%s'):format(name, description(entry.module))
    end
  end
  return lines
end

--- CommError on all ranks where modules that are not ignored differ. Collective.
---@param group ffi.cdata*
---@param root ms.nn.Module
---@param ignored table<ms.nn.Module, boolean>
function settings.compare(group, root, ignored)
  local world = B.C.ms_comm_size(group)
  if world == 1 then
    return
  end
  local difference = agree.on_lines(group, 'the first use of FSDP (modules)',
    lines_of(root, ignored))
  if difference then
    errors.raise('CommError', 'the ranks wrapped different models: %s', difference)
  end
end

return settings
