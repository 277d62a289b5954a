--- The steps of a call that is being captured: segments of operators, which the runtime records,
--- and functions of the host between them.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local capture = require 'moonshard.base.capture'
local class = require 'moonshard.base.class'
local finally = require 'moonshard.base.finally'
local program = require 'moonshard_ffi.program'
local trace = require 'moonshard.base.trace'

---@class ms.compile.Step
---@field segment? integer  operators
---@field draws? { index: integer, number: function, stream: any }[]  their random masks
---@field name? string  a function of the host
---@field where? string  'file:line' of the script that called it
---@field fn? fun(a: any, b: any, c: any): ...
---@field grads? boolean  grad mode
---@field results? integer[]  values of the program that it makes
---@field a? ms.compile.Value
---@field b? ms.compile.Value
---@field c? ms.compile.Value

---@class ms.compile.Value  what a step or the caller gets in a replay: one of
---@field argument? integer  the leaf of the arguments, from 1
---@field value? integer  of the program
---@field entries? table<any, ms.compile.Value>  a new table
---@field has_tensor? boolean  among the entries
---@field constant? any

---@class ms.compile.Recording
---@field program ffi.cdata*
---@field leaves ms.Tensor[]  tensors among the arguments
---@field steps ms.compile.Step[]
---@field draws table[]  random masks of the current segment
---@field n_draws integer  of all segments
---@field places string[]  positions in the script, by the operators' places
---@field place_of table<string, integer>
---@field where? string  position of the call that ran last before it broke, if it did
---@field module? string  whose forward that was in
---@field at fun()  called before each call with tensors
---@field failures { at: integer, restore: function, state: any }[]  called by failed replays, the
---  last first
local Recording = class 'compile.Recording'

---@param leaves ms.Tensor[]
---@param backend 'replay'|'partition'|'fuse'
function Recording:init(leaves, backend)
  self.program, self.leaves, self.steps, self.failures = program.begin(backend), leaves, {}, {}
  self.draws, self.n_draws = {}, 0
  self.places, self.place_of = {}, {}
  self.at = function()
    self:note_position()
  end
  for _, t in ipairs(leaves) do
    program.argument(self.program, t)
  end
end

local info = B.new 'ms_tensor_info'

local function is_leaf_with_grad(t)
  B.calls.tensor_describe(t, info)
  return info.is_leaf and info.requires_grad
end

-- keep: until the replay ends; depth: of tables that may hold tensors
local function value_of(self, value, keep, depth)
  if B.is_ref(value) then
    for i, t in ipairs(self.leaves) do
      if rawequal(t, value) then
        return { argument = i }
      end
    end
    if is_leaf_with_grad(value) then
      return { constant = value } -- it collects its own gradient
    end
    return { value = program.value(self.program, value, keep) }
  elseif type(value) ~= 'table' or getmetatable(value) ~= nil or depth == 0 then
    return { constant = value }
  end
  local entries, has_tensor = {}, false
  for key, entry in next, value do -- in any order: a number for each
    local found = value_of(self, entry, keep, depth - 1)
    entries[key] = found.has_tensor == false and { constant = entry } or found
    has_tensor = has_tensor or entries[key].constant == nil
  end
  return { entries = entries, has_tensor = has_tensor }
end

--- The value of an argument of a step: tables without tensors stay the same table.
---@param value any
---@return ms.compile.Value
function Recording:operand(value)
  local found = value_of(self, value, false, 2)
  return found.has_tensor == false and { constant = value } or found
end

local function holds_tensor(value, seen)
  if type(value) ~= 'table' or seen[value] then
    return B.is_ref(value)
  end
  seen[value] = true
  for _, entry in next, value do
    if holds_tensor(entry, seen) then
      return true
    end
  end
  return false
end

--- The value of a result. Tables are new in each replay.
---@param value any
---@return ms.compile.Value
function Recording:result(value)
  local found = value_of(self, value, true, 1)
  for _, entry in next, found.entries or { found } do
    if type(entry.constant) == 'table' and holds_tensor(entry.constant, {}) then
      self:breaks('a result is a table of tensors inside an object or another table')
    end
  end
  return found
end

--- End the segment that was recorded so far.
function Recording:cut()
  local segment = program.cut(self.program)
  if segment >= 0 then
    if program.n_draws(self.program) ~= self.n_draws then
      self:breaks 'a random mask is drawn outside the library'
    end
    self.steps[#self.steps + 1] = { segment = segment, draws = self.draws }
    self.draws = {}
  end
end

local function resume(self)
  capture.set_active(self)
  program.pause(self.program, false)
end

-- Tensors that a step returned are values, which each replay sets.
local function note_results(self, step, ...)
  for i = 1, program.broken(self.program) and 0 or select('#', ...) do
    local result = select(i, ...)
    if B.is_ref(result) then
      step.results = step.results or {}
      step.results[i] = program.made(self.program, step.name, result)
    else
      self:breaks(("'%s' returned %s, expected tensors"):format(step.name, arguments.noun(result)))
    end
  end
  return ...
end

--- See moonshard.base.capture.
function Recording:step(name, fn, a, b, c)
  self:note_position()
  local step = { name = name, where = self.where, fn = fn, grads = B.C.ms_grad_enabled() }
  if not program.broken(self.program) then
    self:cut()
    step.a, step.b, step.c = self:operand(a), self:operand(b), self:operand(c)
    self.steps[#self.steps + 1] = step
  end
  program.pause(self.program, true) -- replays call fn, so its operators are not recorded
  capture.set_active(nil)
  return note_results(self, step, finally.run(resume, self, fn, a, b, c))
end

--- See moonshard.base.capture.
function Recording:drew(number, stream)
  if program.n_draws(self.program) == self.n_draws then
    return -- of probability 0
  end
  self.draws[#self.draws + 1] = { index = self.n_draws, number = number, stream = stream }
  self.n_draws = self.n_draws + 1
end

--- See moonshard.base.capture.
function Recording:begin_checkpoint()
  program.region_begin(self.program)
end

--- See moonshard.base.capture.
function Recording:end_checkpoint()
  program.region_end(self.program)
end

--- See moonshard.base.capture.
function Recording:on_failure(restore, state)
  local failures = self.failures
  failures[#failures + 1] = { at = #self.steps, restore = restore, state = state }
end

--- The operators that follow are of the script's current line.
function Recording:note_position()
  if program.broken(self.program) then
    return
  end
  local where, module = B.errors.caller(), trace.module()
  where = where ~= '' and where or nil
  if where and not self.place_of[where] then
    self.places[#self.places + 1] = where
    self.place_of[where] = #self.places
  end
  program.place(self.program, self.place_of[where or ''] or 0)
  self.where, self.module = where, module and module._scope
end

--- See moonshard.base.capture.
function Recording:breaks(reason)
  self:note_position()
  program.breaks(self.program, reason)
end

--- Why it cannot be replayed, if an operator or step was the reason.
---@return ms.compile.Break?
function Recording:broken()
  local reason = program.broken(self.program)
  return reason and { reason = reason, where = self.where, module = self.module }
end

return Recording
