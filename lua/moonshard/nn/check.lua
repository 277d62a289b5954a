--- What constructors of layers ask of their arguments.

local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'

local check = {}

--- Whole numbers from `lowest` on, given one by one.
---@param what string  the class
---@param lowest integer
---@param names string[]
---@param ... integer  as many as there are names
function check.sizes(what, lowest, names, ...)
  for i, name in ipairs(names) do
    arguments.whole(what, name, (select(i, ...)), nil, lowest)
  end
end

--- No arguments at all.
---@param what string  the class
---@param ... nil
function check.none(what, ...)
  if select('#', ...) > 0 then
    errors.raise('TypeError', '%s takes no arguments, got %s', what, arguments.noun((...)))
  end
end

return check
