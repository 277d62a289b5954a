--- Gather, scatter, sort and related operators. Indices are i64 tensors that count from 1.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local create = require 'moonshard.base.create'
local dims = require 'moonshard.base.dims'
local dtype = require 'moonshard.base.dtype'
local errors = require 'moonshard.base.errors'

local C, calls = B.C, B.calls
local type = type

local positions = {}

local info = B.new('ms_tensor_info')

-- Dimension `dim` of x, counted from 0. Fills `info` with x's description.
local function along(what, x, dim)
  if type(x) ~= 'cdata' then
    arguments.no_tensor(what, 'x', x)
  end
  calls.tensor_describe(x, info)
  return dims.index(dim, info.ndim, what)
end

-- -- gather and scatter --------------------------------------------------------------------------

--- Elements of x at indices along a dimension, in the shape of `index`, whose other sizes must not
--- exceed those of x. IndexError for an index outside 1 .. size.
---@param x ms.Tensor
---@param dim integer
---@param index ms.Tensor  i64, from 1
---@return ms.Tensor
function positions.gather(x, dim, index)
  return calls.gather(x, along('gather', x, dim), index)
end

-- Sizes of the tensor that `info` describes.
local function sizes_in_info()
  local sizes = {}
  for i = 1, info.ndim do
    sizes[i] = tonumber(info.shape[i - 1])
  end
  return sizes
end

-- Expand an index (n) of slices along d to an index of elements: a view of these sizes.
local function widened(what, index, d, sizes)
  arguments.tensor(what, 'index', index)
  calls.tensor_describe(index, info)
  if info.dtype ~= C.MS_DTYPE_I64 then
    errors.raise('TypeError', '%s: index is %s, expected i64', what, dtype.name(info.dtype))
  elseif info.ndim > 1 then
    errors.raise('ValueError', '%s: the index has %d dimensions, expected 1', what, info.ndim)
  end
  local ones = {}
  for i = 1, #sizes do
    ones[i] = 1
  end
  sizes[d + 1], ones[d + 1] = tonumber(info.numel), tonumber(info.numel)
  local line = calls.reshape(index, dims.shape(ones, what, 0))
  local wide = calls.expand(line, dims.shape(sizes, what, 0))
  C.ms_ref_release(line)
  return wide
end

local function check_source(what, src, code, sizes)
  calls.tensor_describe(arguments.tensor(what, 'src', src), info)
  if info.dtype ~= code then
    errors.raise('TypeError', '%s: x is %s and src is %s, expected one dtype', what,
      dtype.name(code), dtype.name(info.dtype))
  end
  local found, expected = dims.text(src:shape()), dims.text(sizes)
  if found ~= expected then
    errors.raise('ValueError', '%s: src has shape %s, expected %s', what, found, expected)
  end
end

local function check_positions(what, index, dim, size)
  local list = index:flatten():totable()
  for i, position in ipairs(list) do
    if position < 1 or position > size then
      errors.raise('IndexError', '%s: index %d, number %d of %d, is outside [1, %d], the entries '
        .. 'of dimension %d', what, position, i, #list, size, dim)
    end
  end
end

-- Apply the elementwise operator `call` to whole slices. `src`, if used, has x's shape with as many
-- slices as the index. On the CPU the error of an index outside the range is raised here, because
-- `call` would name itself and count elements. A device reports it later with the message of
-- `call`.
local function with_slices(what, call, takes_source)
  return function(x, dim, index, src)
    local d = along(what, x, dim)
    local code, size, sizes = info.dtype, tonumber(info.shape[d]), sizes_in_info()
    local wide = widened(what, index, d, sizes)
    if takes_source then
      check_source(what, src, code, sizes)
    end
    local ok, result = pcall(call, x, d, wide, src)
    C.ms_ref_release(wide)
    if not ok then
      if errors.is(result) and result.kind == 'IndexError' then
        check_positions(what, index, d + 1, size)
      end
      error(result, 0)
    end
    return result
  end
end

local select_slices = with_slices('index_select', calls.gather)

--- Slices of x at indices along a dimension. IndexError as for gather.
---@param x ms.Tensor
---@param dim integer
---@param index ms.Tensor  i64 (n), from 1
---@return ms.Tensor  x's shape with size n in this dimension
function positions.index_select(x, dim, index)
  return select_slices(x, dim, index)
end

--- A copy of x with `src` stored at indices along a dimension. Sizes of `index` must not exceed
--- those of `src` and, in the other dimensions, of x. For equal indices the last one is stored.
---@param x ms.Tensor
---@param dim integer
---@param index ms.Tensor  i64, from 1
---@param src ms.Tensor|number
---@return ms.Tensor
function positions.scatter(x, dim, index, src)
  local d = along('scatter', x, dim)
  if type(src) ~= 'number' then
    return calls.scatter(x, d, index, src)
  end
  local code = info.dtype
  B.check(C.ms_dtype_check('scatter', code, src))
  arguments.tensor('scatter', 'index', index)
  calls.tensor_describe(index, info)
  local number = calls.tensor_full(code, 0, nil, src)
  local wide = calls.expand(number, info.ndim, info.shape)
  local out = calls.scatter(x, d, index, wide)
  C.ms_ref_release(number)
  C.ms_ref_release(wide)
  return out
end

--- A copy of x with `src` added at indices. Equal indices add in ascending order.
---@param x ms.Tensor
---@param dim integer
---@param index ms.Tensor  i64, from 1
---@param src ms.Tensor
---@return ms.Tensor
function positions.scatter_add(x, dim, index, src)
  return calls.scatter_add(x, along('scatter_add', x, dim), index, src)
end

--- A copy of x with slices of `src` stored at indices along a dimension. For equal indices the last
--- slice is stored.
---@type fun(x: ms.Tensor, dim: integer, index: ms.Tensor, src: ms.Tensor): ms.Tensor
positions.index_copy = with_slices('index_copy', calls.scatter, true)

local add_slices = with_slices('index_add', calls.scatter_add, true)
local index_add_options = { alpha = 'number' }

--- A copy of x with alpha times the slices of `src` added at indices along a dimension. Equal
--- indices add in ascending order.
---@param x ms.Tensor
---@param dim integer
---@param index ms.Tensor  i64 (n), from 1
---@param src ms.Tensor  x's shape with size n in this dimension
---@param opts? { alpha?: number }  default 1
---@return ms.Tensor
function positions.index_add(x, dim, index, src, opts)
  local alpha = errors.options('index_add', opts, index_add_options).alpha
  if alpha ~= nil and alpha ~= 1 then
    src = arguments.tensor('index_add', 'src', src) * alpha
  end
  return add_slices(x, dim, index, src)
end

--- A matrix with the vector x on a diagonal and zeros elsewhere, or a copy of a diagonal of the
--- matrix x.
---@param x ms.Tensor  of one or two dimensions
---@param diagonal? integer  0: the main one; 1: the one above; -1: the one below (default 0)
---@return ms.Tensor
function positions.diag(x, diagonal)
  local k = arguments.whole('diag', 'diagonal', diagonal, 0)
  local sizes = arguments.tensor('diag', 'x', x):shape()
  local rows, columns = unpack(sizes)
  if #sizes == 1 then
    rows = sizes[1] + math.abs(k)
    columns = rows
  elseif #sizes ~= 2 then
    errors.raise('ValueError', 'diag: x has %d dimensions, expected 1 or 2', #sizes)
  end
  local row, column = math.max(-k, 0), math.max(k, 0)
  local n = math.max(math.min(rows - row, columns - column), 0)
  local index = calls.tensor_arange(C.MS_DTYPE_I64, row * columns + column + 1, columns + 1, n)
  if #sizes == 2 then
    return positions.index_select(x:flatten(), 1, index)
  end
  local zeros = create.zeros(rows * columns, { dtype = x:dtype() })
  return positions.scatter(zeros, 1, index, x):reshape(rows, columns)
end

-- -- sorting -------------------------------------------------------------------------------------

local sort_options = { descending = 'flag', stable = 'flag' }

-- Parses (x, dim, descending), (x, dim, options) and (x, options).
local function sort_arguments(what, x, dim, opts)
  if type(dim) == 'table' and opts == nil then
    dim, opts = nil, dim
  end
  local descending = opts
  if type(opts) == 'table' then
    descending = errors.options(what, opts, sort_options).descending
  end
  local d = along(what, x, dim == nil and -1 or dim)
  return d, arguments.flag(what, 'descending', descending, false)
end

--- Sort along a dimension. Returns the elements and their indices in x (i64, from 1). Equal
--- elements keep their order. NaN is the largest.
---@param x ms.Tensor
---@param dim? integer  default: the last
---@param opts? boolean|{ descending?: boolean, stable?: boolean }  a boolean means descending;
---  sorting is always stable
---@return ms.Tensor values, ms.Tensor indices
function positions.sort(x, dim, opts)
  local d, descending = sort_arguments('sort', x, dim, opts)
  local indices = calls.argsort(x, d, descending, -1)
  return calls.gather(x, d, indices), indices
end

--- The indices returned by sort.
---@param x ms.Tensor
---@param dim? integer  default: the last
---@param opts? boolean|{ descending?: boolean, stable?: boolean }
---@return ms.Tensor indices
function positions.argsort(x, dim, opts)
  local d, descending = sort_arguments('argsort', x, dim, opts)
  return calls.argsort(x, d, descending, -1)
end

local topk_options = { largest = 'flag', sorted = 'flag' }

--- The k largest elements along a dimension, largest first, and their indices (i64, from 1). Among
--- equal elements the first ones are taken.
---@param x ms.Tensor
---@param k integer
---@param dim? integer  default: the last
---@param opts? { largest?: boolean, sorted?: boolean }  largest = false: the smallest; results are
---  always sorted
---@return ms.Tensor values, ms.Tensor indices
function positions.topk(x, k, dim, opts)
  if type(dim) == 'table' and opts == nil then
    dim, opts = nil, dim
  end
  opts = errors.options('topk', opts, topk_options)
  local d = along('topk', x, dim == nil and -1 or dim)
  local size = tonumber(info.shape[d])
  if arguments.whole('topk', 'k', k, nil, 0) > size then
    errors.raise('ValueError', "topk: 'k' is %d, expected at most the size of dimension %d, %d", k,
      d + 1, size)
  end
  local indices = calls.argsort(x, d, opts.largest ~= false, k)
  return calls.gather(x, d, indices), indices
end

-- -- other positions -----------------------------------------------------------------------------

--- Indices of the elements that are not 0, in row-major order. Waits for the device.
---@param x ms.Tensor
---@return ms.Tensor  i64 (found, dimensions), from 1
positions.nonzero = calls.tensor_nonzero

--- 1 at each class, 0 elsewhere. IndexError for a class outside 0 .. num_classes - 1.
---@param ids ms.Tensor  i64 (...), classes from 0
---@param num_classes? integer  default: the largest class + 1, for which it waits for the device
---@return ms.Tensor  i64 (..., num_classes)
function positions.one_hot(ids, num_classes)
  arguments.tensor('one_hot', 'ids', ids)
  if num_classes == nil or num_classes == -1 then
    num_classes = calls.amax(ids, 0, false):item() + 1
  end
  arguments.whole('one_hot', 'num_classes', num_classes, nil, 1)
  local sizes = ids:shape()
  sizes[#sizes + 1] = num_classes
  local n, shape = dims.shape(sizes, 'one_hot', 0)
  local zeros = calls.tensor_full(C.MS_DTYPE_I64, n, shape, 0)
  local places = calls.with_number(ids:unsqueeze(-1), 1, C.MS_NUMBER_ADD)
  local ok, result = pcall(positions.scatter, zeros, -1, places, 1)
  if not ok and type(result) == 'table' and result.kind == 'IndexError' then
    local least, most = calls.amin(ids, 0, false):item(), calls.amax(ids, 0, false):item()
    errors.raise('IndexError', 'one_hot: class %d is outside [0, %d]', least < 0 and least or most,
      num_classes - 1)
  elseif not ok then
    error(result, 0)
  end
  return result
end

return positions
