--- Token files, memory-mapped: what is not read takes no memory, and ranks share what is.

local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'
local runtime = require 'moonshard_ffi.data'
local TokenFile = require 'moonshard.data.token_file'
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
---
--- u16 and u32 numbers, the lowest byte first, are those of nanoGPT's .bin files, or follow a
--- header of llm.c (magic 20240520, version 1: u16; magic 20240801, version 7: u32), which is
--- checked and left out. FormatError where a file has another size than its header or dtype asks
--- for.
---@param path string
---@param dtype? 'u8'|'i64'|'u16'|'u32'  bytes, 64-bit numbers in this machine's order, unsigned
---  numbers; default: what a header of llm.c names, else 'u8'
---@return ms.Tensor|ms.data.TokenFile  (n); a TokenFile for u16 and u32
function data.tokens(path, dtype)
  if type(path) ~= 'string' then
    errors.raise('TypeError', 'data.tokens takes a path, got a %s', type(path))
  elseif dtype ~= nil then
    errors.choice('data.tokens', 'dtype', dtype, { 'u8', 'i64', 'u16', 'u32' })
  end
  if dtype == 'i64' then
    return runtime.map(path, dtype)
  end
  local bytes = runtime.map(path, 'u8')
  dtype = dtype or TokenFile._header(path, bytes) or 'u8'
  return dtype == 'u8' and bytes or TokenFile(path, bytes, dtype)
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
