--- What hook() and register_forward_hook() give: `hook:remove()`, or `hook.remove()`, takes the
--- function away; again is harmless.

local class = require 'moonshard.class'
local receiver = require 'moonshard.receiver'
local surplus = require 'moonshard.surplus'

---@class ms.Hook
---@field remove fun()
---@overload fun(take_away: fun()): ms.Hook
local Hook = class 'hook'

function Hook:init(take_away)
  function self.remove(object, more)
    local odd = more
    if object ~= nil and object ~= self then
      odd = object
    end
    if odd ~= nil then
      surplus.refuse('hook:remove', {}, odd)
    end
    take_away()
  end
end

return receiver.check(Hook, Hook, { 'remove' })
