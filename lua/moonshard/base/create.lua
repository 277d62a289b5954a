--- Creation of tensors: from tables, constant, ranges, random.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local device = require 'moonshard.base.device'
local dims = require 'moonshard.base.dims'
local dtype = require 'moonshard.base.dtype'
local errors = require 'moonshard.base.errors'
local random = require 'moonshard.base.random'
local util = require 'moonshard.base.util'

local C, calls = B.C, B.calls

---@class ms.TensorOptions
---@field device? string  default: the device of this process; 'cpu' beside a device: pinned host
---  memory, which operators do not accept
---@field dtype? ms.DType  default 'f32'
---@field requires_grad? boolean  default false

local plain_options = { 'device', 'dtype', 'requires_grad' }

local create = {}

local MAX = C.MS_MAX_DIMS
local LARGEST = 2 ^ 53

-- Check names and values of options, before memory is allocated.
local function options(what, given, known, default)
  local opts = errors.options(what, given, known)
  if opts.device ~= nil then
    device.is_own(what, opts.device)
  end
  arguments.flag(what, 'requires_grad', opts.requires_grad, false)
  local code = dtype.code(opts.dtype == nil and default or opts.dtype)
  if opts.requires_grad and not C.ms_dtype_is_floating(code) then
    errors.raise('TypeError', '%s: requires_grad of a %s tensor, expected a floating dtype', what,
      opts.dtype or default)
  end
  return opts, code
end

local function finish(t, opts)
  if opts.device ~= nil then
    t = device.move(t, false, opts.device)
  end
  if opts.requires_grad then
    calls.tensor_set_requires_grad(t, true)
  end
  return t
end

-- -- from tables ---------------------------------------------------------------------------------

--- Sizes of a nested table, taken from its first entries.
local function shape_of(value)
  local sizes = {}
  while type(value) == 'table' do
    if #sizes == MAX then
      errors.raise('ValueError', 'tensor: the table is nested deeper than %d dimensions', MAX)
    end
    sizes[#sizes + 1] = #value
    value = value[1]
  end
  return sizes, value
end

-- Check that a list has no nil in it. (# may return any border of a list with holes.)
local function check_list(value, path)
  local n = 0
  for key in next, value do
    n = n + (type(key) == 'number' and 1 or 0)
  end
  if n ~= #value then
    errors.raise('ValueError', 'tensor: %s has nil among its entries, expected none',
      path == '' and 'the table' or 'entry [' .. path .. ']')
  end
end

--- Copy the numbers of a nested table in row-major order; raises if it is ragged.
local function flatten(value, sizes, depth, values, at, path)
  if depth > #sizes then
    if type(value) == 'boolean' then
      value = value and 1 or 0
    elseif type(value) ~= 'number' then
      errors.raise('TypeError', 'tensor: %s is %s, expected a number%s',
        path == '' and 'the value' or 'entry [' .. path .. ']', arguments.noun(value),
        path == '' and ' or a table of them' or '')
    end
    values[at] = value
    return at + 1
  end
  if type(value) ~= 'table' or #value ~= sizes[depth] then
    errors.raise('ValueError', 'tensor: entry [%s] has %s, expected %d', path,
      type(value) == 'table' and #value .. ' entries' or 'no entries', sizes[depth])
  end
  check_list(value, path)
  local prefix = path == '' and '' or path .. ','
  for i = 1, #value do
    at = flatten(value[i], sizes, depth + 1, values, at, prefix .. i)
  end
  return at
end

-- Raise for the first of n values that the dtype cannot hold; the message has its index.
local function check_values(values, n, sizes, code)
  local misfit = tonumber(C.ms_dtype_misfit(code, values, n))
  if misfit == n then
    return
  end
  local place, rest = {}, misfit
  for d = #sizes, 1, -1 do
    place[d] = rest % sizes[d] + 1
    rest = math.floor(rest / sizes[d])
  end
  errors.check(C.ms_dtype_check(
    #sizes == 0 and 'tensor' or 'tensor: entry [' .. table.concat(place, ',') .. ']', code,
    values[misfit]))
end

--- A tensor from a number or a nested table: `ms.tensor{{1, 2}, {3, 4}}`.
---@param value number|boolean|table
---@param opts? ms.TensorOptions  may be in the table; dtype defaults to 'f32', for booleans 'bool'
---@return ms.Tensor  ValueError if a number is not an integer in the range of an integer dtype
function create.tensor(value, opts)
  if type(value) == 'table' then
    opts = dims.list_options('tensor', value, opts)
  end
  local sizes, leaf = shape_of(value)
  local code
  opts, code = options('tensor', opts, plain_options, type(leaf) == 'boolean' and 'bool' or 'f32')
  local n = util.product(sizes)
  local values = B.new('double[?]', math.max(n, 1))
  flatten(value, sizes, 1, values, 0, '')
  check_values(values, n, sizes, code)
  local rank, shape = dims.shape(sizes, 'tensor', 0)
  return finish(calls.tensor_from_doubles(code, rank, shape, values, n), opts)
end

-- -- filled --------------------------------------------------------------------------------------

local function filled(what, value, default, ...)
  local sizes, given = dims.arguments(what, ...)
  local opts, code = options(what, given, plain_options, default)
  local n, shape = dims.shape(sizes, what, 0)
  return finish(calls.tensor_full(code, n, shape, value), opts)
end

--- Sizes as arguments or as a list, then options: `ms.zeros(2, 3, {dtype = 'f64'})`.
---@param ... integer|integer[]|ms.TensorOptions
---@return ms.Tensor
function create.zeros(...)
  return filled('zeros', 0, 'f32', ...)
end

---@param ... integer|integer[]|ms.TensorOptions
---@return ms.Tensor
function create.ones(...)
  return filled('ones', 1, 'f32', ...)
end

---@param sizes integer[]
---@param value number|boolean
---@param opts? ms.TensorOptions  dtype defaults to 'f32', for a boolean 'bool'
---@return ms.Tensor
function create.full(sizes, value, opts)
  if type(value) == 'boolean' then
    return filled('full', value and 1 or 0, 'bool', sizes, opts)
  end
  return filled('full', arguments.number('full', 'value', value), 'f32', sizes, opts)
end

--- A tensor with uninitialized contents.
---@param ... integer|integer[]|ms.TensorOptions
---@return ms.Tensor
function create.empty(...)
  local sizes, given = dims.arguments('empty', ...)
  local opts, code = options('empty', given, plain_options, 'f32')
  local n, shape = dims.shape(sizes, 'empty', 0)
  return finish(calls.tensor_empty(code, n, shape), opts)
end

--- 0 .. stop - 1, or start, start + step, ... below stop. ValueError if `step` has the wrong sign.
---@param start number  the stop if it is the only number
---@param stop? number
---@param step? number
---@param opts? ms.TensorOptions  dtype defaults to 'i64' when all numbers are integers
---@return ms.Tensor  (n)
function create.arange(start, stop, step, opts)
  local numbers, given = { start, stop, step }, opts
  for i = 3, 1, -1 do
    if type(numbers[i]) == 'table' and given == nil then
      given, numbers[i] = numbers[i], nil
    end
  end
  start = arguments.number('arange', 'start', numbers[1])
  stop, step = numbers[2], arguments.number('arange', 'step', numbers[3], 1)
  if stop == nil then
    start, stop = 0, start
  end
  local steps = (arguments.number('arange', 'stop', stop) - start) / step
  local n = math.ceil(steps)
  if step == 0 then
    errors.raise('ValueError', 'arange: the step is 0')
  elseif n ~= n or math.max(math.abs(start), math.abs(stop), math.abs(step)) == math.huge then
    errors.raise('ValueError', 'arange: from %g to %g by %g, expected finite numbers', start, stop,
      step)
  elseif n > LARGEST then
    errors.raise('ValueError', 'arange: from %g to %g by %g are %g numbers, expected at most 2^53',
      start, stop, step, n)
  elseif steps < 0 then
    errors.raise('ValueError', 'arange: from %g to %g by %g leads away, expected a step of the '
      .. 'other sign', start, stop, step)
  end
  local whole = start % 1 == 0 and step % 1 == 0
  local code
  opts, code = options('arange', given, plain_options, whole and 'i64' or 'f32')
  return finish(calls.tensor_arange(code, start, step, n), opts)
end

--- `steps` evenly spaced numbers from start to stop, both included.
---@param start number
---@param stop number
---@param steps integer
---@param opts? ms.TensorOptions  integer dtypes truncate the numbers
---@return ms.Tensor  (steps)
function create.linspace(start, stop, steps, opts)
  arguments.number('linspace', 'start', start)
  arguments.number('linspace', 'stop', stop)
  arguments.whole('linspace', 'steps', steps, nil, 0)
  local given, code = options('linspace', opts, plain_options, 'f32')
  local values = B.new('double[?]', math.max(steps, 1))
  local step = steps > 1 and (stop - start) / (steps - 1) or 0
  for i = 0, steps - 1 do -- each half is computed from its own end, as in PyTorch
    values[i] = i < steps / 2 and start + step * i or stop - step * (steps - 1 - i)
  end
  local rank, shape = dims.shape({ steps }, 'linspace', 0)
  local t = calls.tensor_from_doubles(C.MS_DTYPE_F64, rank, shape, values, steps)
  return finish(code == C.MS_DTYPE_F64 and t or calls.cast(t, code), given)
end

--- Ones on the diagonal, zeros elsewhere.
---@param n integer
---@param m? integer  default n
---@param opts? ms.TensorOptions
---@return ms.Tensor  (n, m)
function create.eye(n, m, opts)
  if type(m) == 'table' and opts == nil then
    m, opts = nil, m
  end
  arguments.whole('eye', 'n', n, nil, 0)
  m = arguments.whole('eye', 'm', m, n, 0)
  local given, code = options('eye', opts, plain_options, 'f32')
  local rows = calls.tensor_arange(C.MS_DTYPE_I64, 0, 1, n)
  local column = calls.reshape(rows, dims.shape({ n, 1 }, 'eye', 0))
  local equal = calls.compare(column, calls.tensor_arange(C.MS_DTYPE_I64, 0, 1, m), C.MS_COMPARE_EQ)
  return finish(calls.cast(equal, code), given)
end

-- -- as another tensor ---------------------------------------------------------------------------

local info = B.new('ms_tensor_info')

-- Sizes and dtype of a tensor; the options may override the dtype.
local function alike(what, x, opts, known)
  arguments.tensor(what, 'x', x)
  calls.tensor_describe(x, info)
  local given, code = options(what, opts, known or plain_options, dtype.name(info.dtype))
  return given, code, info.ndim, info.shape
end

--- Zeros with the shape and dtype of another tensor.
---@param x ms.Tensor
---@param opts? ms.TensorOptions
---@return ms.Tensor
function create.zeros_like(x, opts)
  local given, code, n, shape = alike('zeros_like', x, opts)
  return finish(calls.tensor_full(code, n, shape, 0), given)
end

---@param x ms.Tensor
---@param opts? ms.TensorOptions
---@return ms.Tensor
function create.ones_like(x, opts)
  local given, code, n, shape = alike('ones_like', x, opts)
  return finish(calls.tensor_full(code, n, shape, 1), given)
end

---@param x ms.Tensor
---@param value number|boolean
---@param opts? ms.TensorOptions
---@return ms.Tensor
function create.full_like(x, value, opts)
  if type(value) == 'boolean' then
    value = value and 1 or 0
  end
  arguments.number('full_like', 'value', value)
  local given, code, n, shape = alike('full_like', x, opts)
  return finish(calls.tensor_full(code, n, shape, value), given)
end

--- Uninitialized, with the shape and dtype of another tensor.
---@param x ms.Tensor
---@param opts? ms.TensorOptions
---@return ms.Tensor
function create.empty_like(x, opts)
  local given, code, n, shape = alike('empty_like', x, opts)
  return finish(calls.tensor_empty(code, n, shape), given)
end

-- -- random --------------------------------------------------------------------------------------

---@class ms.RandomOptions: ms.TensorOptions
---@field seed? integer|string  names the random stream; equal seeds give equal values

local random_options = { 'device', 'dtype', 'requires_grad', 'seed' }

-- Values depend only on the seed of the process, the stream and the element. A tensor without a
-- stream of its own takes the next number.
local function filled_from(what, stream, kind, a, b, code, n, shape)
  if type(stream) ~= 'string' and stream ~= nil then
    arguments.whole(what, 'seed', stream)
  end
  local t = calls.tensor_empty(code, n, shape)
  if stream == nil then
    stream = '#' .. random.next_tensor()
  end
  calls.tensor_init(t, kind, a, b, C.ms_name_key('random:' .. stream))
  return t
end

local function drawn(what, kind, a, b, ...)
  local sizes, given = dims.arguments(what, ...)
  local opts, code = options(what, given, random_options, 'f32')
  return finish(filled_from(what, opts.seed, kind, a, b, code, dims.shape(sizes, what, 0)), opts)
end

--- Random numbers of a normal distribution with mean 0 and deviation 1.
---@param ... integer|integer[]|ms.RandomOptions
---@return ms.Tensor
function create.randn(...)
  return drawn('randn', C.MS_INIT_NORMAL, 0, 1, ...)
end

--- Random numbers, uniform in [0, 1).
---@param ... integer|integer[]|ms.RandomOptions
---@return ms.Tensor
function create.rand(...)
  return drawn('rand', C.MS_INIT_UNIFORM, 0, 1, ...)
end

local function drawn_like(what, kind)
  return function(x, opts)
    local given, code, n, shape = alike(what, x, opts, random_options)
    return finish(filled_from(what, given.seed, kind, 0, 1, code, n, shape), given)
  end
end

--- Random numbers, uniform in [0, 1), with the shape and dtype of another tensor.
---@type fun(x: ms.Tensor, opts?: ms.RandomOptions): ms.Tensor
create.rand_like = drawn_like('rand_like', C.MS_INIT_UNIFORM)
--- Normal random numbers (mean 0, deviation 1), with the shape and dtype of another tensor.
---@type fun(x: ms.Tensor, opts?: ms.RandomOptions): ms.Tensor
create.randn_like = drawn_like('randn_like', C.MS_INIT_NORMAL)

-- An f64 tensor of these sizes, uniform in [0, b).
local function uniform(what, stream, b, sizes)
  return filled_from(what, stream, C.MS_INIT_UNIFORM, 0, b, C.MS_DTYPE_F64,
    dims.shape(sizes, what, 0))
end

--- Random integers in [low, high): randint(low, high, sizes, opts), or from 0: randint(high, sizes,
--- opts).
---@param low integer
---@param high integer|integer[]
---@param sizes? integer[]|ms.RandomOptions
---@param opts? ms.RandomOptions  dtype defaults to 'i64'
---@return ms.Tensor
function create.randint(low, high, sizes, opts)
  if type(high) == 'table' then
    low, high, sizes, opts = 0, low, high, sizes
  end
  arguments.whole('randint', 'low', low)
  arguments.whole('randint', 'high', high)
  if low >= high then
    errors.raise('ValueError', 'randint: from %d to %d, expected a larger end', low, high)
  end
  local given, code = options('randint', opts, random_options, 'i64')
  for _, bound in ipairs { low, high - 1 } do
    B.check(C.ms_dtype_check('randint', code, bound))
  end
  arguments.array('randint', 'sizes', sizes)
  local whole = calls.cast(uniform('randint', given.seed, high - low, sizes), C.MS_DTYPE_I64)
  local t = calls.with_number(whole, low, C.MS_NUMBER_ADD)
  return finish(code == C.MS_DTYPE_I64 and t or calls.cast(t, code), given)
end

--- A random permutation of 1 .. n, e.g. for index_select.
---@param n integer
---@param opts? ms.RandomOptions  dtype defaults to 'i64'
---@return ms.Tensor  (n)
function create.randperm(n, opts)
  arguments.whole('randperm', 'n', n, nil, 0)
  local given, code = options('randperm', opts, random_options, 'i64')
  local t = calls.argsort(uniform('randperm', given.seed, 1, { n }), 0, false, -1)
  return finish(code == C.MS_DTYPE_I64 and t or calls.cast(t, code), given)
end

-- f64 weights. Raises unless they are finite, not negative, and each row has `least` positive ones.
local function check_weights(probs, least)
  local bad = calls.compare_number(probs, 0, C.MS_COMPARE_LT):any()
    or not calls.isfinite(probs):all()
  local positive = calls.compare_number(probs, 0, C.MS_COMPARE_GT):i64():sum(-1)
  local fewest = positive:numel() > 0 and calls.amin(positive, 0, false):item() or least
  if bad or fewest < least then
    errors.raise('ValueError', 'multinomial: %s, expected finite numbers of 0 or more, at least '
      .. '%d above 0', bad and 'a probability is negative, infinite or NaN'
      or ('%d probabilities are above 0'):format(fewest), least)
  end
end

local multinomial_options = { 'replacement', 'seed' }

--- Indices (i64, from 1) drawn with these weights, which need not sum to 1. Waits for the device.
---@param probs ms.Tensor  floating (C) or (rows, C)
---@param num_samples integer
---@param opts? { replacement?: boolean, seed?: integer|string }  replacement: draw with
---  replacement (default false)
---@return ms.Tensor  (num_samples) or (rows, num_samples)
function create.multinomial(probs, num_samples, opts)
  opts = errors.options('multinomial', opts, multinomial_options)
  local replacement = arguments.flag('multinomial', 'replacement', opts.replacement, false)
  arguments.whole('multinomial', 'num_samples', num_samples, nil, 1)
  local sizes = arguments.tensor('multinomial', 'probs', probs):shape()
  calls.tensor_describe(probs, info)
  if not C.ms_dtype_is_floating(info.dtype) or #sizes < 1 or #sizes > 2 then
    errors.raise('ValueError', 'multinomial: probs are %s %s, expected a floating (C) or (rows, C)',
      dtype.name(info.dtype), dims.text(sizes))
  end
  local weights = calls.cast(calls.tensor_detach(probs), C.MS_DTYPE_F64)
  check_weights(weights, replacement and 1 or num_samples)
  if not replacement then -- exponential clocks: the index of the smallest time is drawn first
    local clocks = calls.log1p(calls.neg(uniform('multinomial', opts.seed, 1, sizes)))
    local rates = calls.div(weights, calls.neg(clocks))
    return calls.argsort(rates, #sizes - 1, true, num_samples)
  end
  local sums = calls.cumsum(weights, #sizes - 1)
  local total = sums:narrow(-1, sizes[#sizes], 1)
  sizes[#sizes] = num_samples
  local at = calls.mul(uniform('multinomial', opts.seed, 1, sizes), total)
  local below = calls.compare(sums:unsqueeze(-2), at:unsqueeze(-1), C.MS_COMPARE_LE)
  return calls.with_number(below:sum(-1), 1, C.MS_NUMBER_ADD)
end

return create
