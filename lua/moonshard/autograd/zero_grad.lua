--- Implements zero_grad() of modules and optimizers.

local create = require 'moonshard.base.create'
local errors = require 'moonshard.base.errors'

--- Release the gradients of parameters; with set_to_none = false fill existing ones with zeros.
---@param params ms.Tensor[]
---@param opts? { set_to_none?: boolean }  default true
return function(params, opts)
  local none = errors.options('zero_grad', opts, { set_to_none = 'flag' }).set_to_none ~= false
  for _, param in ipairs(params) do
    local grad = not none and param:grad()
    if none then
      param:set_grad(nil)
    elseif grad then -- nil on a rank without elements of the parameter
      param:set_grad(create.zeros(grad:shape(), { dtype = grad:dtype() }))
    end
  end
end
