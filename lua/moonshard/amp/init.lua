--- What training in f16 needs beside casts: a loss scale that follows what gradients stand.

local namespace = require 'moonshard.namespace'

---@class ms.amp
---@field GradScaler ms.amp.GradScaler
return namespace('amp', {}, { GradScaler = 'moonshard.amp.grad_scaler' },
  { autocast = 'autocast' },
  { autocast = "ms.fsdp.FSDP(m, { mixed_precision = { param_dtype = ms.f16 } })" })
