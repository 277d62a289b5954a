--- What training in f16 needs beside casts: a loss scale that follows what gradients stand.

local naming = require 'moonshard.internal.naming'

---@class ms.amp
---@field GradScaler ms.amp.GradScaler
return naming.space('amp', {}, { GradScaler = 'moonshard.amp.grad_scaler' })
