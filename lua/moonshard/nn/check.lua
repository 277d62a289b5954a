--- What constructors of layers ask of their arguments.

local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.internal.errors'

local check = {}

-- The call somebody meant who gave a table in place of the arguments.
local function positional(what, given)
  local parts, options = {}, false
  for i, value in ipairs(given) do
    parts[i] = tostring(value)
  end
  for key in next, given do
    options = options or type(key) ~= 'number'
  end
  if #parts == 0 then
    parts[1] = '...'
  end
  if options then
    parts[#parts + 1] = '{ ... }'
  end
  return ('%s(%s)'):format(what, table.concat(parts, ', '))
end

--- Refuse a table where arguments stand one by one.
---@param what string  the class
---@param first any  the first argument
function check.positional(what, first)
  if type(first) == 'table' and getmetatable(first) == nil then
    errors.raise('TypeError', '%s takes its arguments one by one: write %s', what,
      positional(what, first))
  end
end

--- Whole numbers from `lowest` on, given one by one.
---@param what string  the class
---@param lowest integer
---@param names string[]
---@param ... integer  as many as there are names
function check.sizes(what, lowest, names, ...)
  check.positional(what, (...))
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
