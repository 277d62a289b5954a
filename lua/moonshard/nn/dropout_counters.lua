--- Numbers of calls of the modules that draw random masks. Checkpoints contain them: without a
--- data.Loader, masks depend on the number of calls since the seed was set.

local samples = require 'moonshard.base.samples'

local dropout_counters = {}

local function dropouts(model)
  local list = {}
  for _, module in ipairs(model:modules()) do
    if module._is_dropout then
      list[#list + 1] = module
    end
  end
  return list
end

---@param model ms.nn.Module  materialised
---@return table<string, integer>? counts  by path; nil if none was called
function dropout_counters.of(model)
  local counts
  for _, module in ipairs(dropouts(model)) do
    local n = samples.ran(module._site)
    if n > 0 then
      counts = counts or {}
      counts[module:path()] = n
    end
  end
  return counts
end

--- Restore the counts of a model.
---@param model ms.nn.Module
---@param counts? table<string, integer>
function dropout_counters.continue(model, counts)
  for _, module in ipairs(dropouts(model)) do
    samples.continue(module._site, counts and counts[module:path()] or 0)
  end
end

--- Is the value a valid result of of()?
---@return boolean
function dropout_counters.valid(counts)
  if type(counts) ~= 'table' then
    return false
  end
  for path, n in next, counts do
    if type(path) ~= 'string' or type(n) ~= 'number' or n % 1 ~= 0 or n < 0 then
      return false
    end
  end
  return true
end

return dropout_counters
