--- RMSprop (Hinton, Coursera lecture 6e), torch.optim.RMSprop's update and defaults.

local class = require 'moonshard.base.class'
local Optimizer = require 'moonshard.optim.optimizer'

---@class ms.optim.RMSprop: ms.optim.Optimizer
---@overload fun(params: ms.Tensor[]|table[], opts?: ms.optim.RMSprop.Options): ms.optim.RMSprop
local RMSprop = class('optim.RMSprop', Optimizer)

---@class ms.optim.RMSprop.Options
---@field lr? number  default 1e-2
---@field alpha? number  smoothing of the average of squares, default 0.99
---@field eps? number  default 1e-8
---@field weight_decay? number  L2, default 0
---@field momentum? number  default 0
---@field centered? boolean  divide by an estimate of the variance
---@field maximize? boolean

RMSprop.kind = 'RMSprop'
RMSprop.later_states = { 'momentum_buffer', 'grad_avg' }
RMSprop.options = { 'lr', 'alpha', 'eps', 'weight_decay', 'momentum', 'centered', 'maximize' }

return RMSprop
