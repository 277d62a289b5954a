--- What scripts give to moonshard.checkpoint, and whether it is that.
---
--- Touches: moonshard.errors, moonshard_ffi.arguments.

local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.errors'

local given = {}

--- A path is a text with something in it.
function given.path(what, name, value)
  if arguments.text(what, name, value) == '' then
    errors.raise('ValueError', "%s: '%s' is empty, expected a path", what, name)
  end
end

--- What is saved and restored.
given.PARTS = { 'model', 'optimizer', 'loader' }
-- The mark by which each is known.
local MARKS = { model = '_is_module', optimizer = '_is_optimizer', loader = '_is_loader' }

function given.part(what, name, part)
  local is_object = type(part) == 'table' and rawget(part, '_name') == nil
  if not (is_object and part[MARKS[name]] == true) then
    arguments.refuse(what, name, part, 'the ' .. name .. ' itself')
  end
end

---@return string[] names  of those that are there, one at least
function given.parts(what, opts)
  local names = {}
  for _, name in ipairs(given.PARTS) do
    if opts[name] ~= nil then
      given.part(what, name, opts[name])
      names[#names + 1] = name
    end
  end
  if #names == 0 then
    errors.raise('ValueError', '%s: got nothing to %s, expected a model, an optimizer or a loader',
      what, what:match('[^.]*$'))
  end
  return names
end

return given
