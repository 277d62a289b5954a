--- Memory-mapped token files: only pages that are read take memory, and ranks share them.

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
---@field Tokenizer ms.data.Tokenizer
---@field TokenStream ms.data.TokenStream
local data = {}

--- See moonshard.data.collate.
data.default_collate = collate.default_collate

--- Split a dataset randomly into Subsets. The result depends only on `seed`.
---@param dataset ms.data.Dataset|any[]
---@param lengths number[]  samples of each part, or fractions that sum to 1: remaining samples
---  after rounding down are added to the first parts, one each
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

--- Map a file of tokens read-only; at most 256 can be mapped at a time (OutOfMemory). Do not write
--- to a mapped file, which would change the tokens: replace it by another file. If it is truncated,
--- missing tokens read as zeros with one message on stderr, and the loader raises IOError; only the
--- loader detects tokens missing from the last remaining page.
---
--- u16 and u32 files contain little-endian numbers, either without a header (nanoGPT's .bin files)
--- or after a header of llm.c (magic 20240520, version 1: u16; magic 20240801, version 7: u32),
--- which is checked and skipped. FormatError if the size of the file does not match its header or
--- dtype.
---@param path string
---@param dtype? 'u8'|'i64'|'u16'|'u32'  i64 in this machine's byte order; default: the dtype in a
---  header of llm.c, else 'u8'
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

--- The string whose bytes are the tokens.
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
