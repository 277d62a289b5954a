--- Learning rates as initial rate times a function of the step: torch's LambdaLR.

local arguments = require 'moonshard_ffi.arguments'
local class = require 'moonshard.base.class'
local errors = require 'moonshard.base.errors'
local LRScheduler = require 'moonshard.optim.lr_scheduler.scheduler'

---@class ms.optim.lr_scheduler.LambdaLR: ms.optim.lr_scheduler.LRScheduler
local LambdaLR = class('optim.lr_scheduler.LambdaLR', LRScheduler)

LambdaLR._options = { 'lr_lambda' }
LambdaLR._needs = { 'lr_lambda' }

-- One function for each group.
local function lambdas_of(optimizer, given)
  local lambdas, n = {}, #optimizer.param_groups
  if type(given) ~= 'table' then
    for i = 1, n do
      lambdas[i] = arguments.fn(LambdaLR._name, 'lr_lambda', given)
    end
    return lambdas
  end
  for i, fn in ipairs(arguments.array(LambdaLR._name, 'lr_lambda', given)) do
    lambdas[i] = arguments.fn(LambdaLR._name, ('lr_lambda[%d]'):format(i), fn)
  end
  if #lambdas ~= n then
    errors.raise('ValueError', 'Expected %d lr_lambdas, but got %d', n, #lambdas)
  end
  return lambdas
end

--- `lr_lambda` is one function for all groups, or a list with one for each.
---@param optimizer ms.optim.Optimizer
---@param opts { lr_lambda: (fun(epoch: integer): number)|function[], last_epoch?: integer }
function LambdaLR:init(optimizer, opts)
  opts = LRScheduler._checked(LambdaLR, optimizer, opts)
  self._lambdas = lambdas_of(optimizer, opts.lr_lambda)
  self:_begin(optimizer, opts)
end

function LambdaLR:_rates()
  return self:_each(function(_, base, i)
    return base * arguments.number(self._name, 'lr_lambda()', self._lambdas[i](self.last_epoch))
  end)
end

return LambdaLR
