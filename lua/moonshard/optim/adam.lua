--- Adam (arXiv:1412.6980): weight decay enters the gradient; torch.optim.Adam's defaults.

local class = require 'moonshard.base.class'
local Optimizer = require 'moonshard.optim.optimizer'

---@class ms.optim.Adam: ms.optim.Optimizer
---@overload fun(params: ms.Tensor[]|table[], opts?: ms.optim.Adam.Options): ms.optim.Adam
local Adam = class('optim.Adam', Optimizer)

---@class ms.optim.Adam.Options
---@field lr? number  default 1e-3
---@field betas? number[]  default { 0.9, 0.999 }
---@field eps? number  default 1e-8
---@field weight_decay? number  L2, default 0
---@field amsgrad? boolean  divide by the largest average of squares so far (arXiv:1904.09237)
---@field maximize? boolean

Adam.kind = 'Adam'
Adam.options = { 'lr', 'betas', 'eps', 'weight_decay', 'amsgrad', 'maximize' }
Adam.later_states = { 'max_exp_avg_sq' }

return Adam
