--- Token files, memory-mapped: what is not read takes no memory, and ranks share what is.

local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.internal.errors'
local runtime = require 'moonshard_ffi.data'
local Subset = require 'moonshard.data.subset'
local collate = require 'moonshard.data.collate'

---@class ms.data
---@field Loader ms.data.Loader
---@field DataLoader ms.data.DataLoader
---@field Dataset ms.data.Dataset
---@field TensorDataset ms.data.TensorDataset
---@field Subset ms.data.Subset
local data = {}

--- See moonshard.data.collate.
data.default_collate = collate.default_collate

--- Split a dataset into Subsets, at random by `seed` alone.
---@param dataset ms.data.Dataset|any[]
---@param lengths number[]  samples of each part, or fractions that sum to 1: what rounding down
---  leaves over goes to the first parts, one sample each
---@param opts? { seed?: integer }  default 0
---@return ms.data.Subset[]
function data.random_split(dataset, lengths, opts)
  opts = errors.options('data.random_split', opts, { seed = 'whole' })
  local seed = arguments.whole('data.random_split', 'seed', opts.seed, 0, 0)
  dataset = collate.dataset('data.random_split', dataset)
  local out, n, first = {}, dataset:len(), 0
  for k, length in ipairs(collate.lengths('data.random_split', dataset, lengths)) do
    local indices = {}
    for b = 1, length do
      indices[b] = 1 + runtime.permute(first + b - 1, n, seed, 0)
    end
    out[k], first = Subset(dataset, indices), first + length
  end
  return out
end

--- Map a file of tokens read-only; 256 can be mapped at a time (OutOfMemory). What others write
--- into the file while it is mapped changes the tokens: put another file in its place instead.
--- Should it become shorter, what is gone reads as zeros, which is said once on stderr, and the
--- loader raises an IOError; what is gone from the last page that is left is found by the loader
--- only.
---@param path string
---@param dtype? 'u8'|'i64'  bytes (default), or 64-bit numbers in this machine's order
---@return ms.Tensor  (n)
function data.tokens(path, dtype)
  if type(path) ~= 'string' then
    errors.raise('TypeError', 'data.tokens takes a path, got a %s', type(path))
  end
  return runtime.map(path, dtype == nil and 'u8' or dtype)
end

--- The bytes of a string as tokens.
---@param text string
---@return integer[]
function data.bytes(text)
  if type(text) ~= 'string' then
    errors.raise('TypeError', 'data.bytes takes a string, got a %s', type(text))
  end
  local out = {}
  for i = 1, #text do
    out[i] = text:byte(i)
  end
  return out
end

--- The string that byte tokens spell.
---@param tokens integer[]
---@return string
function data.text(tokens)
  local out = {}
  for i, token in ipairs(arguments.array('data.text', 'tokens', tokens)) do
    if type(token) ~= 'number' or token % 1 ~= 0 or token < 0 or token > 255 then
      errors.raise('ValueError', 'token %d is %s, expected a byte from 0 to 255', i,
        tostring(token))
    end
    out[i] = string.char(token)
  end
  return table.concat(out)
end

return data
