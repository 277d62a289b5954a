--- Models ready to train.

local naming = require 'moonshard.internal.naming'

---@class ms.models
---@field GPT ms.models.GPT
return naming.space('models', {}, { GPT = 'moonshard.models.gpt' })
