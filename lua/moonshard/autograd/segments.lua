--- Activation checkpointing (arXiv:1604.06174): what a function saves for its backward is freed,
--- and computed again at the start of its backward. Gradients have the same bits.
---
--- Arguments and results may be tensors or other values; tables among the arguments are not
--- searched for tensors. The second run uses the random masks of the forward. Running statistics of
--- a module, as in BatchNorm, are updated twice for each batch.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local autograd = require 'moonshard.autograd'
local capture = require 'moonshard.base.capture'
local errors = require 'moonshard.base.errors'
local finally = require 'moonshard.base.finally'
local offloaded = require 'moonshard.autograd.offloaded'
local random = require 'moonshard.base.random'
local scope = require 'moonshard.base.scope'

local C, calls, core = B.C, B.calls, B.core

local function pack(...)
  return { n = select('#', ...), ... }
end

---@class ms.nn.Segment  everything needed to run a segment again
---@field fn fun(...): ...
---@field args table  with their own handles
---@field versions table<integer, integer>
---@field rng ms.Random.State
---@field places integer[]  indices of the results that have gradients
---@field hosted table<integer, ms.Tensor>  values of arguments in host memory

-- Arguments with handles that live as long as the segment. A leaf stays itself, because it collects
-- its own gradient.
local function kept(args)
  local out, versions = { n = args.n }, {}
  for i = 1, args.n do
    out[i] = args[i]
    if B.is_ref(args[i]) then
      out[i] = scope.keep(args[i]:is_leaf() and args[i]:requires_grad() and args[i]
        or calls.tensor_alias(args[i]))
      versions[i] = args[i]:version()
    end
  end
  return out, versions
end

local function check_versions(segment)
  for i, version in next, segment.versions do
    if segment.args[i]:version() ~= version then
      errors.raise('RuntimeError', 'checkpoint: argument %d was modified by an in-place operation: '
        .. 'it is at version %d, expected %d', i, segment.args[i]:version(), version)
    end
  end
end

local function run_again(segment, grads)
  local results = pack(autograd.enable_grad(segment.fn,
    unpack(segment.args, 1, segment.args.n)))
  local n = #segment.places
  local refs = B.new('ms_ref[?]', 2 * n)
  for k, place in ipairs(segment.places) do
    refs[k - 1] = arguments.tensor('checkpoint', 'result ' .. place, results[place])
    refs[n + k - 1] = grads[k - 1]
  end
  B.check(core.extend(refs, n))
end

local function restore(state)
  random.set_rng_state(state)
end

local function recompute(segment, grads)
  check_versions(segment)
  local before = random.get_rng_state()
  random.set_rng_state(segment.rng)
  finally.run(restore, before, run_again, segment, grads)
end

-- Name of the scope that releases tensors made by the second run, except those it keeps.
local AGAIN = "a checkpoint's forward, run again by backward"

local function recompute_of(segment)
  return function(address)
    scope.run(AGAIN, recompute, segment, B.cast('ms_ref *', address))
    if not C.ms_graph_retained() then
      for i in next, segment.versions do
        if not (segment.args[i]:is_leaf() and segment.args[i]:requires_grad()) then
          segment.args[i]:release()
        end
      end
      for _, values in next, segment.hosted do
        values:release()
      end
      segment.args, segment.versions, segment.hosted = { n = 0 }, {}, {}
    end
  end
end

-- Attach a node for the segment to the results that it computed; other results are unchanged.
local function record(segment, since, results)
  local places = {}
  for i = 1, results.n do
    if B.is_ref(results[i]) and results[i]:requires_grad() then
      places[#places + 1] = i
    end
  end
  if #places == 0 then
    return results
  end
  segment.places = places
  local n = #places
  local refs = B.new('ms_ref[?]', 2 * n)
  for k, place in ipairs(places) do
    refs[k - 1] = results[place]
  end
  B.check(core.checkpoint(refs, n, since, recompute_of(segment)))
  for k, place in ipairs(places) do
    local held, new = results[place], refs[n + k - 1]
    held:release() -- also releases the graph
    held.ptr, held.generation = new.ptr, new.generation -- also the function's own references
    if B.state.depth == 0 then
      B.own(held)
    end
  end
  return results
end

local segments = {}

--- Run `fn(...)`; backward will run it again.
---@param fn fun(...): ...
---@param offloads boolean  keep arguments in host memory between forward and backward
---@return ...
function segments.run(fn, offloads, ...)
  if not autograd.is_grad_enabled() then
    return fn(...)
  end
  local args, hosted = pack(...), {}
  if offloads and offloaded.is_useful() then
    fn, args, hosted = offloaded.of(fn, args)
  end
  local segment = { fn = fn, rng = random.get_rng_state(), hosted = hosted }
  segment.args, segment.versions = kept(args)
  local since = tonumber(C.ms_graph_now())
  capture.begin_checkpoint()
  local results = record(segment, since,
    pack(scope.run('a checkpoint', fn, unpack(args, 1, args.n))))
  capture.end_checkpoint()
  return unpack(results, 1, results.n)
end

return segments
