--- Evaluation of a model in the middle of its training.

local autograd = require 'moonshard.autograd'
local finally = require 'moonshard.base.finally'

local evaluated = {}

--- Run fn(...) with the model in evaluation mode and without gradients. Afterwards each module has
--- its mode again.
---@param model ms.nn.Module
---@param fn fun(...): ...
---@return ...
function evaluated.run(model, fn, ...)
  local modules, training = model:modules(), {}
  for i, module in ipairs(modules) do
    training[i] = module.training
  end
  return finally.run(function()
    for i, module in ipairs(modules) do
      rawset(module, 'training', training[i])
    end
  end, nil, function(...)
    model:eval()
    return autograd.no_grad(fn, ...)
  end, ...)
end

return evaluated
