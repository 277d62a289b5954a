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

--- Check that there are no arguments.
---@param what string  the class
---@param ... nil
function check.none(what, ...)
  if select('#', ...) > 0 then
    errors.raise('TypeError', '%s takes no arguments, got %s', what, arguments.noun((...)))
  end
end

return check
