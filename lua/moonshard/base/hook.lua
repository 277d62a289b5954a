--- What hook() and register_forward_hook() give: `hook:remove()`, or `hook.remove()`, takes the
--- function away; again is harmless.

local class = require 'moonshard.base.class'

---@class ms.Hook
---@field remove fun()
---@overload fun(take_away: fun()): ms.Hook
local Hook = class 'hook'

function Hook:init(take_away)
  self.remove = function() take_away() end
end

return Hook
