--- Fields of modules that decide what a forward computes: training or not, and the settings of
--- their classes (the p of a Dropout). They are plain fields, assigned by whom it may be; so what
--- stands in them is looked at before a forward, for what has changed since ranks compared it.

local notes = require 'moonshard_ffi.notes'
local settings = require 'moonshard.fsdp.settings'
local tree = require 'moonshard.nn.tree'

local changeable = {}

---@class ms.fsdp.Changeable  parallel arrays, so that looking reads nothing else
---@field modules ms.nn.Module[]  in module order, the outermost one that is no wrapper first
---@field names string[]  of the fields; every module's 'training' stands before any setting
---@field paths string[]
---@field told any[]  the values that were compared last
---@field n_modules integer

local function add(c, entry, name, told)
  local i = #c.names + 1
  c.modules[i], c.paths[i], c.names[i], c.told[i] = entry.module, entry.path, name, told
end

--- What to look at below an instance. FSDP has planned over its modules: there will be no others.
---@param instance ms.fsdp.FSDP
---@return ms.fsdp.Changeable
function changeable.of(instance)
  local c = { modules = {}, names = {}, paths = {}, told = {} }
  local left_out, entries = instance._ignored.modules, {}
  for _, entry in ipairs(tree.walk(instance)) do
    if not entry.module._is_fsdp and (not entries[1] or not left_out[entry.module]) then
      entries[#entries + 1] = entry
      add(c, entry, 'training')
    end
  end
  c.n_modules = #entries
  for _, entry in ipairs(entries) do
    for _, name in ipairs(entry.module._settings) do
      add(c, entry, name, entry.module[name]) -- settings.compare() tells them first
    end
  end
  return c
end

-- Modes in words: that of the outermost module, and who is in the other.
local function modes_text(c)
  local told, others = c.told, {}
  for i = 2, c.n_modules do
    if told[i] ~= told[1] then
      others[#others + 1] = c.paths[i]
    end
  end
  return tostring(told[1]) .. (others[1] and ', but of ' .. table.concat(others, ', ') or '')
end

--- Note what changed since the last call (the first: all modes) for the group's ranks to compare.
---@param c ms.fsdp.Changeable
---@param group ffi.cdata*
function changeable.tell(c, group)
  local modules, names, told, modes = c.modules, c.names, c.told, false
  for i = 1, #names do
    local now = modules[i][names[i]]
    if now ~= told[i] then
      told[i] = now
      if i <= c.n_modules then
        modes = true
      else
        notes.text(group, ('%s of %s'):format(names[i], settings.place(c.paths[i])),
          settings.text(now))
      end
    end
  end
  if modes then
    notes.text(group, 'training of modules', modes_text(c))
  end
end

return changeable
