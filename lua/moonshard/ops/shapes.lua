--- Shape operators: insert, remove, merge, move, repeat and flip dimensions, split and stack
--- tensors. All return views except repeat, tile, flip, stack, and flatten if the strides prevent
--- it.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local dims = require 'moonshard.base.dims'
local errors = require 'moonshard.base.errors'

local C, calls = B.C, B.calls
local type = type
local MAX = C.MS_MAX_DIMS

local shapes = {}

local info = B.new('ms_tensor_info')

-- Sizes of x and their number.
local function sizes_of(what, x)
  if type(x) ~= 'cdata' then
    arguments.no_tensor(what, 'x', x)
  end
  calls.tensor_describe(x, info)
  local sizes = {}
  for i = 1, info.ndim do
    sizes[i] = tonumber(info.shape[i - 1])
  end
  return sizes, info.ndim
end

-- Numbers as arguments or as one list, which may be empty; at least one argument is required.
local function numbers(what, ...)
  if ... == nil then
    arguments.refuse(what, 'list', nil, 'integers')
  end
  return dims.list(what, ...)
end

local function reshaped(what, x, sizes)
  return calls.reshape(x, dims.shape(sizes, what, 0))
end

-- -- one dimension more, some less ---------------------------------------------------------------

--- A view with a new dimension of size 1 at index `dim`.
---@param x ms.Tensor
---@param dim integer  1 .. n + 1, or from the end
---@return ms.Tensor
function shapes.unsqueeze(x, dim)
  local sizes, n = sizes_of('unsqueeze', x)
  table.insert(sizes, dims.index(dim, n + 1, 'unsqueeze') + 1, 1)
  return reshaped('unsqueeze', x, sizes)
end

--- A view without the dimensions of size 1, or without the given ones of them.
---@param x ms.Tensor
---@param over? integer|integer[]
---@return ms.Tensor
function shapes.squeeze(x, over)
  local sizes, n = sizes_of('squeeze', x)
  local mask, kept = over ~= nil and dims.mask(over, n, 'squeeze') or 2 ^ n - 1, {}
  for d = 1, n do
    if sizes[d] ~= 1 or math.floor(mask / 2 ^ (d - 1)) % 2 == 0 then
      kept[#kept + 1] = sizes[d]
    end
  end
  return reshaped('squeeze', x, kept)
end

--- Merge dimensions `first` to `last`; a view if the strides allow it. A tensor without dimensions
--- becomes (1).
---@param x ms.Tensor
---@param first? integer  default 1
---@param last? integer  default: the last
---@return ms.Tensor
function shapes.flatten(x, first, last)
  local sizes, n = sizes_of('flatten', x)
  local from = dims.index(first == nil and 1 or first, math.max(n, 1), 'flatten') + 1
  local to = dims.index(last == nil and -1 or last, math.max(n, 1), 'flatten') + 1
  if from > to then
    errors.raise('ValueError', 'flatten: dimension %d comes after dimension %d, expected the first '
      .. 'and the last', first == nil and 1 or first, last == nil and -1 or last)
  end
  local merged, product = {}, 1
  for d = 1, from - 1 do
    merged[d] = sizes[d]
  end
  for d = from, math.min(to, n) do
    product = product * sizes[d]
  end
  merged[from] = product
  for d = to + 1, n do
    merged[#merged + 1] = sizes[d]
  end
  return reshaped('flatten', x, merged)
end

--- Like reshape to the shape of another tensor, but raises instead of copying.
---@param x ms.Tensor
---@param other ms.Tensor
---@return ms.Tensor
function shapes.view_as(x, other)
  arguments.tensor('view_as', 'x', x)
  return x:view((sizes_of('view_as', other)))
end

local order = B.new('int32_t[?]', MAX)

-- Distinct dimensions, counted from 0.
local function places(list, n)
  if type(list) ~= 'table' then
    return { dims.index(list, n, 'movedim') }
  end
  dims.mask(list, n, 'movedim') -- raises if one is given twice
  local at = {}
  for i, d in ipairs(list) do
    at[i] = dims.index(d, n, 'movedim')
  end
  return at
end

--- A view with dimensions moved; the others keep their order.
---@param x ms.Tensor
---@param source integer|integer[]
---@param destination integer|integer[]  the same number of dimensions
---@return ms.Tensor
function shapes.movedim(x, source, destination)
  local _, n = sizes_of('movedim', x)
  local from, to = places(source, n), places(destination, n)
  if #from ~= #to then
    errors.raise('ValueError', 'movedim: %d dimensions move to %d places, expected as many', #from,
      #to)
  end
  local taken, moved = {}, {}
  for i = 1, #from do
    taken[to[i]], moved[from[i]] = from[i], true
  end
  local next_kept = 0
  for d = 0, n - 1 do
    while not taken[d] and moved[next_kept] do
      next_kept = next_kept + 1
    end
    order[d] = taken[d] or next_kept
    next_kept = taken[d] and next_kept or next_kept + 1
  end
  return calls.permute(x, n, order)
end

-- -- repeated ------------------------------------------------------------------------------------

--- A view that repeats dimensions of size 1; -1 keeps a size, and new dimensions come first.
---@param x ms.Tensor
---@param ... integer|integer[]
---@return ms.Tensor
function shapes.expand(x, ...)
  return calls.expand(x, dims.shape(dims.list('expand', ...), 'expand', -1))
end

--- Expand to the shape of another tensor.
---@param x ms.Tensor
---@param other ms.Tensor
---@return ms.Tensor
function shapes.expand_as(x, other)
  return calls.expand(x, dims.shape(sizes_of('expand_as', other), 'expand_as', 0))
end

-- Repeat dimension d: view it as (a, b), expand to (a, times, b), and copy.
local function repeat_one(what, x, sizes, d, times)
  local outer, inner = 1, 1
  for i = 1, #sizes do
    if i < d then
      outer = outer * sizes[i]
    else
      inner = inner * sizes[i]
    end
  end
  local lifted = reshaped(what, x, { outer, 1, inner })
  local expanded = calls.expand(lifted, dims.shape({ outer, times, inner }, what, 0))
  local copy = calls.clone(expanded) -- reshape would not copy if b is 1
  sizes[d] = sizes[d] * times
  local out = reshaped(what, copy, sizes)
  C.ms_ref_release(lifted)
  C.ms_ref_release(expanded)
  C.ms_ref_release(copy)
  return out
end

-- From the last dimension on, so that the first copies are small.
local function repeated(what, x, sizes, times)
  local out
  for d = #sizes, 1, -1 do
    if times[d] ~= 1 then
      local more = repeat_one(what, out or reshaped(what, x, sizes), sizes, d, times[d])
      if out then
        C.ms_ref_release(out)
      end
      out = more
    end
  end
  return out or calls.clone(reshaped(what, x, sizes))
end

-- Sizes of x and repetitions, the shorter list extended by leading ones.
local function aligned(what, x, times)
  local sizes, n = sizes_of(what, x)
  dims.shape(times, what, 0)
  local all = {}
  for i = 1, math.max(n - #times, 0) do
    all[i] = 1
  end
  for i = 1, #times do
    all[#all + 1] = times[i]
  end
  for _ = n + 1, #times do
    table.insert(sizes, 1, 1)
  end
  return sizes, all
end

--- A copy that repeats each dimension; leading repetitions may be omitted.
---@param x ms.Tensor
---@param ... integer|integer[]
---@return ms.Tensor
function shapes.tile(x, ...)
  return repeated('tile', x, aligned('tile', x, numbers('tile', ...)))
end

--- The same with a number for every dimension. Because `repeat` is a Lua keyword, write
--- t['repeat'](t, 2, 1) or t:tile(2, 1).
---@param x ms.Tensor
---@param ... integer|integer[]
---@return ms.Tensor
shapes['repeat'] = function(x, ...)
  local times = numbers('repeat', ...)
  local _, n = sizes_of('repeat', x)
  if #times < n then
    errors.raise('ValueError', 'repeat: %d numbers for %d dimensions, expected at least one for '
      .. 'each', #times, n)
  end
  return repeated('repeat', x, aligned('repeat', x, times))
end

--- A copy with the entries of these dimensions in reverse order.
---@param x ms.Tensor
---@param ... integer|integer[]
---@return ms.Tensor
function shapes.flip(x, ...)
  local _, n = sizes_of('flip', x)
  return calls.flip(x, dims.mask(numbers('flip', ...), n, 'flip'))
end

-- -- cut and joined ------------------------------------------------------------------------------

-- Consecutive views of these lengths along d (from 0).
local function pieces(x, d, lengths)
  local out, start = {}, 0
  for i, length in ipairs(lengths) do
    out[i] = calls.narrow(x, d, start, length)
    start = start + length
  end
  return out
end

-- Lengths of chunks of at most `length`; one chunk of length 0 for an empty dimension.
local function cut(size, length)
  local lengths = {}
  for start = 0, math.max(size - 1, 0), math.max(length, 1) do
    lengths[#lengths + 1] = math.min(length, size - start)
  end
  return lengths
end

local function along(what, x, dim)
  local sizes, n = sizes_of(what, x)
  local d = dims.index(dim == nil and 1 or dim, n, what)
  return d, sizes[d + 1]
end

local function given_lengths(lengths, size)
  local sum = 0
  for _, length in ipairs(arguments.array('split', 'sizes', lengths)) do
    sum = sum + arguments.whole('split', 'size', length, nil, 0)
  end
  if sum ~= size then
    errors.raise('ValueError', 'split: sizes %s sum to %.17g, expected the size of the dimension, '
      .. '%d', dims.text(lengths), sum, size)
  end
  return lengths
end

--- Views along a dimension: chunks of one size (the last may be smaller), or of the given sizes.
---@param x ms.Tensor
---@param sizes integer|integer[]
---@param dim? integer  default 1
---@return ms.Tensor[]
function shapes.split(x, sizes, dim)
  local d, size = along('split', x, dim)
  if type(sizes) == 'table' then
    return pieces(x, d, given_lengths(sizes, size))
  end
  arguments.whole('split', 'sizes', sizes, nil, 0)
  if sizes == 0 and size > 0 then
    errors.raise('ValueError', 'split: pieces of size 0 never make up a dimension of size %d', size)
  end
  return pieces(x, d, cut(size, sizes))
end

--- Split into at most `chunks` views of equal size (the last may be smaller).
---@param x ms.Tensor
---@param chunks integer
---@param dim? integer  default 1
---@return ms.Tensor[]
function shapes.chunk(x, chunks, dim)
  local d, size = along('chunk', x, dim)
  arguments.whole('chunk', 'chunks', chunks, nil, 1)
  if size > 0 then
    return pieces(x, d, cut(size, math.ceil(size / chunks)))
  end
  local lengths = {}
  for i = 1, chunks do
    lengths[i] = 0
  end
  return pieces(x, d, lengths)
end

--- Views of all entries of a dimension, without that dimension.
---@param x ms.Tensor
---@param dim? integer  default 1
---@return ms.Tensor[]
function shapes.unbind(x, dim)
  local d, size = along('unbind', x, dim)
  local out = {}
  for i = 1, size do
    out[i] = calls.select(x, d, i - 1)
  end
  return out
end

-- All must have the first one's shape; cat would accept some others.
local function check_alike(list, sizes)
  for i = 2, #list do
    local other = sizes_of('stack', list[i])
    if dims.text(other) ~= dims.text(sizes) then
      errors.raise('ValueError', 'stack: entry %d has shape %s, expected that of the first, %s', i,
        dims.text(other), dims.text(sizes))
    end
  end
end

--- Stack tensors of one shape along a new dimension.
---@param list ms.Tensor[]
---@param dim? integer  default 1
---@return ms.Tensor
function shapes.stack(list, dim)
  local _, n = B.array(arguments.array('stack', 'list', list), 'stack')
  if n == 0 then
    errors.raise('ValueError', 'stack: the list is empty, expected at least one tensor')
  end
  local sizes, n_dims = sizes_of('stack', list[1])
  local d = dims.index(dim == nil and 1 or dim, n_dims + 1, 'stack')
  check_alike(list, sizes)
  table.insert(sizes, d + 1, 1)
  local lifted = {}
  for i = 1, n do
    lifted[i] = reshaped('stack', list[i], sizes)
  end
  local out = calls.cat(B.array(lifted, 'stack'), n, d)
  for i = 1, n do
    C.ms_ref_release(lifted[i])
  end
  return out
end

return {
  functions = shapes,
  --- Operators that are also methods.
  methods = {
    'unsqueeze', 'squeeze', 'flatten', 'view_as', 'movedim', 'expand', 'expand_as', 'tile',
    'repeat', 'flip', 'split', 'chunk', 'unbind',
  },
}
