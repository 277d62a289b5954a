--- Low-rank adapters (LoRA, Hu et al. 2021) for the linear layers of transformer blocks.

local ms = require 'moonshard'
local nn = ms.nn

local adapters = {}

--- y = base(x) + alpha / rank * B A x. The base keeps its parameters, which are frozen. B is zero
--- at first, so that y begins as base(x).
local LoRALinear = nn.Module.extend('LoRALinear')

function LoRALinear:init(base, rank, alpha)
  base:requires_grad_(false)
  self.base = base
  self.scale = alpha / rank
  self.lora_a = nn.Linear(base.in_features, rank, { bias = false })
  self.lora_b = nn.Linear(rank, base.out_features, { bias = false, init = nn.init.zeros() })
end

function LoRALinear:forward(x)
  return self.base(x) + self.lora_b(self.lora_a(x)) * self.scale
end

--- The same for a LinearGELU: the adapter adds before the GELU.
local LoRALinearGELU = LoRALinear.extend('LoRALinearGELU')

function LoRALinearGELU:forward(x)
  local base = self.base
  local y = ms.ops.linear(x, base.weight, base.bias) + self.lora_b(self.lora_a(x)) * self.scale
  return ms.ops.gelu(y, base.approximate)
end

local ADAPTER = { [nn.Linear] = LoRALinear, [nn.LinearGELU] = LoRALinearGELU }

--- Freeze a model and put adapters in the places of the linear layers of its blocks.
---@param model ms.models.GPT  not wrapped yet
---@param rank integer  inner width of an adapter
---@param alpha number  adapters are scaled by alpha / rank
---@return ms.models.GPT model
function adapters.add(model, rank, alpha)
  model:requires_grad_(false)
  for path, module in model:named_modules() do
    local Adapter = ADAPTER[getmetatable(module)]
    local parent, name = path:match('^(h%..*)%.([^.]+)$')
    if Adapter and parent then
      model:get_submodule(parent):set_child(name, Adapter(module, rank, alpha))
    end
  end
  return model
end

--- The adapters' part of a state dict.
---@param sd ms.StateDict
---@return ms.StateDict
function adapters.of(sd)
  local out = {}
  for _, name in ipairs(sd) do
    if name:find('lora_', 1, true) then
      out[#out + 1], out[name] = name, sd[name]
    end
  end
  return out
end

return adapters
