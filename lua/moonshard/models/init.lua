--- Predefined models, and models from folders.

local namespace = require 'moonshard.base.namespace'

---@class ms.models
---@field GPT ms.models.GPT
---@field Decoder ms.models.Decoder
---@field DecoderLayer ms.models.DecoderLayer
---@field Rotary ms.nn.Rotary
---@field LoRA ms.models.LoRA
---@field adapters fun(module: ms.nn.Module): ms.models.LoRA[]
---@field from_pretrained fun(path: string, opts?: table): ms.models.Decoder
return namespace.space('models', {}, {
  GPT = 'moonshard.models.gpt', Decoder = 'moonshard.models.decoder',
  DecoderLayer = 'moonshard.models.decoder_parts', Rotary = 'moonshard.nn.rotary',
  LoRA = 'moonshard.models.lora', adapters = 'moonshard.models.lora',
  from_pretrained = 'moonshard.models.from_pretrained',
})
