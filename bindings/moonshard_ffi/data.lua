--- Token files, windows of them, drawing tokens: see moonshard/data.h.

local B = require 'moonshard_ffi'
local parameter = require 'moonshard_ffi.parameter'

local C, calls = B.C, B.calls

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

--- Fill x and y (B, T) with the windows of B samples from `first` on.
---@param epoch integer  negative: in order
function data.windows(x, y, tokens, first, seed, epoch)
  calls.data_windows(x, y, tokens, first, seed, epoch)
end

--- Tell dropout which global samples come next.
function data.set_sample_base(base)
  C.ms_sample_base_set(base)
end

---@return integer
function data.sample(logits, temperature, top_k, seed, draw)
  calls.data_sample(count, logits, temperature, top_k, seed, draw)
  return tonumber(count[0])
end

return data
