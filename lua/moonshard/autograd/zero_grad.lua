--- zero_grad() of modules and optimizers.

local create = require 'moonshard.base.create'
local errors = require 'moonshard.base.errors'

--- Drop the gradients of parameters, or with set_to_none = false fill those there are with zeros.
---@param params ms.Tensor[]
---@param opts? { set_to_none?: boolean }  default true
return function(params, opts)
  local none = errors.options('zero_grad', opts, { set_to_none = 'flag' }).set_to_none ~= false
  for _, param in ipairs(params) do
    local grad = not none and param:grad()
    if none then
      param:set_grad(nil)
    elseif grad then -- a rank without elements of the parameter has no gradient to fill
      param:set_grad(create.zeros(grad:shape(), { dtype = grad:dtype() }))
    end
  end
end
