--- Recorded programs (moonshard/program.h). Values and segments count from 0, as in C.

local B = require 'moonshard_ffi'

local C, calls = B.C, B.calls

local program = {}

local made = B.new 'ms_program *[1]'
local number, fits = B.new 'int32_t[1]', B.new 'bool[1]'

local function text(chars)
  return chars ~= nil and B.string(chars) or nil
end

local LEVELS = {
  replay = C.MS_PROGRAM_REPLAY, partition = C.MS_PROGRAM_PARTITION, fuse = C.MS_PROGRAM_FUSE,
}

local KINDS = {
  [C.MS_VALUE_ARGUMENT] = 'argument', [C.MS_VALUE_OUTER] = 'outer', [C.MS_VALUE_RESULT] = 'result',
}

--- Record this thread's operators from now on. RuntimeError if they are observed already.
---@param level 'replay'|'partition'|'fuse'
---@return ffi.cdata* program  freed when it is collected
function program.begin(level)
  B.check(C.ms_program_begin(made, LEVELS[level]))
  return B.gc(made[0], C.ms_program_free)
end

--- Free it before it is collected. Also ends the recording.
function program.free(p)
  C.ms_program_free(B.gc(p, nil))
end

program.argument, program.finish, program.run = calls.program_argument, calls.program_end,
  calls.program_run
program.get, program.draw = calls.program_get, calls.program_draw

--- Number of random masks recorded so far.
---@return integer
function program.n_draws(p)
  return C.ms_program_n_draws(p)
end

--- End the current segment.
---@return integer segment  -1 if it has no operator
function program.cut(p)
  B.check(C.ms_program_cut(p, number))
  return number[0]
end

--- An activation checkpoint begins; region_end() ends it.
program.region_begin, program.region_end = calls.program_region_begin, calls.program_region_end

--- The number of the value that `t` shows; -1 if it is not a value of the program.
---@param t ms.Tensor
---@param keep boolean  until the run ends, not only until the next segment ran
---@return integer
function program.value(p, t, keep)
  calls.program_value(p, t, keep, number)
  return number[0]
end

--- Declare a tensor that the step of the host made; -1 if it cannot be one.
---@param step string  its name
---@param t ms.Tensor
---@return integer value
function program.made(p, step, t)
  calls.program_made(p, step, t, number)
  return number[0]
end

--- Stop recording, or go on.
---@param pause boolean
function program.pause(p, pause)
  C.ms_program_pause(p, pause)
end

--- Set the place of the operators that follow.
---@param place integer
function program.place(p, place)
  C.ms_program_place(p, place)
end

---@param reason string
function program.breaks(p, reason)
  C.ms_program_break(p, reason)
end

--- Why it cannot be replayed, or nil.
---@return string?
function program.broken(p)
  return text(C.ms_program_broken(p))
end

--- Set an argument of the next run, or what a step made in this one; false if it differs from the
--- recorded one.
---@param value integer
---@param t ms.Tensor
---@return boolean
function program.set(p, value, t)
  calls.program_set(p, value, t, fits)
  return fits[0]
end

--- Are the tensors that it uses besides its arguments as recorded?
---@return boolean
function program.fits(p)
  B.check(C.ms_program_fits(p, fits))
  return fits[0]
end

--- How the tensor that did not fit differs.
---@return string
function program.misfit(p)
  return text(C.ms_program_misfit(p))
end

function program.done(p)
  C.ms_program_done(p)
end

local function numbers(array, n)
  local out = {}
  for i = 0, n - 1 do
    out[i + 1] = array[i]
  end
  return out
end

---@class ms.program.Op  a recorded operator
---@field name string
---@field operands integer[]  values, -1 for an omitted operand
---@field results integer[]  values
---@field segment integer
---@field place integer
---@field in_place boolean  the results are existing values, which it writes

--- The recorded operators in order.
---@return ms.program.Op[]
function program.ops(p)
  local op, info, out = B.new 'ms_program_op', B.new 'ms_program_info', {}
  C.ms_program_info_get(p, info)
  for i = 0, info.ops - 1 do
    B.check(C.ms_program_op_get(p, i, op))
    out[i + 1] = {
      name = B.string(op.name), operands = numbers(op['in'], op.n_in),
      results = numbers(op.out, op.n_out), segment = op.step, place = op.place,
      in_place = op.in_place,
    }
  end
  return out
end

--- A value as it was recorded.
---@return { kind: 'argument'|'outer'|'result', dtype: string, shape: integer[], name?: string }
function program.describe(p, value)
  local info, shape = B.new 'ms_program_value_info', {}
  B.check(C.ms_program_value_get(p, value, info))
  for d = 0, info.ndim - 1 do
    shape[d + 1] = tonumber(info.shape[d])
  end
  return {
    kind = KINDS[info.kind], dtype = B.string(C.ms_dtype_name(info.dtype)), shape = shape,
    name = text(info.name),
  }
end

---@class ms.program.Info  see moonshard/program.h
---@field segments integer
---@field ops integer
---@field kernels integer
---@field saved_bytes integer
---@field arena_bytes integer
---@field planned_peak integer
---@field unplanned_peak integer
---@field backward_plans integer
---@field backward_kernels integer

---@return ms.program.Info
function program.info(p)
  local info, memory = B.new 'ms_program_info', B.new 'ms_program_memory'
  C.ms_program_info_get(p, info)
  B.check(C.ms_program_memory_get(p, memory))
  return {
    segments = info.segments, ops = info.ops, kernels = info.kernels,
    saved_bytes = tonumber(info.saved_bytes), arena_bytes = tonumber(info.arena_bytes),
    planned_peak = tonumber(memory.planned_peak),
    unplanned_peak = tonumber(memory.unplanned_peak),
    backward_plans = memory.backward_plans, backward_kernels = memory.backward_kernels,
  }
end

return program
