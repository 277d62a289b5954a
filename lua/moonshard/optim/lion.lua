--- Lion (arXiv:2302.06675): the sign of a momentum, with weight decay apart from the gradient. The
--- paper's defaults; the state has the name that Adam's has.

local class = require 'moonshard.base.class'
local Optimizer = require 'moonshard.optim.optimizer'

---@class ms.optim.Lion: ms.optim.Optimizer
---@overload fun(params: ms.Tensor[]|table[], opts?: ms.optim.Lion.Options): ms.optim.Lion
local Lion = class('optim.Lion', Optimizer)

---@class ms.optim.Lion.Options
---@field lr? number  default 1e-4
---@field betas? number[]  of the direction and of the momentum, default { 0.9, 0.99 }
---@field weight_decay? number  decoupled, default 0
---@field maximize? boolean

Lion.kind = 'Lion'
Lion.options = { 'lr', 'betas', 'weight_decay', 'maximize' }

return Lion
