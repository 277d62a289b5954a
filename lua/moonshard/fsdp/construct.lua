--- What happens when a module is wrapped or sharded in place, before there are units.

local auto_wrap = require 'moonshard.fsdp.auto_wrap'
local dist = require 'moonshard.dist'
local ignored = require 'moonshard.fsdp.ignored'
local members = require 'moonshard.dist.members'
local module_tree = require 'moonshard.nn.tree'
local module_names = require 'moonshard.nn.names'
local options = require 'moonshard.fsdp.options'
local parameter = require 'moonshard_ffi.parameter'
local plan = require 'moonshard.fsdp.plan'
local runtime = require 'moonshard_ffi.fsdp'
local util = require 'moonshard.base.util'
local units = require 'moonshard.fsdp.unit'

local construct = {}

-- Parameters outside nested instances and what is ignored, with the modules that declare them.
local function own_params(module, ignored_set, tensors, holders)
  for _, p in ipairs(module_tree.params(module, false)) do
    if not ignored_set.params[parameter.key(p.tensor)] then
      tensors[#tensors + 1], holders[#holders + 1] = p.tensor, module
    end
  end
  for _, child in ipairs(module:children()) do
    if not module_tree.manager(child) then
      own_params(child, ignored_set, tensors, holders)
    end
  end
  return tensors, holders
end

-- Let all ranks have rank 0's values. Nested instances have synchronised theirs.
local function sync(module, opts, ignored_set, done)
  local tensors, holders = own_params(module, ignored_set, {}, {})
  module_names.assign_names(module_tree.outermost(module))
  units._init_params(opts.param_init_fn, tensors, holders, done)
  for _, tensor in ipairs(tensors) do
    if not parameter.manager(tensor) then
      parameter.materialize(tensor)
      dist.broadcast(tensor:detach(), 0, opts.process_group)
      parameter.touch(tensor)
    end
  end
  for _, b in ipairs(module_tree.buffers(module)) do
    local value = b.entry:uncast():clone()
    dist.broadcast(value, 0, opts.process_group)
    b.entry:prepare_load(value)()
  end
end

local function policy_text(policy)
  return type(policy) == 'function' and 'a function' or tostring(policy)
end

-- Groups that two calls made of the same ranks are one: units over one group are in one tree.
local function share_groups(state, opts)
  local hybrid, its = opts.hybrid_groups, state.hybrid_groups
  if members.same(state.process_group, opts.process_group) and (not hybrid) == (not its)
    and (not hybrid or members.same(its[1], hybrid[1])) then
    state._hold = runtime.hold(opts.process_group)
    state.process_group, state.hybrid_groups = opts.process_group, hybrid
    state.shard_group = hybrid and hybrid[1] or opts.process_group
  end
end

--- Options that came from the root through a policy are complete except for the policy's overrides.
-- Returns what is ignored.
function construct.wrap_below(module, opts, inherited, inner, done)
  local ignored_set = inherited or ignored.of(module, opts)
  for _, below in ipairs(inherited and {} or module:modules()) do
    local state = module_tree.manager(below)
    if state and not state._planned then
      share_groups(state, opts)
    end
  end
  if opts.sync_module_states and not inherited then
    sync(module, opts, ignored_set, done)
  end
  if opts.auto_wrap_policy then
    local reason = 'chosen by ' .. policy_text(opts.auto_wrap_policy)
    auto_wrap.below(module, opts, ignored_set, function(child, own)
      return inner(child, util.merged(own, { _ignored = ignored_set, _reason = reason }))
    end)
  end
  plan.validate(module, ignored_set, opts)
  return ignored_set
end

--- Options as a state takes them, and what is ignored, when a policy of the root chose the module.
---@param given? ms.fsdp.Options
---@return table opts, ms.fsdp.Ignored? inherited
function construct.options_of(given)
  local inherited = type(given) == 'table' and given._ignored or nil
  local reason = inherited and given._reason or 'by hand'
  if inherited then
    given = util.merged(given)
    given._ignored, given._reason = nil, nil
    given.process_group = not given.device_mesh and given.process_group or nil -- the mesh's own
  end
  local opts = options.normalised(given)
  opts.reason = reason
  if not inherited then
    options.warn(opts)
  end
  return opts, inherited
end

return construct
