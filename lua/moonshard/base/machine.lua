--- Properties of this machine: instruction set and numerics.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local dtype = require 'moonshard.base.dtype'

local C = B.C

local machine = {}

--- Monotonic time in seconds.
---@return number
function machine.time()
  return C.ms_time()
end

--- Instruction set of the CPU kernels: 'x86-64-v2', '-v3' or '-v4'.
---@return string
function machine.cpu_isa()
  return B.string(C.ms_cpu_isa())
end

--- The implementation that multiplies large matrices of this dtype.
---@param name ms.DType
---@return string
function machine.matmul_name(name)
  return B.string(C.ms_matmul_name(dtype.code(name)))
end

--- Work space in bytes that a large product (m, k) x (k, n) needs at most: f32 copies of operands
--- and result where the dtype has no native product, else 0.
---@param name ms.DType
---@param m integer
---@param n integer
---@param k integer
---@return integer
function machine.matmul_scratch(name, m, n, k)
  arguments.whole('matmul_scratch', 'm', m, nil, 0)
  arguments.whole('matmul_scratch', 'n', n, nil, 0)
  arguments.whole('matmul_scratch', 'k', k, nil, 0)
  return tonumber(C.ms_matmul_scratch(dtype.code(name), m, n, k))
end

--- Everything except the inputs that determines the bits of results. Ranks with equal lines compute
--- equal bits.
---@return string
function machine.numerics()
  return B.string(C.ms_numerics())
end

--- Number of matrix primitives created so far; constant after a model's second step.
---@return integer
function machine.matmul_created()
  return tonumber(C.ms_matmul_created())
end

--- Number of cached matrix primitives: at most 256; the least recently used is evicted.
---@return integer
function machine.matmul_kept()
  return tonumber(C.ms_matmul_kept())
end

--- Is standard output a terminal?
---@return boolean
function machine.is_terminal()
  return C.ms_is_terminal(1)
end

return machine
