--- Stochastic gradient descent with momentum (torch.optim.SGD's update and defaults).

local class = require 'moonshard.base.class'
local Optimizer = require 'moonshard.optim.optimizer'

---@class ms.optim.SGD: ms.optim.Optimizer
---@overload fun(params: ms.Tensor[]|table[], opts?: ms.optim.SGD.Options): ms.optim.SGD
local SGD = class('optim.SGD', Optimizer)

---@class ms.optim.SGD.Options
---@field lr? number  default 1e-3
---@field momentum? number  default 0
---@field dampening? number  default 0
---@field weight_decay? number  L2, default 0
---@field nesterov? boolean  needs a momentum and no dampening
---@field maximize? boolean

SGD.kind = 'SGD'
SGD.later_states = { 'momentum_buffer' }
SGD.options = { 'lr', 'momentum', 'dampening', 'weight_decay', 'nesterov', 'maximize' }

return SGD
