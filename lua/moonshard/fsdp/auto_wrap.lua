--- Applies a wrap policy to a module tree.
---
--- `wrapper(module, options)` shards a module and returns the module that replaces it.

local errors = require 'moonshard.base.errors'
local frozen = require 'moonshard.fsdp.frozen'
local options = require 'moonshard.fsdp.options'
local parameter = require 'moonshard_ffi.parameter'
local policies = require 'moonshard.fsdp.policies'
local util = require 'moonshard.base.util'
local tree = require 'moonshard.nn.tree'

local auto_wrap = {}

-- -- checks --------------------------------------------------------------------------------------

local function check_not_wrapped(root)
  for name, module in root:named_modules() do
    if tree.manager(module) then
      errors.raise('ValueError', 'FSDP auto wrapping requires modules to not already have FSDP '
        .. 'applied but found %s in %s', name, root._name)
    end
  end
end

-- [Note: ignored classes] With mixed precision and a policy, modules of the classes to ignore
-- (their statistics need full precision) are wrapped alone with mixed precision off; hooks cast
-- what they are given up to f32 and what they return back.
local function modules_in_full_precision(root, opts)
  local found, classes = {}, opts.mixed_precision.module_classes_to_ignore
  local low = opts.mixed_precision.param_dtype ~= nil
  for _, module in ipairs(root:modules()) do
    if low and util.is_any(module, classes) then
      found[#found + 1] = module
    end
  end
  return found
end

local function map_tensors(list, fn)
  for i = 1, list.n or #list do
    if parameter.is_tensor(list[i]) and parameter.facts(list[i]).floating then
      list[i] = fn(list[i])
    end
  end
  return list
end

local function cast_around(module)
  local given
  module:register_forward_pre_hook(function(_, args)
    return map_tensors(args, function(x)
      given = x:dtype()
      return x:to('f32')
    end)
  end)
  module:register_forward_hook(function(_, _, output)
    local is_list = type(output) == 'table' and output.n ~= nil
    local list = map_tensors(is_list and output or { output }, function(y)
      return given and y:to(given) or y
    end)
    if not is_list then
      return list[1]
    end
  end)
end

local function warn_full_precision(modules, group)
  local names, seen = {}, {}
  for _, module in ipairs(modules) do
    if not seen[module._name] then
      seen[module._name] = true
      names[#names + 1] = module._name
    end
  end
  errors.warn('UserWarning', ('Both mixed precision and an auto_wrap_policy were specified to '
    .. 'FSDP, where the wrapped module has submodules of type %s. These modules will be wrapped as '
    .. 'separate FSDP instances with mixed precision disabled.')
    :format(table.concat(names, ', ')), group)
end

-- -- callable policies ---------------------------------------------------------------------------

local function numel_of(module, ignored_params)
  local total = 0
  for _, p in ipairs(tree.params(module)) do
    if not ignored_params[parameter.key(p.tensor)] then
      total = total + parameter.facts(p.tensor).numel
    end
  end
  return total
end

-- Returns the module that replaces this one, and the number of its parameters that were wrapped.
local function recurse(module, policy, wrapper, ignored, only_children, done)
  if done[module] then
    return done[module], 0
  end
  local numel = numel_of(module, ignored.params)
  if not policy(module, true, numel) then
    return module, 0
  end
  local wrapped = 0
  for name, child in module:named_children() do
    if not ignored.modules[child] then
      local replaced, n = recurse(child, policy, wrapper, ignored, false, done)
      if replaced ~= child then
        module:set_child(name, replaced)
      end
      wrapped = wrapped + n
    end
  end
  local answer = not only_children and policy(module, false, numel - wrapped)
  if answer then
    done[module] = wrapper(module, type(answer) == 'table' and answer or {})
    return done[module], numel
  end
  return module, wrapped
end

-- -- policy objects ------------------------------------------------------------------------------

-- Children first; a module with several parents is wrapped once.
local function apply(module, chosen, wrapper, done, visited)
  if visited[module] then
    return
  end
  visited[module] = true
  for name, child in module:named_children() do
    apply(child, chosen, wrapper, done, visited)
    if chosen[child] then
      done[child] = done[child] or wrapper(child, chosen[child])
      module:set_child(name, done[child])
    end
  end
end

local function chosen_map(list)
  local map = {}
  for _, entry in ipairs(list) do
    map[entry.module] = entry.options
  end
  return map
end

local function warn_unmatched(root, group, policy)
  errors.warn('UserWarning', ('auto_wrap_policy wrapped no module: %s is one unit, gathered as a '
    .. 'whole%s'):format(root._name,
      util.is(policy, policies.ModuleWrapPolicy) and '; it has none of ' .. tostring(policy) or ''),
    group)
end

--- Wrap what the policy of `opts` chooses below `root`; the root itself is the caller's.
---@param root ms.nn.Module
---@param opts table  normalised options of the root
---@param ignored ms.fsdp.Ignored
---@param wrapper fun(module: ms.nn.Module, options: table): ms.nn.Module
function auto_wrap.below(root, opts, ignored, wrapper)
  local policy = opts.auto_wrap_policy
  check_not_wrapped(root)
  local inherited = util.merged(opts)
  inherited.auto_wrap_policy, inherited.ignored_modules, inherited.ignored_states = nil, nil, nil
  inherited.reason = nil

  local full = modules_in_full_precision(root, opts)
  local is_full = {}
  for _, module in ipairs(full) do
    is_full[module] = true
    cast_around(module)
  end
  if #full > 0 then
    warn_full_precision(full, opts.process_group)
  end
  local found = false
  local function wrapped(module, own)
    found = true
    if is_full[module] then
      own = util.merged(own, { mixed_precision = options.full_precision() })
    end
    return wrapper(module, own)
  end

  if util.is(policy, policies.Policy) then
    local chosen = chosen_map(policy:choose(root, ignored.modules, inherited))
    for _, module in ipairs(full) do
      chosen[module] = chosen[module] or inherited
    end
    frozen.validate(root, chosen, ignored.params, opts)
    apply(root, chosen, wrapped, {}, {})
    if not found and not chosen[root] then
      warn_unmatched(root, opts.process_group, policy)
    end
    return
  end
  if #full > 0 then
    policy = policies.or_policy {
      policy,
      policies.callable_policy(function(module, looking)
        return looking or is_full[module] == true
      end),
    }
  end
  recurse(root, policy, function(module, overrides)
    return wrapped(module, util.merged(inherited, overrides))
  end, ignored, true, {})
  if not found and not policy(root, false, numel_of(root, ignored.params)) then
    warn_unmatched(root, opts.process_group)
  end
end

return auto_wrap
