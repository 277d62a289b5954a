--- Training and evaluation: who is in which mode, and that somebody's changed, so that ranks
--- compare modes at no cost to calls.

local tree = require 'moonshard.nn.tree'

local modes = { changes = 0 }

---@param module ms.nn.Module
---@param on boolean
function modes.set(module, on)
  rawset(module, 'training', on)
  modes.changes = modes.changes + 1
end

--- In words: that of `root`, and who is in the other.
---@param root ms.nn.Module
---@param left_out table<ms.nn.Module, boolean>
---@return string
function modes.text(root, left_out)
  local others = {}
  for _, entry in ipairs(tree.walk(root)) do
    local module = entry.module
    if module.training ~= root.training and not module._is_fsdp and not left_out[module] then
      others[#others + 1] = entry.path
    end
  end
  return tostring(root.training) .. (others[1] and ', but of ' .. table.concat(others, ', ') or '')
end

return modes
