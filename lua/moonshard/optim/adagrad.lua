--- Adagrad (Duchi et al., JMLR 12, 2011), torch.optim.Adagrad's update and defaults.

local class = require 'moonshard.base.class'
local Optimizer = require 'moonshard.optim.optimizer'

---@class ms.optim.Adagrad: ms.optim.Optimizer
---@overload fun(params: ms.Tensor[]|table[], opts?: ms.optim.Adagrad.Options): ms.optim.Adagrad
local Adagrad = class('optim.Adagrad', Optimizer)

---@class ms.optim.Adagrad.Options
---@field lr? number  default 1e-2
---@field lr_decay? number  step t uses lr / (1 + (t - 1) lr_decay), default 0
---@field weight_decay? number  L2, default 0
---@field initial_accumulator_value? number  first value of the sum of squares, default 0
---@field eps? number  default 1e-10
---@field maximize? boolean

Adagrad.kind = 'Adagrad'
Adagrad.options = {
  'lr', 'lr_decay', 'weight_decay', 'initial_accumulator_value', 'eps', 'maximize',
}

function Adagrad._first_value(group)
  return group.initial_accumulator_value
end

return Adagrad
