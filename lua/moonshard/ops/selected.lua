--- Operators whose result shape depends on values: selection by masks, distinct elements, counts,
--- repeated entries. Each reads values once, which waits for the device; its gradient is that of
--- index_select.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local create = require 'moonshard.base.create'
local dims = require 'moonshard.base.dims'
local errors = require 'moonshard.base.errors'
local positions = require 'moonshard.ops.positions'
local writable = require 'moonshard.base.writable'

local calls = B.calls

local selected, entries = {}, {}

local function integers(sizes, value)
  return create.full(sizes, value, { dtype = 'i64' })
end

-- Indices (from 1) of the elements of the flattened x that are not 0.
local function places(x)
  return calls.tensor_nonzero(x:reshape(x:numel())):flatten()
end

-- -- masks ---------------------------------------------------------------------------------------

-- `instead`: how to use indices, which PyTorch writes in the same way.
local function check_mask(what, mask, instead)
  local dtype = arguments.tensor(what, 'mask', mask):dtype()
  if dtype ~= 'bool' then
    errors.raise('TypeError', '%s: the mask is %s, expected bool%s', what, dtype,
      dtype == 'i64' and instead and '; for positions write ' .. instead or '')
  end
end

-- The broadcast shape of two shapes, or nil.
local function broadcast(a, b)
  local out, n = {}, math.max(#a, #b)
  for i = 0, n - 1 do
    local size, other = a[#a - i] or 1, b[#b - i] or 1
    if size ~= other and size ~= 1 and other ~= 1 then
      return nil
    end
    out[n - i] = size == 1 and other or size
  end
  return out
end

--- The elements of x where `mask` is true, in row-major order; x and mask broadcast. Waits for the
--- device.
---@param x ms.Tensor
---@param mask ms.Tensor  bool
---@return ms.Tensor  (found)
function selected.masked_select(x, mask)
  check_mask('masked_select', mask)
  local given = arguments.tensor('masked_select', 'x', x):shape()
  local sizes = broadcast(given, mask:shape())
  if not sizes then
    errors.raise('ValueError', 'masked_select: shapes %s and %s do not broadcast', dims.text(given),
      dims.text(mask:shape()))
  end
  return positions.index_select(x:expand(sizes):flatten(), 1, places(mask:expand(sizes)))
end

-- t with the mask's dimensions (its first ones) merged into one, and the sizes of the others.
local function masked_rows(t, mask, instead)
  check_mask('t[mask]', mask, instead)
  local sizes, of_mask, rest = t:shape(), mask:shape(), {}
  for d = 1, #sizes do
    rest[d - #of_mask] = d > #of_mask and sizes[d] or nil
  end
  local fits = #of_mask > 0 and #of_mask <= #sizes
  for d = 1, #of_mask do
    fits = fits and of_mask[d] == sizes[d]
  end
  if not fits then
    errors.raise('IndexError', 't[mask]: the mask has shape %s, expected the first sizes of the '
      .. 'tensor, %s', dims.text(of_mask), dims.text(sizes))
  end
  return t:reshape({ mask:numel(), unpack(rest) }), rest
end

--- t[mask]: entries along the first dimensions, in row-major order.
---@param t ms.Tensor
---@param mask ms.Tensor  bool, with t's first sizes
---@return ms.Tensor  (found, ...)
function entries.read(t, mask)
  return positions.index_select(masked_rows(t, mask, 't:index_select(1, index)'), 1,
    places(mask))
end

--- t[mask] = value. Raises for values that require grad, as copy_ does.
---@param t ms.Tensor
---@param mask ms.Tensor  bool, with t's first sizes
---@param value number|ms.Tensor  a tensor broadcasts to (found, ...)
function entries.write(t, mask, value)
  writable(t, 't[mask] = x')
  local target = t:detach()
  local rows, rest = masked_rows(target, mask, 't:copy_(t:index_copy(1, index, x))')
  if type(value) == 'number' then
    local ones = { mask:numel() }
    for d = 1, #rest do
      ones[d + 1] = 1
    end
    calls.tensor_copy(t, rows:masked_fill(mask:reshape(ones), value):reshape(t:shape()))
    return
  end
  local index = places(mask)
  local sizes = { index:size(1), unpack(rest) }
  if not broadcast(value:shape(), sizes) or #value:shape() > #sizes
    or dims.text(broadcast(value:shape(), sizes)) ~= dims.text(sizes) then
    errors.raise('ValueError', 't[mask] = x: x has shape %s, expected one that broadcasts to %s',
      dims.text(value:shape()), dims.text(sizes))
  end
  local src = value:to(t:dtype()):expand(sizes)
  calls.tensor_copy(t, positions.index_copy(rows, 1, index, src):reshape(t:shape()))
end

-- -- distinct elements and counts ----------------------------------------------------------------

local unique_options = { sorted = 'flag', return_inverse = 'flag', return_counts = 'flag' }

--- The distinct elements in ascending order; NaNs are all distinct. With return_inverse also the
--- index in the result of each element of x (i64, from 1, x's shape); with return_counts also the
--- number of occurrences of each (i64). Waits for the device. Not differentiable.
---@param x ms.Tensor
---@param opts? { sorted?: boolean, return_inverse?: boolean, return_counts?: boolean }  results
---  are always sorted
---@return ms.Tensor values, ms.Tensor? inverse_or_counts, ms.Tensor? counts
function selected.unique(x, opts)
  opts = errors.options('unique', opts, unique_options)
  local flat = arguments.tensor('unique', 'x', x):detach():flatten()
  local n = flat:size(1)
  local values, order = positions.sort(flat)
  local is_first = values:ne(values)
  if n > 0 then
    is_first = calls.cat(B.array({ create.ones(1, { dtype = 'bool' }),
      values:narrow(1, 2, n - 1):ne(values:narrow(1, 1, n - 1)) }, 'unique'), 2, 0)
  end
  local first = places(is_first)
  local results = { positions.index_select(values, 1, first) }
  if opts.return_inverse then
    results[2] = positions.scatter(integers({ n }, 0), 1, order, is_first:i64():cumsum(1))
      :reshape(x:shape())
  end
  if opts.return_counts then
    local found = first:size(1)
    local ends = calls.cat(B.array({ first, integers({ 1 }, n + 1) }, 'unique'), 2, 0)
    results[#results + 1] = ends:narrow(1, 2, found) - first
  end
  return unpack(results)
end

local bincount_options = { weights = 'tensor', minlength = 'whole' }

--- Count occurrences of the numbers 0, 1, ...; entry i counts i - 1. With weights, sum the weights
--- instead. ValueError for a negative number. Waits for the device.
---@param x ms.Tensor  integers (n)
---@param opts? { weights?: ms.Tensor, minlength?: integer }  weights: (n); minlength: least length
---  of the result (default 0)
---@return ms.Tensor  i64, or the weights' dtype
function selected.bincount(x, opts)
  opts = errors.options('bincount', opts, bincount_options)
  local sizes = arguments.tensor('bincount', 'x', x):shape()
  local dtype, weights = x:dtype(), opts.weights
  local length = arguments.whole('bincount', 'minlength', opts.minlength, 0, 0)
  if #sizes ~= 1 or not (dtype == 'i64' or dtype == 'i32' or dtype == 'u8') then
    errors.raise('ValueError', 'bincount: x is %s %s, expected integers of one dimension', dtype,
      dims.text(sizes))
  elseif weights and dims.text(weights:shape()) ~= dims.text(sizes) then
    errors.raise('ValueError', 'bincount: weights have shape %s, expected that of x, %s',
      dims.text(weights:shape()), dims.text(sizes))
  end
  x = x:i64()
  if sizes[1] > 0 then
    local ends = calls.cat(B.array({ x:amin():reshape(1), x:amax():reshape(1) }, 'bincount'), 2, 0)
    local least, most = unpack(ends:totable())
    if least < 0 then
      errors.raise('ValueError', 'bincount: x contains %d, expected numbers of 0 or more', least)
    end
    length = math.max(length, most + 1)
  end
  local counts = create.zeros(length, { dtype = weights and weights:dtype() or 'i64' })
  return positions.scatter_add(counts, 1, x + 1, weights or integers(sizes, 1))
end

--- Repeat each entry of a dimension. Waits for the device if `repeats` is a tensor.
---@param x ms.Tensor
---@param repeats integer|integer[]|ms.Tensor  for all entries, or one number for each (i64)
---@param dim? integer  default: of the flattened x
---@return ms.Tensor
function selected.repeat_interleave(x, repeats, dim)
  local what = 'repeat_interleave'
  x = dim == nil and arguments.tensor(what, 'x', x):flatten() or x
  local d = dims.index(dim == nil and 1 or dim, arguments.tensor(what, 'x', x):dim(), what) + 1
  if type(repeats) == 'number' then
    arguments.whole(what, 'repeats', repeats, nil, 0)
    local sizes = x:shape()
    table.insert(sizes, d + 1, repeats)
    return x:unsqueeze(d + 1):expand(sizes):flatten(d, d + 1)
  elseif type(repeats) ~= 'table' then
    repeats = arguments.tensor(what, 'repeats', repeats):flatten():totable()
  end
  local size, list = x:size(d), {}
  if #repeats ~= size then
    errors.raise('ValueError', '%s: %d numbers, expected one for each of %d entries', what,
      #repeats, size)
  end
  for i = 1, size do
    for _ = 1, arguments.whole(what, 'repeats', repeats[i], nil, 0) do
      list[#list + 1] = i
    end
  end
  return positions.index_select(x, d, create.tensor(list, { dtype = 'i64' }))
end

return {
  functions = selected,
  --- Implement `t[mask]` and `t[mask] = x`.
  read = entries.read,
  write = entries.write,
}
