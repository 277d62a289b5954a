--- Activation checkpointing of functions and modules.

local B = require 'moonshard_ffi'
local CheckpointWrapper = require 'moonshard.nn.checkpoint_wrapper'
local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'
local segments = require 'moonshard.autograd.segments'
local tree = require 'moonshard.nn.tree'

local function apply(module, policy, opts, done)
  for name, child in module:named_children() do
    if not done[child] then
      done[child] = child
      apply(child, policy, opts, done)
      if not (child._is_checkpoint or module._is_checkpoint) and policy(child) then
        done[child] = CheckpointWrapper(child, opts)
      end
    end
    if done[child] ~= child then
      module:set_child(name, done[child])
    end
  end
end

--- Run `fn(...)` and return its results without keeping what its backward needs; backward runs `fn`
--- again. A tensor that `fn` stores in a field is released after that second run, unless ms.keep()
--- was called on it.
---
--- With a module and `{ policy = p }`: wrap, in place, every module below it for which `p(module)`
--- is true and that is not wrapped yet, and return the module. `offload_to_cpu` is the option of
--- nn.checkpoint_wrapper.
---@param fn ms.nn.Module|fun(...): ...
---@return ...
local function checkpoint(fn, ...)
  local first = ...
  if tree.is_module(fn) and type(first) == 'table' and not B.is_ref(first) and first.policy then
    local opts = errors.options('checkpoint', first, { policy = 'fn', offload_to_cpu = 'flag' })
    apply(fn, opts.policy, { offload_to_cpu = opts.offload_to_cpu }, {})
    return fn
  elseif not tree.is_module(fn) then
    arguments.fn('checkpoint', 'fn', fn)
  end
  return segments.run(fn, false, ...)
end

return checkpoint
