--- A compiled function or module: its captures, and which of them, if any, a call replays.
---
--- The first call with a signature is eager: units are formed and memory is allocated. The second
--- is captured while it runs eagerly, and later ones replay it. Where a call cannot be captured the
--- signature stays eager, and the children of a module are compiled on their own.

local B = require 'moonshard_ffi'
local Guards = require 'moonshard.compile.guards'
local Recording = require 'moonshard.compile.recording'
local arguments = require 'moonshard_ffi.arguments'
local capture = require 'moonshard.base.capture'
local class = require 'moonshard.base.class'
local errors = require 'moonshard.base.errors'
local finally = require 'moonshard.base.finally'
local program = require 'moonshard_ffi.program'
local report = require 'moonshard.compile.report'
local scope = require 'moonshard.base.scope'
local signature = require 'moonshard.compile.signature'
local tree = require 'moonshard.nn.tree'
local without_jit = require 'moonshard.base.without_jit'

local select, unpack = select, unpack

local MOST = 8

---@class ms.compile.Frame
---@field name string
---@field run fun(...): ...  the eager call
---@field target ms.nn.Module|function
---@field opts table
---@field captures ms.compile.Captured[]  most recent last
---@field seen table<string, boolean>  signatures of eager calls since their last capture
---@field broken table<string, string>  reasons by signatures
---@field missed? string  why the most recent call was not replayed
local Frame = class 'compile.Frame'

---@class ms.compile.Captured
---@field program ffi.cdata*
---@field signature ms.compile.Signature
---@field guards ms.compile.Guards
---@field grads boolean  grad mode
---@field steps ms.compile.Step[]
---@field places string[]  positions in the script, by the operators' places
---@field failures { at: integer, restore: function, state: any }[]
---@field results ms.compile.Value[]
---@field info ms.compile.Capture.Info
---@field position integer  of a running replay: its current step
---@field pinned { at: integer, tensor: ms.Tensor }[]

---@param name string
---@param target ms.nn.Module|function
---@param run fun(...): ...
---@param opts table
function Frame:init(name, target, run, opts)
  self.name, self.target, self.run, self.opts = name, target, run, opts
  self.captures, self.seen, self.broken = {}, {}, {}
end

local function pack(...)
  return { n = select('#', ...), ... }
end

-- -- replay --------------------------------------------------------------------------------------

local function resolve(of, captured, leaves)
  if of.argument then
    return leaves[of.argument]
  elseif of.value then
    return program.get(captured.program, of.value)
  elseif of.entries then
    local out = {}
    for key, entry in next, of.entries do -- in any order
      out[key] = resolve(entry, captured, leaves)
    end
    return out
  end
  return of.constant
end

local function results_of(captured, leaves, i)
  local results = captured.results
  if i > results.n then
    return
  elseif i == results.n then
    return resolve(results[i], captured, leaves)
  end
  return resolve(results[i], captured, leaves), results_of(captured, leaves, i + 1)
end

-- The tensors that a step returned become values of the program.
local function set_results(captured, step, ...)
  local results = step.results
  if select('#', ...) ~= #results then
    errors.raise('RuntimeError', "'%s' returned %d results, recorded with %d", step.name,
      select('#', ...), #results)
  end
  for i = 1, #results do
    local result = select(i, ...)
    if not B.is_ref(result) then
      errors.raise('RuntimeError', "'%s', result %d: it is %s, recorded as a tensor", step.name, i,
        arguments.noun(result))
    elseif not program.set(captured.program, results[i], result) then
      errors.raise('RuntimeError', "'%s', result %d: %s", step.name, i,
        program.misfit(captured.program))
    end
  end
end

local function run_host(captured, step, leaves)
  local a, b, c = resolve(step.a, captured, leaves), resolve(step.b, captured, leaves),
    resolve(step.c, captured, leaves)
  if step.grads ~= captured.grads then
    B.C.ms_grad_enabled_set(step.grads)
  end
  if step.results then
    set_results(captured, step, step.fn(a, b, c))
  else
    step.fn(a, b, c)
  end
  if step.grads ~= captured.grads then
    B.C.ms_grad_enabled_set(captured.grads)
  end
end

local function run_steps(captured, leaves)
  local p, steps = captured.program, captured.steps
  for i = 1, #steps do
    local step = steps[i]
    captured.position = i
    if step.segment then
      for _, draw in ipairs(step.draws) do
        program.draw(p, draw.index, draw.number(draw.stream))
      end
      program.run(p, step.segment)
    else
      run_host(captured, step, leaves)
    end
  end
  return results_of(captured, leaves, 1)
end

local function end_replay(captured, ok, err)
  if not ok then
    B.C.ms_grad_enabled_set(captured.grads)
  end
  for i = ok and 0 or #captured.failures, 1, -1 do
    local failure = captured.failures[i]
    if failure.at < captured.position then
      failure.restore(failure.state, false, err)
    end
  end
  program.done(captured.program)
end

local function replay(self, captured, args)
  captured.position = 0
  captured.info.replays = captured.info.replays + 1
  return finally.run(end_replay, captured, scope.run, self.name, run_steps, captured,
    signature.leaves(captured.signature, args))
end

-- Arguments that the function also has from outside are recorded as one value: they must be the
-- same tensors again.
local function other_pinned(captured, args)
  if not captured.pinned[1] then
    return nil
  end
  local leaves = signature.leaves(captured.signature, args)
  for _, pin in ipairs(captured.pinned) do
    if not rawequal(leaves[pin.at], pin.tensor) then
      return ('tensor %d among the arguments was one that the function has from outside'):format(
        pin.at)
    end
  end
end

local function pinned_of(guards, leaves)
  local pinned = {}
  for i, t in ipairs(leaves) do
    if guards:holds(t) then
      pinned[#pinned + 1] = { at = i, tensor = t }
    end
  end
  return pinned
end

-- The capture that this call replays, with its arguments set.
local function find(self, args)
  local captures = self.captures
  for i = #captures, 1, -1 do
    local captured = captures[i]
    local miss = captured.guards:miss()
      or captured.grads ~= B.C.ms_grad_enabled() and 'the grad mode changed'
    if not miss and not program.fits(captured.program) then
      miss = program.misfit(captured.program)
    end
    if not miss then
      miss = signature.set(captured.signature, captured.program, args)
        or other_pinned(captured, args)
      if not miss then
        return captured
      end
      program.done(captured.program)
    end
    self.missed = i == #captures and miss or self.missed
  end
end

-- -- capture -------------------------------------------------------------------------------------

local function end_capture(recording, ok)
  capture.set_active(nil)
  if not ok then
    program.free(recording.program)
  end
end

local function recorded(self, recording, guards, args, text)
  capture.set_active(recording)
  local results = pack(self.run(unpack(args, 1, args.n)))
  local values = { n = results.n }
  for i = 1, results.n do
    values[i] = recording:result(results[i])
  end
  recording:cut()
  local broken = recording:broken()
  local changed = guards:miss()
  if changed then
    program.breaks(recording.program, changed .. ' while it ran')
  elseif signature.text(args) ~= text then
    program.breaks(recording.program, 'it changes its arguments')
  end
  program.finish(recording.program)
  return results, values, broken or { reason = program.broken(recording.program) }
end

-- Compile the modules below on their own; lists of modules are not called.
local function compile_children(self, module)
  for _, child in ipairs(tree.children(module)) do
    if not rawget(child.module, '_compiled') then
      Frame.of_module(child.module, self.opts)
    end
    if child.module.forward == require('moonshard.nn.module').forward then
      compile_children(self, child.module)
    end
  end
end

local function breaks(self, text, broken)
  self.broken[text] = report.add_break(self.name, broken)
  if not self.opts.fullgraph and tree.is_module(self.target) then
    compile_children(self, self.target)
  end
end

-- Run eagerly and record it.
local function run_captured(self, args, text)
  local its, leaves = signature.of(args)
  local guards = Guards(self.target)
  local ok, recording = pcall(Recording, leaves, self.opts.backend)
  if not ok then -- something else observes the operators of this thread
    return pack(self.run(unpack(args, 1, args.n)))
  end
  local results, values, broken = finally.run(end_capture, recording, without_jit.run, recorded,
    self, recording, guards, args, text)
  if broken.reason then
    program.free(recording.program)
    breaks(self, text, broken)
    return results
  end
  self.seen[text] = nil -- when its guards fail, the next call is eager, too
  local captured = {
    program = recording.program, signature = its, guards = guards, grads = B.C.ms_grad_enabled(),
    steps = recording.steps, places = recording.places, failures = recording.failures,
    results = values, position = 0,
    pinned = pinned_of(guards, leaves),
  }
  captured.info = report.add(self.name, self.opts, captured, #self.captures == 0)
  self.captures[#self.captures + 1] = captured
  return results
end

local function check_broken(self, text)
  if self.broken[text] and self.opts.fullgraph then
    errors.raise('RuntimeError', "compile: %s cannot be replayed as one graph: %s; change it, or "
      .. 'leave out fullgraph to run such parts eagerly', self.name, self.broken[text])
  end
end

local function warn_often(self)
  if not self.warned then
    self.warned = true
    errors.warn('UserWarning', ('compile: %s has %d captures, the most that are kept, so other '
      .. 'calls run eagerly; the last one differs: %s'):format(self.name, MOST,
      self.missed or 'unknown'))
  end
end

-- A call that no capture fits.
local function run_other(self, args)
  local text = signature.text(args)
  check_broken(self, text)
  if self.broken[text] then
    return self.run(unpack(args, 1, args.n))
  elseif #self.captures >= MOST then
    warn_often(self)
    return self.run(unpack(args, 1, args.n))
  elseif not self.seen[text] then
    self.seen[text] = true
    return self.run(unpack(args, 1, args.n))
  end
  local results = run_captured(self, args, text)
  check_broken(self, text)
  return unpack(results, 1, results.n)
end

--- Call it: compiled, except inside a call that is being captured, which records its operators.
---@return ...
function Frame:call(...)
  if capture.active() then
    return self.run(...)
  end
  local args = pack(...)
  local captured = find(self, args)
  if captured then
    return replay(self, captured, args)
  end
  return run_other(self, args)
end

--- Bytes that a forward and its backward take by the plans, the largest of all captures: see
--- ms.compile.Capture.Info. 0 before the first capture.
---@return integer
function Frame:planned_peak()
  local most = 0
  for _, captured in ipairs(self.captures) do
    most = math.max(most, program.info(captured.program).planned_peak)
  end
  return most
end

--- Compile a module in place: its later calls are those of the frame.
---@param module ms.nn.Module
---@param opts table
function Frame.of_module(module, opts)
  local call = module._eager_call
  local frame = Frame(tree.describe(module), module, function(...)
    return call(module, ...)
  end, opts)
  rawset(module, '_compiled', frame)
  return frame
end

return Frame
