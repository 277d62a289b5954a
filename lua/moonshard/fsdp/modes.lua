--- Training and evaluation: which modules of a wrapped model are in which mode, and whether that
--- changed since ranks compared it. Modes are plain fields, assigned by whom it may be; so what
--- stands in them is looked at before a forward.

local tree = require 'moonshard.nn.tree'

local modes = {}

---@class ms.fsdp.Modes  parallel arrays, so that looking reads nothing else
---@field modules ms.nn.Module[]  in module order, the outermost one that is no wrapper first
---@field paths string[]
---@field told any[]  the modes that were compared last

--- The modules whose modes count below an instance. FSDP has planned over them: there will be no
--- others.
---@param instance ms.fsdp.FSDP
---@return ms.fsdp.Modes
function modes.of(instance)
  local m = { modules = {}, paths = {}, told = {} }
  local left_out = instance._ignored.modules
  for _, entry in ipairs(tree.walk(instance)) do
    local module = entry.module
    if not module._is_fsdp and (not m.modules[1] or not left_out[module]) then
      local i = #m.modules + 1
      m.modules[i], m.paths[i] = module, entry.path
    end
  end
  return m
end

-- In words: that of the outermost module, and who is in the other.
local function text_of(m)
  local told, others = m.told, {}
  for i = 2, #told do
    if told[i] ~= told[1] then
      others[#others + 1] = m.paths[i]
    end
  end
  return tostring(told[1]) .. (others[1] and ', but of ' .. table.concat(others, ', ') or '')
end

--- Did any mode change since the last call (true for the first)?
---@param m ms.fsdp.Modes
---@return string? text  all of them now; nil: none did
function modes.changed(m)
  local modules, told, changed = m.modules, m.told, false
  for i = 1, #modules do
    local now = modules[i].training
    if now ~= told[i] then
      told[i], changed = now, true
    end
  end
  return changed and text_of(m) or nil
end

return modes
