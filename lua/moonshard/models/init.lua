--- Whole models.

local namespace = require 'moonshard.namespace'

---@class ms.models
---@field GPT ms.models.GPT
return namespace('models', {}, { GPT = 'moonshard.models.gpt' })
