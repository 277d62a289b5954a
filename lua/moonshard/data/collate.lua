--- Collation of samples into a batch, and checks of datasets.

local Dataset = require 'moonshard.data.dataset'
local arguments = require 'moonshard_ffi.arguments'
local class = require 'moonshard.base.class'
local create = require 'moonshard.base.create'
local errors = require 'moonshard.base.errors'
local ops = require 'moonshard.ops'
local parameter = require 'moonshard_ffi.parameter'
local util = require 'moonshard.base.util'

local collate = {}

-- A dataset of the entries of a plain list.
local List = class('data.List', Dataset)

function List:init(list)
  self.list = list
end

function List:len()
  return #self.list
end

function List:get(i)
  return self.list[i]
end

--- Check a dataset; a list of samples is converted to one.
---@param what string
---@param value any
---@return ms.data.Dataset
function collate.dataset(what, value)
  if type(value) == 'table' and rawget(value, '_name') == nil then
    if type(value.len) == 'function' and type(value.get) == 'function' then
      return value
    elseif getmetatable(value) == nil then
      return List(arguments.array(what, 'dataset', value))
    end
  end
  arguments.refuse(what, 'dataset', value, 'an object with len() and get(i), or a list')
end

--- Check a list of sample indices.
---@param what string
---@param indices any[]
---@param n integer  number of samples in the dataset
---@return integer[]
function collate.indices(what, indices, n)
  for place, i in ipairs(indices) do
    arguments.whole(what, ('index %d'):format(place), i)
    if i < 1 or i > n then
      errors.raise('IndexError', '%s: index %d is %d, expected 1 to %d', what, place, i, n)
    end
  end
  return indices
end

local function kind_of(value)
  return parameter.is_tensor(value) and 'tensor' or type(value)
end

-- Raise with the path in a sample, as in 'default_collate: [1][label]'.
local function fail(path, text, ...)
  errors.raise('ValueError', 'default_collate%s: ' .. text .. '; give collate_fn for others',
    path == '' and '' or ': ' .. path, ...)
end

local function shape_text(tensor)
  return ('%s (%s)'):format(tensor:dtype(), table.concat(tensor:shape(), ', '))
end

local merge

local function merge_tables(values, path)
  local out, first = {}, values[1]
  for b, value in ipairs(values) do
    for key in next, value do
      if first[key] == nil then
        fail(path, "sample %d of the batch has an entry '%s', which sample 1 has not", b,
          tostring(key))
      end
    end
  end
  for key in next, first do -- the order has no effect
    local entries = {}
    for b, value in ipairs(values) do
      if value[key] == nil then
        fail(path, "sample %d of the batch has no entry '%s', sample 1 has one", b, tostring(key))
      end
      entries[b] = value[key]
    end
    out[key] = merge(entries, ('%s[%s]'):format(path, tostring(key)))
  end
  return out
end

local function merge_tensors(values, path)
  local expected = shape_text(values[1])
  for b, value in ipairs(values) do
    local found = shape_text(value)
    if found ~= expected then
      fail(path, 'sample %d of the batch is %s, expected %s as sample 1', b, found, expected)
    end
  end
  return ops.stack(values, 1)
end

function merge(values, path)
  local kind = kind_of(values[1])
  for b, value in ipairs(values) do
    if kind_of(value) ~= kind then
      fail(path, 'sample %d of the batch is %s, sample 1 is %s; expected one type', b,
        arguments.noun(value), arguments.noun(values[1]))
    end
  end
  if kind == 'tensor' then
    return merge_tensors(values, path)
  elseif kind == 'number' or kind == 'boolean' then
    return create.tensor(values)
  elseif kind == 'string' then
    return values
  elseif kind == 'table' and getmetatable(values[1]) == nil then
    return merge_tables(values, path)
  end
  errors.raise('TypeError', 'default_collate%s: a sample is %s, expected a tensor, number, '
    .. 'boolean, string or plain table; give collate_fn for others',
    path == '' and '' or ': ' .. path, arguments.noun(values[1]))
end

--- Collate samples into a batch. Tensors are stacked along a new dimension 1, numbers become an f32
--- tensor and booleans a bool tensor, strings become a list, plain tables are collated entry by
--- entry. ValueError if samples differ in type, shape, dtype or keys.
---@param samples any[]  at least one
---@return any
function collate.default_collate(samples)
  if #arguments.list('default_collate', 'samples', samples) == 0 then
    errors.raise('ValueError', 'default_collate: no samples, expected one at least')
  end
  return merge(samples, '')
end

-- Lengths from fractions of n that sum to 1, rounded as in PyTorch.
local function from_shares(shares, n)
  local lengths, left = {}, n
  for k, share in ipairs(shares) do
    lengths[k] = math.floor(n * share)
    left = left - lengths[k]
  end
  for k = 1, left do
    local at = (k - 1) % #shares + 1
    lengths[at] = lengths[at] + 1
  end
  return lengths
end

--- Lengths of the parts of a dataset, given as lengths or as fractions that sum to 1.
---@param what string
---@param dataset ms.data.Dataset
---@param lengths number[]
---@return integer[]
function collate.lengths(what, dataset, lengths)
  local n, total, whole = dataset:len(), 0, true
  for k, length in ipairs(arguments.array(what, 'lengths', lengths)) do
    arguments.number(what, ('lengths[%d]'):format(k), length)
    if not (length >= 0 and length <= n) then
      errors.raise('ValueError', '%s: lengths[%d] is %g, expected 0 to %d', what, k, length, n)
    end
    total, whole = total + length, whole and length % 1 == 0
  end
  if total == n and whole then
    return util.slice(lengths, 1)
  elseif #lengths > 0 and math.abs(total - 1) < 1e-9 then
    return from_shares(lengths, n)
  end
  errors.raise('ValueError', '%s: the lengths sum to %g, expected %d samples or fractions of 1',
    what, total, n)
end

return collate
