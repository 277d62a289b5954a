--- The optimizers. Their options and states are those of runtime/optim/rules.c.

local class = require 'moonshard.base.class'
local Optimizer = require 'moonshard.optim.optimizer'
local runtime = require 'moonshard_ffi.optim'

---@class ms.optim
---@field SGD ms.optim.SGD
---@field Adam ms.optim.Adam
---@field AdamW ms.optim.AdamW
---@field RMSprop ms.optim.RMSprop
---@field Adagrad ms.optim.Adagrad
---@field Lion ms.optim.Lion
---@field Adamax ms.optim.Adamax
local classes = {}

for name, rule in next, runtime.rules do
  local Rule = class('optim.' .. name, Optimizer)
  Rule.kind, Rule.options = name, rule.options
  classes[name] = Rule
end

--- Stochastic gradient descent with momentum (torch.optim.SGD's update and defaults).
---@class ms.optim.SGD: ms.optim.Optimizer
---@overload fun(params: ms.Tensor[]|table[], opts?: ms.optim.SGD.Options): ms.optim.SGD

---@class ms.optim.SGD.Options
---@field lr? number  default 1e-3
---@field momentum? number  default 0
---@field dampening? number  default 0
---@field weight_decay? number  L2, default 0
---@field nesterov? boolean  requires momentum and no dampening
---@field maximize? boolean

--- Adam (arXiv:1412.6980) with weight decay added to the gradient; torch.optim.Adam's defaults.
---@class ms.optim.Adam: ms.optim.Optimizer
---@overload fun(params: ms.Tensor[]|table[], opts?: ms.optim.Adam.Options): ms.optim.Adam

---@class ms.optim.Adam.Options
---@field lr? number  default 1e-3
---@field betas? number[]  default { 0.9, 0.999 }
---@field eps? number  default 1e-8
---@field weight_decay? number  L2, default 0
---@field amsgrad? boolean  divide by the largest average of squares so far (arXiv:1904.09237)
---@field maximize? boolean

--- AdamW (arXiv:1711.05101) with decoupled weight decay; torch.optim.AdamW's defaults.
---@class ms.optim.AdamW: ms.optim.Optimizer
---@overload fun(params: ms.Tensor[]|table[], opts?: ms.optim.AdamW.Options): ms.optim.AdamW

---@class ms.optim.AdamW.Options
---@field lr? number  default 1e-3
---@field betas? number[]  default { 0.9, 0.999 }
---@field eps? number  default 1e-8
---@field weight_decay? number  decoupled, default 1e-2
---@field amsgrad? boolean  divide by the largest average of squares so far (arXiv:1904.09237)
---@field maximize? boolean

--- RMSprop (Hinton, Coursera lecture 6e), torch.optim.RMSprop's update and defaults.
---@class ms.optim.RMSprop: ms.optim.Optimizer
---@overload fun(params: ms.Tensor[]|table[], opts?: ms.optim.RMSprop.Options): ms.optim.RMSprop

---@class ms.optim.RMSprop.Options
---@field lr? number  default 1e-2
---@field alpha? number  smoothing of the average of squares, default 0.99
---@field eps? number  default 1e-8
---@field weight_decay? number  L2, default 0
---@field momentum? number  default 0
---@field centered? boolean  divide by an estimate of the variance
---@field maximize? boolean

--- Adagrad (Duchi et al., JMLR 12, 2011), torch.optim.Adagrad's update and defaults.
---@class ms.optim.Adagrad: ms.optim.Optimizer
---@overload fun(params: ms.Tensor[]|table[], opts?: ms.optim.Adagrad.Options): ms.optim.Adagrad

---@class ms.optim.Adagrad.Options
---@field lr? number  default 1e-2
---@field lr_decay? number  step t uses lr / (1 + (t - 1) lr_decay), default 0
---@field weight_decay? number  L2, default 0
---@field initial_accumulator_value? number  initial value of the sum of squares, default 0
---@field eps? number  default 1e-10
---@field maximize? boolean

--- Lion (arXiv:2302.06675): the sign of a momentum, with decoupled weight decay. The paper's
--- defaults. The state is named like Adam's.
---@class ms.optim.Lion: ms.optim.Optimizer
---@overload fun(params: ms.Tensor[]|table[], opts?: ms.optim.Lion.Options): ms.optim.Lion

---@class ms.optim.Lion.Options
---@field lr? number  default 1e-4
---@field betas? number[]  of the direction and of the momentum, default { 0.9, 0.99 }
---@field weight_decay? number  decoupled, default 0
---@field maximize? boolean

--- Adamax (arXiv:1412.6980, section 7.1): Adam with a decaying maximum of gradients in place of the
--- average of squares; torch.optim.Adamax's update and defaults.
---@class ms.optim.Adamax: ms.optim.Optimizer
---@overload fun(params: ms.Tensor[]|table[], opts?: ms.optim.Adamax.Options): ms.optim.Adamax

---@class ms.optim.Adamax.Options
---@field lr? number  default 2e-3
---@field betas? number[]  default { 0.9, 0.999 }
---@field eps? number  default 1e-8
---@field weight_decay? number  L2, default 0
---@field maximize? boolean

return classes
