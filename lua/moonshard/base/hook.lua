--- Handle of a registered hook. `hook:remove()` or `hook.remove()` removes the hook; calling it
--- again has no effect.

local class = require 'moonshard.base.class'

---@class ms.Hook
---@field remove fun()
---@overload fun(take_away: fun()): ms.Hook
local Hook = class 'hook'

function Hook:init(take_away)
  self.remove = function() take_away() end
end

return Hook
