--- Predefined models, and models from folders.

local namespace = require 'moonshard.base.namespace'

---@class ms.models
---@field GPT ms.models.GPT
---@field Decoder ms.models.Decoder
---@field DecoderLayer ms.models.DecoderLayer
---@field from_pretrained fun(path: string, opts?: table): ms.models.Decoder
return namespace.space('models', {}, {
  GPT = 'moonshard.models.gpt', Decoder = 'moonshard.models.decoder',
  DecoderLayer = 'moonshard.models.decoder_parts',
  from_pretrained = 'moonshard.models.from_pretrained',
})
