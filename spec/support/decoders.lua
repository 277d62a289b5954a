--- Helpers of specs of models from folders: sharding, and training as a case of a fixture does.

local ms = require 'moonshard'
local numbers = require 'support.numbers'
local fsdp, optim = ms.fsdp, ms.optim

local decoders = {}

--- Functions for from_pretrained { wrap = ... }. Adapters have units of their own.
decoders.WRAPPERS = {
  FSDP = function(model, group)
    return fsdp.FSDP(model, {
      process_group = group,
      auto_wrap_policy = fsdp.ModuleWrapPolicy { ms.models.DecoderLayer, ms.models.LoRA },
    })
  end,
  fully_shard = function(model)
    for _, layer in ipairs((model.model or model.transformer)[model.model and 'layers' or 'h']) do
      local adapters = ms.models.adapters(layer)
      if adapters[1] then
        fsdp.fully_shard(adapters)
      end
      fsdp.fully_shard(layer)
    end
    fsdp.fully_shard(model)
  end,
}

--- The parameters that require gradients.
function decoders.trained(model)
  local list = {}
  for _, p in ipairs(model:parameters()) do
    list[#list + 1] = p:requires_grad() and p or nil
  end
  return list
end

--- Ten steps of AdamW have the losses of a case.
---@param case table
---@param model ms.nn.Module
---@param ... any  arguments of the model
function decoders.trains_as(case, model, ...)
  local opt = optim.AdamW(decoders.trained(model), { lr = 0.01, eps = 1e-4, weight_decay = 0.1 })
  for step, wanted in ipairs(case.losses) do
    local loss = model(...)
    numbers.near('loss ' .. step, loss:item(), wanted, numbers.TOLERANCE.f32)
    loss:backward()
    opt:step()
    opt:zero_grad()
  end
end

--- Two files have the same tensors.
---@param a string
---@param b string
function decoders.same_tensors(a, b)
  a, b = ms.checkpoint.read_safetensors(a), ms.checkpoint.read_safetensors(b)
  assert(#a == #b, ('%d and %d tensors'):format(#a, #b))
  for _, name in ipairs(a) do
    assert(a[name]:hash() == b[name]:hash(), name)
  end
end

return decoders
