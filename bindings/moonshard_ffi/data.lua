--- Token files, windows of tokens, and sampling of tokens: see moonshard/data.h.

local B = require 'moonshard_ffi'
local parameter = require 'moonshard_ffi.parameter'

local calls = B.calls

local data = {}

---@param path string
---@param dtype 'u8'|'i64'
---@return ms.Tensor  (n)
function data.map(path, dtype)
  return calls.data_map(path, parameter.dtype(dtype))
end

local count = B.new('int64_t[1]')

---@return integer
function data.n_windows(tokens, context)
  calls.data_n_windows(tokens, context, count)
  return tonumber(count[0])
end

--- Fill an i64 tensor (n) with tokens, beginning at index `first` (from 0).
function data.read(out, tokens, first)
  calls.data_read(out, tokens, first)
end

--- Fill x and y (B, T) with the windows of B samples from `sample` on. These become the current
--- samples of dropout.
---@param per_epoch integer
---@param shuffle boolean
function data.windows(x, y, tokens, sample, per_epoch, seed, shuffle)
  calls.data_windows(x, y, tokens, sample, per_epoch, seed, shuffle)
end

--- The index of sample i in an epoch over n samples, shuffled by (seed, epoch) like windows.
---@param i integer  from 0
---@return integer  from 0
function data.permute(i, n, seed, epoch)
  B.check(B.C.ms_data_permute(count, i, n, parameter.bits(seed), epoch))
  return tonumber(count[0])
end

local sizes = B.new('int64_t[2]')

--- An i64 tensor (rows, columns) of numbers in C memory.
---@param values ffi.cdata*  double *
---@return ms.Tensor
function data.table_of(values, rows, columns)
  sizes[0], sizes[1] = rows, columns
  return calls.tensor_from_doubles(B.C.MS_DTYPE_I64, 2, sizes, values, rows * columns)
end

local digest = B.new('uint64_t[1]')

--- A number that distinguishes token streams by length and ends.
---@return number
function data.digest(tokens)
  calls.data_digest(tokens, digest)
  return tonumber(digest[0] / 2 ^ 11)
end

--- XXH3 of bytes, as 16 hexadecimal digits.
---@param bytes string|ffi.cdata*
---@param n? integer  default: those of the string
---@return string
function data.hash(bytes, n)
  return bit.tohex(B.C.ms_hash_bytes(bytes, n or #bytes), 16)
end

local sampling = B.new('ms_sampling')

--- Draw a token from logits (V).
---@param logits ms.Tensor
---@param how ms.models.GenerateOptions  with a temperature
---@param seen integer[]  tokens for the repetition penalty
---@param seed integer|ffi.cdata*
---@param draw integer
---@return integer
function data.sample(logits, how, seen, seed, draw)
  local ids = (how.repetition_penalty or 1) ~= 1 and B.new('int64_t[?]', #seen, seen) or nil
  sampling.seen, sampling.n_seen = ids, ids and #seen or 0
  sampling.repetition_penalty = how.repetition_penalty or 1
  sampling.temperature, sampling.top_k = how.temperature, how.top_k or 0
  sampling.top_p, sampling.min_p = how.top_p or 1, how.min_p or 0
  calls.data_sample(count, logits, sampling, parameter.bits(seed), draw)
  return tonumber(count[0])
end

return data
