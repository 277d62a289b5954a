--- Predefined models.

local namespace = require 'moonshard.base.namespace'

---@class ms.models
---@field GPT ms.models.GPT
return namespace.space('models', {}, { GPT = 'moonshard.models.gpt' })
