--- What zero_grad() of modules and optimizers takes.

local errors = require 'moonshard.internal.errors'

--- Refuse what is not supported: gradients are dropped, not filled with zeros, so far.
---@param opts? { set_to_none?: boolean }
return function(opts)
  if errors.options('zero_grad', opts, { set_to_none = 'flag' }).set_to_none == false then
    errors.raise('NotImplementedError', 'zero_grad: set_to_none = false is not supported yet')
  end
end
