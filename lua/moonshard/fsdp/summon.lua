--- Full parameters for a while: private full-precision copies behind the parameters' handles.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local capture = require 'moonshard.base.capture'
local errors = require 'moonshard.base.errors'
local finally = require 'moonshard.base.finally'
local plan = require 'moonshard.fsdp.plan'
local runtime = require 'moonshard_ffi.fsdp'
local tree = require 'moonshard.nn.tree'

---@class ms.fsdp.SummonOptions
---@field recurse? boolean  instances below the module, too (default true)
---@field writeback? boolean  keep what was written, each rank its own elements (default true): all
---  ranks must have written the same
---@field rank0_only? boolean  only rank 0 needs the values; needs writeback = false
---@field offload_to_cpu? boolean
---@field with_grads? boolean  grad() gives full gradients, too: zeros for the elements of ranks
---  without one, nil where no rank has one. A rank without one has none afterwards, unless the
---  function writes other values there; not with offload_to_cpu

local KNOWN = {
  recurse = 'flag', writeback = 'flag', rank0_only = 'flag', offload_to_cpu = 'flag',
  with_grads = 'flag',
}

-- The outermost instances below a module.
local function roots_of(module, out)
  local state = tree.manager(module)
  if state then
    out[#out + 1], out[state] = not out[state] and state or nil, true
    return out
  end
  for _, child in ipairs(module:children()) do
    roots_of(child, out)
  end
  return out
end

local function check(opts, roots)
  local writeback = opts.writeback ~= false
  local use_orig_params, no_shard = true, false
  for _, root in ipairs(roots) do
    use_orig_params = use_orig_params and root.use_orig_params
    for _, unit in ipairs(root:units()) do
      no_shard = no_shard or unit.strategy == 'NO_SHARD'
    end
  end
  if opts.with_grads and opts.offload_to_cpu then
    errors.raise('NotImplementedError', 'with_grads=True, use_orig_params=%s, offload_to_cpu=%s is '
      .. 'not supported yet', tostring(use_orig_params), tostring(opts.offload_to_cpu or false))
  elseif opts.offload_to_cpu and no_shard then
    errors.raise('NotImplementedError', 'offload_to_cpu=True and NO_SHARD is not supported yet')
  elseif writeback and opts.rank0_only then
    errors.raise('NotImplementedError', 'writeback=True and rank0_only=True is not supported yet')
  end
  if opts.offload_to_cpu and not opts.rank0_only then
    errors.warn('UserWarning', 'offload_to_cpu=True and rank0_only=False results in redundant '
      .. 'copies on every rank', roots[1] and roots[1].process_group)
  end
  return writeback
end

local function close(held, ok, err)
  local problem
  if not ok and held[1] then -- peers go on to what is collective in closing
    runtime.failed(held[1].root.process_group, err)
  end
  for i = #held, 1, -1 do
    local handle = held[i].handle
    if B.C.ms_fsdp_tree_summoned(handle) then -- else it never was, or a first run has closed it
      local closed, why = pcall(B.calls.fsdp_tree_unsummon, handle, ok and held.writeback)
      problem = problem or not closed and why or nil
    end
  end
  if ok and problem then
    error(problem, 0)
  end
end

-- The units of an instance and, with `recurse`, of those below it, by tree in module order.
local function units_of(root, recurse)
  local trees, units = { root._tree }, { [root._tree] = {} }
  for _, instance in ipairs(recurse and plan.instances(root) or { root }) do
    local its = instance._tree
    if not units[its] then
      units[its] = {}
      trees[#trees + 1] = its
    end
    table.insert(units[its], instance._unit)
  end
  return trees, units
end

local function summoned(held, roots, opts, fn, ...)
  for _, root in ipairs(roots) do
    root:_lazy_init()
    tree.params(root.outer_module) -- the fields must have the parameters that are summoned
    local trees, units = units_of(root, opts.recurse ~= false)
    for _, its in ipairs(trees) do
      if not B.C.ms_fsdp_tree_summoned(its.handle) then
        held[#held + 1] = its -- first: released even after an error
      end
      runtime.summon(its.handle, units[its], opts.with_grads or false)
    end
  end
  return fn(...)
end

--- Run `fn(...)` with full parameters of the module's instances, in full precision and their
--- original shapes. Only those are gathered. Collective.
--- AssertionError during forward or backward, and inside another call of this; and of forward,
--- backward, steps, loading, state dicts, hash() and checkpoints inside `fn`: those use the shards
--- behind the copies.
---@param module ms.nn.Module  wrapped, or with wrapped modules below it
---@param opts? ms.fsdp.SummonOptions
---@param fn fun(...): ...
---@return ...
local function summon_full_params(module, opts, fn, ...)
  capture.breaks 'parameters are summoned'
  if not tree.is_module(module) then
    arguments.refuse('summon_full_params', 'module', module, 'a module')
  end
  opts = errors.options('summon_full_params', opts, KNOWN)
  arguments.fn('summon_full_params', 'fn', fn)
  local roots = opts.recurse == false and { tree.manager(module) } or roots_of(module, {})
  local held = { writeback = check(opts, roots) }
  return finally.run(close, held, summoned, held, roots, opts, fn, ...)
end

return summon_full_params
