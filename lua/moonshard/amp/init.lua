--- Mixed-precision training in f16: loss scaling.

local namespace = require 'moonshard.base.namespace'

---@class ms.amp
---@field GradScaler ms.amp.GradScaler
return namespace.space('amp', {}, { GradScaler = 'moonshard.amp.grad_scaler' })
