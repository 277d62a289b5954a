--- Refuses, or warns about, units that would hold frozen and trainable parameters together.

local errors = require 'moonshard.base.errors'
local parameter = require 'moonshard_ffi.parameter'
local tree = require 'moonshard.nn.tree'
local util = require 'moonshard.base.util'

local frozen = {}

-- Children before parents, in order of declaration, each module once.
local function post_order(module, path, seen, out)
  if seen[module] then
    return out
  end
  seen[module] = true
  for name, child in module:named_children() do
    post_order(child, tree.join(path, name), seen, out)
  end
  out[#out + 1] = { module = module, path = path }
  return out
end

-- Parameters a unit around `module` would manage: those below it that no unit before took.
local function managed(module, path, ignored_params, visited, out, seen)
  if visited[module] then
    return out
  end
  visited[module] = true
  for _, p in ipairs(tree.params(module, false)) do
    local key = parameter.key(p.tensor)
    if not ignored_params[key] and not seen[key] then
      seen[key] = true
      out[#out + 1] = { name = tree.join(path, p.name), tensor = p.tensor }
    end
  end
  for name, child in module:named_children() do
    managed(child, tree.join(path, name), ignored_params, visited, out, seen)
  end
  return out
end

local SHOWN = 4 -- names of each list

local function quoted(names)
  local list = "['" .. table.concat(util.slice(names, 1, math.min(#names, SHOWN)), "', '") .. "']"
  return #names > SHOWN and ('%s and %d more'):format(list, #names - SHOWN) or list
end

local function message(path, use_orig_params, trainable, frozen_names, total, trainable_numel)
  local advice = use_orig_params
    and ('We do not recommend wrapping such modules since the gradient memory usage will be higher '
      .. 'than expected (%d numel instead of %d numel before sharding via reduce-scatter). ')
      :format(total, trainable_numel)
    or 'FSDP does not support wrapping such modules when use_orig_params=False. '
  return ('%s has both parameters with requires_grad=True and False. %sIf possible, wrap the '
    .. 'frozen parameters with FSDP separately. The following parameters have requires_grad=True: '
    .. '%s. The following parameters have requires_grad=False: %s.'):format(path, advice,
    quoted(trainable), quoted(frozen_names))
end

--- Check the modules that a policy object is about to wrap, up to the first that mixes parameters.
---@param root ms.nn.Module
---@param to_wrap table<ms.nn.Module, any>
---@param ignored_params table<integer, boolean>
---@param opts table  use_orig_params: true warns, false raises ValueError; process_group
function frozen.validate(root, to_wrap, ignored_params, opts)
  local visited = {}
  for _, entry in ipairs(post_order(root, '', {}, {})) do
    if to_wrap[entry.module] then
      local trainable, frozen_names, total, trainable_numel = {}, {}, 0, 0
      for _, p in ipairs(managed(entry.module, entry.path, ignored_params, visited, {}, {})) do
        local facts = parameter.facts(p.tensor)
        local list = facts.requires_grad and trainable or frozen_names
        list[#list + 1] = p.name
        total = total + facts.numel
        trainable_numel = trainable_numel + (facts.requires_grad and facts.numel or 0)
      end
      if #trainable > 0 and #frozen_names > 0 then
        local text = message(entry.path, opts.use_orig_params, trainable, frozen_names, total,
          trainable_numel)
        if not opts.use_orig_params then
          errors.raise('ValueError', '%s', text)
        end
        errors.warn('UserWarning', text, opts.process_group)
        return -- one warning a model: what LoRA freezes, it freezes in all blocks
      end
    end
  end
end

return frozen
