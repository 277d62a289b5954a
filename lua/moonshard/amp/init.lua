--- Training in f16: a loss scale that keeps gradients in the range of the dtype.

local namespace = require 'moonshard.base.namespace'

---@class ms.amp
---@field GradScaler ms.amp.GradScaler
return namespace.space('amp', {}, { GradScaler = 'moonshard.amp.grad_scaler' })
