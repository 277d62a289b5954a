--- What calls of a module look at below it: fields that may hold something else than at the last.

local tree = require 'moonshard.nn.tree'

local watched = {}

---@class ms.nn.Watched
---@field params { module: ms.nn.Module, param: table }[]  of an outermost one; none of a wrapped
---                                                         model, which watches more itself
---@field buffered? ms.nn.Module[]  those with buffers, but for itself

local function params_of(top)
  local out = {}
  for _, entry in ipairs(tree.walk(top)) do
    for _, param in ipairs(entry.module._params) do
      out[#out + 1] = { module = entry.module, param = param }
    end
  end
  return out
end

-- Those with buffers below a module, or nil: the lists of its children, one behind the other.
local function buffered_of(module)
  local out, seen = {}, {}
  local function add(one)
    if not seen[one] then
      seen[one] = true
      out[#out + 1] = one
    end
  end
  for _, entry in ipairs(tree.children(module)) do
    local child = entry.module
    local below = watched.by(child)
    if rawget(child, '_buffers') then
      add(child)
    end
    for _, one in ipairs(below and below.buffered or {}) do
      add(one)
    end
  end
  return out[1] and out
end

--- Nil when there are none. Listed again after tree.changed().
---@param module ms.nn.Module
---@return ms.nn.Watched?
function watched.by(module)
  local lists = rawget(module, '_fields')
  if lists == false then
    local buffered = buffered_of(module)
    local is_top = not rawget(module, '_owner') and not module._is_fsdp
    local params = is_top and params_of(module) or {}
    lists = (params[1] or buffered) and { params = params, buffered = buffered } or nil
    rawset(module, '_fields', lists)
  end
  return lists
end

--- Fields are plain fields: what was assigned to those of parameters is seen when the outermost
--- module is called next.
function watched.check_params(params)
  for i = 1, #params do
    local module, p = params[i].module, params[i].param
    if not rawequal(rawget(module, p.name), p.tensor) then
      tree.param(module, p)
    end
  end
end

return watched
