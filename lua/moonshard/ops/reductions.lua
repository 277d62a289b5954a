--- Reductions over dimensions: extrema, products, any and all, variance and norms.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local compare = require 'moonshard.ops.compare'
local dims = require 'moonshard.base.dims'
local errors = require 'moonshard.base.errors'

local C, calls = B.C, B.calls
local type = type

local reductions = {}

local info = B.new('ms_tensor_info')

local function ndim(what, x)
  if type(x) ~= 'cdata' then
    arguments.no_tensor(what, 'x', x)
  end
  calls.tensor_describe(x, info)
  return info.ndim
end

-- Bit mask of the dimensions to reduce; 0 for all.
local function mask_of(what, x, over)
  local n = ndim(what, x)
  return over ~= nil and dims.mask(over, n, what) or 0
end

-- A view of x without dimension d (from 0), whose size is 1.
local function without(x, d)
  calls.tensor_describe(x, info)
  local sizes = {}
  for i = 0, info.ndim - 1 do
    if i ~= d then
      sizes[#sizes + 1] = tonumber(info.shape[i])
    end
  end
  local view = calls.reshape(x, dims.shape(sizes, 'squeeze', 0))
  C.ms_ref_release(x)
  return view
end

-- -- extreme elements ----------------------------------------------------------------------------

local function whole_or_along(what, whole, position)
  return function(x, dim, keepdim)
    local n = ndim(what, x)
    if dim == nil then
      return whole(x, 0, dims.keepdim(what, keepdim))
    end
    local d = dims.index(dim, n, what)
    keepdim = dims.keepdim(what, keepdim)
    local indices = position(x, 2 ^ d, true)
    local values = calls.gather(x, d, indices)
    if keepdim then
      return values, indices
    end
    return without(values, d), without(indices, d)
  end
end

--- The largest element as a tensor without dimensions; equal elements share its gradient equally.
--- With a dimension: the largest elements along it and the index of the first of each (i64, from
--- 1); the gradient goes to that one. NaN is the largest.
---@type fun(x: ms.Tensor, dim?: integer, keepdim?: boolean|{ keepdim: boolean }): ms.Tensor,
---  ms.Tensor?
reductions.max = whole_or_along('max', calls.amax, calls.argmax)
--- The smallest element, as for max. NaN is the smallest, too.
---@type fun(x: ms.Tensor, dim?: integer, keepdim?: boolean|{ keepdim: boolean }): ms.Tensor,
---  ms.Tensor?
reductions.min = whole_or_along('min', calls.amin, calls.argmin)

local function over_dims(what, call)
  return function(x, over, keepdim)
    return call(x, mask_of(what, x, over), dims.keepdim(what, keepdim))
  end
end

--- The largest elements over all dimensions, or over the given ones. Equal elements share the
--- gradient.
---@type fun(x: ms.Tensor, over?: integer|integer[], keepdim?: boolean|table): ms.Tensor
reductions.amax = over_dims('amax', calls.amax)
--- The smallest elements, as for amax.
---@type fun(x: ms.Tensor, over?: integer|integer[], keepdim?: boolean|table): ms.Tensor
reductions.amin = over_dims('amin', calls.amin)
--- Products over all dimensions, or over the given ones (PyTorch: at most one). In i64 for
--- integers.
---@type fun(x: ms.Tensor, over?: integer|integer[], keepdim?: boolean|table): ms.Tensor
reductions.prod = over_dims('prod', calls.prod)

--- Indices (i64, from 1) of the first of the largest elements along a dimension; without a
--- dimension the index in row-major order.
---@type fun(x: ms.Tensor, dim?: integer, keepdim?: boolean|table): ms.Tensor
reductions.argmax = over_dims('argmax', calls.argmax)
--- Indices of the smallest elements, as for argmax.
---@type fun(x: ms.Tensor, dim?: integer, keepdim?: boolean|table): ms.Tensor
reductions.argmin = over_dims('argmin', calls.argmin)

-- -- all and any ---------------------------------------------------------------------------------

-- bool: compares the number of elements that match `relation` to 0 with 0, by `result`.
local function counted(what, whole, relation, result)
  return function(x, over, keepdim)
    if over == nil then
      return whole(x)
    end
    local mask = mask_of(what, x, over)
    local truth = calls.compare_number(x, 0, relation)
    local count = calls.sum(truth, mask, dims.keepdim(what, keepdim))
    local answer = calls.compare_number(count, 0, result)
    C.ms_ref_release(truth)
    C.ms_ref_release(count)
    return answer
  end
end

--- Are all elements true (not 0)? For a bool tensor without dimensions given, a Lua boolean; over
--- dimensions a bool tensor. True for no elements.
---@type fun(x: ms.Tensor, over?: integer|integer[], keepdim?: boolean|table): boolean|ms.Tensor
reductions.all = counted('all', compare.all, C.MS_COMPARE_EQ, C.MS_COMPARE_EQ)
--- Is any element true? As for all; false for no elements.
---@type fun(x: ms.Tensor, over?: integer|integer[], keepdim?: boolean|table): boolean|ms.Tensor
reductions.any = counted('any', compare.any, C.MS_COMPARE_NE, C.MS_COMPARE_NE)

-- -- spread --------------------------------------------------------------------------------------

-- x, in f32 if it is f16 or bf16, and the dtype of the result.
local function widened(what, x)
  ndim(what, x)
  local code = info.dtype
  if not C.ms_dtype_is_floating(code) then
    errors.raise('TypeError', '%s: the tensor is %s, expected a floating dtype', what,
      B.string(C.ms_dtype_name(code)))
  end
  return C.ms_dtype_is_narrow(code) and calls.cast(x, C.MS_DTYPE_F32) or x, code
end

local function narrowed(x, code)
  calls.tensor_describe(x, info)
  return info.dtype == code and x or calls.cast(x, code)
end

local spread_options = { keepdim = 'flag', correction = 'number' }

local function variance(what, x, over, opts)
  opts = errors.options(what, opts, spread_options)
  local mask = mask_of(what, x, over)
  local wide, code = widened(what, x)
  local mean = calls.mean(wide, mask, true)
  calls.tensor_describe(x, info)
  local n = tonumber(info.numel)
  calls.tensor_describe(mean, info)
  n = info.numel > 0 and n / tonumber(info.numel) or 0
  local squares = calls.square(calls.sub(wide, mean))
  local sum = calls.sum(squares, mask, opts.keepdim == true)
  local divisor = math.max(n - (opts.correction == nil and 1 or opts.correction), 0)
  return calls.with_number(sum, 1 / divisor, C.MS_NUMBER_MUL), code
end

---@class ms.ops.SpreadOptions
---@field keepdim? boolean     default false
---@field correction? number  subtracted from the number of elements (default 1)

--- Variance over all dimensions, or over the given ones. NaN for one element unless correction = 0.
---@param x ms.Tensor  floating
---@param over? integer|integer[]
---@param opts? ms.ops.SpreadOptions
---@return ms.Tensor
function reductions.var(x, over, opts)
  return narrowed(variance('var', x, over, opts))
end

-- f(x) where x is not 0, else `value`, so that the gradient at 0 stays finite.
local function unless_zero(x, f, value)
  local zero = calls.compare_number(x, 0, C.MS_COMPARE_EQ)
  return compare.where(zero, value, f(compare.where(zero, 1, x)))
end

--- Standard deviation. Its gradient is 0 where it is 0.
---@param x ms.Tensor  floating
---@param over? integer|integer[]
---@param opts? ms.ops.SpreadOptions
---@return ms.Tensor
function reductions.std(x, over, opts)
  local value, code = variance('std', x, over, opts)
  return narrowed(unless_zero(value, calls.sqrt, 0), code)
end

--- log(sum(exp(x))) over the given dimensions, without overflow.
---@param x ms.Tensor  floating
---@param over integer|integer[]
---@param keepdim? boolean|{ keepdim: boolean }
---@return ms.Tensor
function reductions.logsumexp(x, over, keepdim)
  local mask = mask_of('logsumexp', x, over)
  keepdim = dims.keepdim('logsumexp', keepdim)
  local wide, code = widened('logsumexp', x)
  local most = calls.amax(calls.tensor_detach(wide), mask, true)
  most = compare.where(calls.isfinite(most), most, 0)
  local sum = calls.sum(calls.exp(calls.sub(wide, most)), mask, keepdim)
  calls.tensor_describe(sum, info)
  most = calls.reshape(most, info.ndim, info.shape)
  return narrowed(calls.add(calls.log(sum), most), code)
end

-- -- norms ---------------------------------------------------------------------------------------

--- Norms over all dimensions, or over the given ones: (sum |x|^p)^(1/p); p = math.huge: the largest
--- |x|; p = -math.huge: the smallest |x|; p = 0: the number of elements that are not 0. The
--- gradient is 0 where the norm is 0. (torch.linalg.vector_norm)
---@param x ms.Tensor  floating
---@param p? number  default 2
---@param over? integer|integer[]
---@param keepdim? boolean|{ keepdim: boolean }
---@return ms.Tensor
function reductions.norm(x, p, over, keepdim)
  p = arguments.number('norm', 'p', p, 2)
  if p ~= p then
    errors.raise('ValueError', "norm: 'p' is NaN, expected a number")
  end
  local mask = mask_of('norm', x, over)
  keepdim = dims.keepdim('norm', keepdim)
  local code = info.dtype
  if p == 0 then
    local count = calls.sum(calls.compare_number(x, 0, C.MS_COMPARE_NE), mask, keepdim)
    return calls.cast(count, code)
  end
  local size = calls.abs(x)
  if p == 1 then
    return calls.sum(size, mask, keepdim)
  elseif p == math.huge then
    return calls.amax(size, mask, keepdim)
  elseif p == -math.huge then
    return calls.amin(size, mask, keepdim)
  end
  local powers = calls.sum(p == 2 and calls.mul(x, x) or calls.pow(size, p), mask, keepdim)
  return unless_zero(powers, function(sum) return calls.pow(sum, 1 / p) end, 0)
end

local function along(what, x, dim)
  return dims.index(dim == nil and 2 or dim, arguments.tensor(what, 'x', x):dim(), what) + 1
end

local normalize_options = { p = 'number', dim = 'whole', eps = 'number' }

--- x / max(norm, eps), with the norm along one dimension.
---@param x ms.Tensor  floating
---@param opts? { p?: number, dim?: integer, eps?: number }  p: of the norm, default 2; dim:
---  default 2; eps: default 1e-12
---@return ms.Tensor
function reductions.normalize(x, opts)
  opts = errors.options('normalize', opts, normalize_options)
  local dim = along('normalize', x, opts.dim)
  local wide, code = widened('normalize', x)
  local size = reductions.norm(wide, opts.p, dim, true)
  return narrowed(wide / size:clamp(opts.eps or 1e-12), code)
end

local cosine_options = { dim = 'whole', eps = 'number' }

--- a . b / (max(|a|, eps) max(|b|, eps)) along one dimension. Shapes broadcast.
---@param a ms.Tensor  floating
---@param b ms.Tensor
---@param opts? { dim?: integer, eps?: number }  dim: default 2; eps: default 1e-8
---@return ms.Tensor  without that dimension
function reductions.cosine_similarity(a, b, opts)
  local what = 'cosine_similarity'
  opts = errors.options(what, opts, cosine_options)
  local eps = { dim = opts.dim, eps = opts.eps or 1e-8 }
  arguments.tensor(what, 'b', b)
  local longer = arguments.tensor(what, 'a', a):dim() >= b:dim() and a or b
  eps.dim = along(what, longer, opts.dim) - longer:dim() - 1 -- from the end: fits both
  local wide, code = widened(what, a)
  local product = reductions.normalize(wide, eps) * reductions.normalize(widened(what, b), eps)
  return narrowed(product:sum(eps.dim), code)
end

return reductions
