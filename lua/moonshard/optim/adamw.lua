--- AdamW (arXiv:1711.05101): weight decay apart from the gradient; torch.optim.AdamW's defaults.

local class = require 'moonshard.base.class'
local Optimizer = require 'moonshard.optim.optimizer'

---@class ms.optim.AdamW: ms.optim.Optimizer
---@overload fun(params: ms.Tensor[]|table[], opts?: ms.optim.AdamW.Options): ms.optim.AdamW
local AdamW = class('optim.AdamW', Optimizer)

---@class ms.optim.AdamW.Options
---@field lr? number  default 1e-3
---@field betas? number[]  default { 0.9, 0.999 }
---@field eps? number  default 1e-8
---@field weight_decay? number  decoupled, default 1e-2
---@field amsgrad? boolean  divide by the largest average of squares so far (arXiv:1904.09237)
---@field maximize? boolean

AdamW.kind = 'AdamW'
AdamW.options = { 'lr', 'betas', 'eps', 'weight_decay', 'amsgrad', 'maximize' }
AdamW.later_states = { 'max_exp_avg_sq' }

return AdamW
