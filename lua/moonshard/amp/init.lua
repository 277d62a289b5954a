--- Training in f16: a loss scale that keeps gradients in the range of the dtype.

local naming = require 'moonshard.internal.naming'

---@class ms.amp
---@field GradScaler ms.amp.GradScaler
return naming.space('amp', {}, { GradScaler = 'moonshard.amp.grad_scaler' })
