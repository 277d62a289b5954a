--- Argument checks that constructors of layers share.

local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'

local check = {}

--- Check integers that are at least `lowest`.
---@param what string  the class
---@param lowest integer
---@param names string[]
---@param ... integer  one for each name
function check.sizes(what, lowest, names, ...)
  for i, name in ipairs(names) do
    arguments.whole(what, name, (select(i, ...)), nil, lowest)
  end
end

--- A probability of dropout.
---@param p number
---@return number p
function check.dropout(p)
  if not (p >= 0 and p <= 1) then
    errors.raise('ValueError', 'dropout probability has to be between 0 and 1, but got %g', p)
  end
  return p
end

--- Check that there are no arguments.
---@param what string  the class
---@param ... nil
function check.none(what, ...)
  if select('#', ...) > 0 then
    errors.raise('TypeError', '%s takes no arguments, got %s', what, arguments.noun((...)))
  end
end

return check
