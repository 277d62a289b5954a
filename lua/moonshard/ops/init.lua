--- Differentiable operators. Each calls C once; shapes broadcast as in NumPy.
---
--- Letters in shapes: B batch, T positions, C width, H heads, D head width, V vocabulary.

local B = require 'moonshard_ffi'
local attend = require 'moonshard.ops.attend'
local arguments = require 'moonshard_ffi.arguments'
local compare = require 'moonshard.ops.compare'
local dims = require 'moonshard.base.dims'
local dtype = require 'moonshard.base.dtype'
local einsum = require 'moonshard.ops.einsum'
local errors = require 'moonshard.base.errors'
local interpolate = require 'moonshard.ops.interpolate'
local losses = require 'moonshard.ops.losses'
local masks = require 'moonshard.ops.masks'
local padding = require 'moonshard.ops.padding'
local positions = require 'moonshard.ops.positions'
local products = require 'moonshard.ops.products'
local reduced = require 'moonshard.ops.reductions'
local samples = require 'moonshard.base.samples'
local selected = require 'moonshard.ops.selected'
local shapes = require 'moonshard.ops.shapes'
local dropout_streams = require 'moonshard.base.dropout_streams'
local spatial = require 'moonshard.ops.spatial'
local unary = require 'moonshard.ops.unary'

local C, calls = B.C, B.calls
local type = type

---@class ms.ops: ms.Unary, ms.ops.Losses, ms.ops.Spatial
local ops = {}

local info = B.new('ms_tensor_info')

local function ndim(what, x)
  if type(x) ~= 'cdata' then -- C's error would not name the operator
    arguments.no_tensor(what, 'x', x)
  end
  calls.tensor_describe(x, info)
  return info.ndim
end

-- -- arithmetic ----------------------------------------------------------------------------------

-- A number takes the dtype of the tensor operand. Integer tensors accept only integers, because
-- dtypes are not promoted: use t:to('f32') for fractions.
local ADD, SUB, SUB_FROM, MUL = C.MS_NUMBER_ADD, C.MS_NUMBER_SUB, C.MS_NUMBER_SUB_FROM,
  C.MS_NUMBER_MUL

local NARROW = { [C.MS_DTYPE_BF16] = true, [C.MS_DTYPE_F16] = true }

--- Apply `op` to the tensor and to the number as a temporary tensor without dimensions. For f16 and
--- bf16 it computes in f32 with the exact number and rounds once.
local function with_scalar(what, like, number, op)
  calls.tensor_describe(like, info)
  B.check(C.ms_dtype_check(what, info.dtype, number))
  local narrow = NARROW[info.dtype] and info.dtype
  local scalar = calls.tensor_full(narrow and C.MS_DTYPE_F32 or info.dtype, 0, nil, number)
  local result = op(narrow and calls.cast(like, C.MS_DTYPE_F32) or like, scalar)
  C.ms_ref_release(scalar)
  return narrow and calls.cast(result, narrow) or result
end

local function check_fractions(t)
  calls.tensor_describe(t, info)
  if not C.ms_dtype_is_floating(info.dtype) then
    errors.raise('TypeError', "div: the tensor is %s, expected a floating dtype; t:to('f32') can "
      .. 'be divided', dtype.name(info.dtype))
  end
  return t
end

local function exchanged(op)
  return function(a, b) return op(b, a) end
end

---@param a ms.Tensor|number
---@param b ms.Tensor|number
---@return ms.Tensor
function ops.add(a, b)
  if type(b) == 'number' and type(a) == 'cdata' then
    return calls.with_number(a, b, ADD)
  elseif type(a) == 'number' and type(b) == 'cdata' then
    return calls.with_number(b, a, ADD)
  end
  return calls.add(a, b)
end

---@param a ms.Tensor|number
---@param b ms.Tensor|number
---@return ms.Tensor
function ops.sub(a, b)
  if type(b) == 'number' and type(a) == 'cdata' then
    return calls.with_number(a, b, SUB)
  elseif type(a) == 'number' and type(b) == 'cdata' then
    return calls.with_number(b, a, SUB_FROM)
  end
  return calls.sub(a, b)
end

---@param a ms.Tensor|number
---@param b ms.Tensor|number
---@return ms.Tensor
function ops.mul(a, b)
  if type(b) == 'number' and type(a) == 'cdata' then
    return calls.with_number(a, b, MUL)
  elseif type(a) == 'number' and type(b) == 'cdata' then
    return calls.with_number(b, a, MUL)
  end
  return calls.mul(a, b)
end

--- Divides: a multiplication by the reciprocal would give other bits.
---@param a ms.Tensor|number
---@param b ms.Tensor|number
---@return ms.Tensor
function ops.div(a, b)
  if type(b) == 'number' and type(a) == 'cdata' then
    return with_scalar('div', check_fractions(a), b, calls.div)
  elseif type(a) == 'number' and type(b) == 'cdata' then
    return with_scalar('div', check_fractions(b), a, exchanged(calls.div))
  end
  return calls.div(a, b)
end

local function check_divisor(b)
  local zero = b == 0
  if type(b) ~= 'number' then
    calls.tensor_describe(b, info)
    zero = not C.ms_dtype_is_floating(info.dtype) and info.data ~= nil
      and compare.any(calls.compare_number(b, 0, C.MS_COMPARE_EQ))
  end
  if zero then
    errors.raise('RuntimeError', 'remainder: division of integers by zero')
  end
end

--- a - b floor(a / b), which has the sign of b; short form: a % b. For integers RuntimeError if b
--- is 0, so a tensor of integer divisors waits for the device.
---@param a ms.Tensor|number
---@param b ms.Tensor|number
---@return ms.Tensor
function ops.remainder(a, b)
  if type(b) == 'number' and type(a) == 'cdata' then
    calls.tensor_describe(a, info)
    if not C.ms_dtype_is_floating(info.dtype) then
      check_divisor(b)
    end
    return with_scalar('remainder', a, b, calls.remainder)
  elseif type(b) == 'cdata' then
    check_divisor(b)
    if type(a) == 'number' then
      return with_scalar('remainder', b, a, exchanged(calls.remainder))
    end
  end
  return calls.remainder(a, b)
end

--- x^p; x or p may be a number; short form: x ^ p. NaN for a negative x unless p is an integer.
---@param x ms.Tensor|number
---@param p ms.Tensor|number
---@return ms.Tensor
function ops.pow(x, p)
  if type(p) == 'number' then
    return calls.pow(x, p)
  elseif not B.is_ref(p) then
    errors.raise('TypeError', 'pow: the exponent is %s, expected a number or a tensor',
      arguments.noun(p))
  elseif type(x) == 'number' then
    return with_scalar('pow', p, x, exchanged(calls.power))
  end
  return calls.power(x, p)
end

--- scale * x + shift
---@type fun(x: ms.Tensor, scale: number, shift: number): ms.Tensor
ops.affine = calls.affine

for _, name in ipairs(unary.functions) do
  ops[name] = calls[name]
end

local round_options = { decimals = 'whole' }

--- Round to a multiple of 10^-decimals, half to even. f16 and bf16 are scaled in f32. An element
--- that overflows when it is scaled becomes infinite.
---@param x ms.Tensor
---@param decimals? integer|{ decimals?: integer }  negative: positions before the decimal point
---  (default 0)
---@return ms.Tensor
function ops.round(x, decimals)
  if type(decimals) == 'table' then
    decimals = errors.options('round', decimals, round_options).decimals
  end
  decimals = arguments.whole('round', 'decimals', decimals, 0)
  if decimals == 0 then
    return calls.round(x)
  end
  ndim('round', x)
  if not C.ms_dtype_is_floating(info.dtype) then
    errors.raise('TypeError', "round: 'decimals' is %d and the tensor is %s, expected a floating "
      .. 'dtype', decimals, dtype.name(info.dtype))
  end
  local narrow, scale = NARROW[info.dtype] and info.dtype, 10 ^ math.abs(decimals)
  local wide = narrow and calls.cast(x, C.MS_DTYPE_F32) or x
  local out = decimals > 0 and ops.div(calls.round(ops.mul(wide, scale)), scale)
    or ops.mul(calls.round(ops.div(wide, scale)), scale)
  return narrow and calls.cast(out, narrow) or out
end

--- Tests of each element for NaN, infinity and a finite value, as bool tensors.
---@type fun(x: ms.Tensor): ms.Tensor
ops.isnan = calls.isnan
---@type fun(x: ms.Tensor): ms.Tensor
ops.isinf = calls.isinf
---@type fun(x: ms.Tensor): ms.Tensor
ops.isfinite = calls.isfinite

local function is_tanh(what, approximate)
  if approximate ~= nil and approximate ~= 'tanh' and approximate ~= 'none' then
    errors.choice(what, 'approximate', approximate, { 'none', 'tanh' })
  end
  return approximate == 'tanh'
end

---@param x ms.Tensor
---@param approximate? 'none'|'tanh'
---@return ms.Tensor
function ops.gelu(x, approximate)
  return calls.gelu(x, is_tanh('gelu', approximate))
end

--- log(1 + exp(beta x)) / beta; x itself where beta x > threshold.
---@param x ms.Tensor
---@param beta? number  default 1
---@param threshold? number  default 20
---@return ms.Tensor
function ops.softplus(x, beta, threshold)
  return calls.softplus(x, arguments.number('softplus', 'beta', beta, 1),
    arguments.number('softplus', 'threshold', threshold, 20))
end

--- x where x > 0, else negative_slope x.
---@param x ms.Tensor
---@param negative_slope? number  default 0.01
---@return ms.Tensor
function ops.leaky_relu(x, negative_slope)
  return calls.leaky_relu(x, arguments.number('leaky_relu', 'negative_slope', negative_slope, 0.01))
end

--- Elementwise maximum; NaN if either operand is NaN.
---@type fun(a: ms.Tensor, b: ms.Tensor): ms.Tensor
ops.maximum = calls.maximum
--- Elementwise minimum; NaN if either operand is NaN.
---@type fun(a: ms.Tensor, b: ms.Tensor): ms.Tensor
ops.minimum = calls.minimum

--- x limited to [low, high]; one bound may be nil.
---@param x ms.Tensor
---@param low? number
---@param high? number
---@return ms.Tensor
function ops.clamp(x, low, high)
  if low == nil and high == nil then
    errors.raise('ValueError', "clamp: both 'min' and 'max' are nil, expected a number")
  end
  return calls.clamp(x, arguments.number('clamp', 'min', low, -math.huge),
    arguments.number('clamp', 'max', high, math.huge))
end

-- -- matrices and layers -------------------------------------------------------------------------

--- a (..., M, K), b (..., K, N) -> (..., M, N). Leading dimensions broadcast. A vector (K) is a row
--- on the left and a column on the right; the result then lacks M or N.
---@type fun(a: ms.Tensor, b: ms.Tensor): ms.Tensor
ops.matmul = calls.matmul

--- x (..., in), w (out, in), bias (out) or nil -> (..., out)
---@type fun(x: ms.Tensor, w: ms.Tensor, bias: ms.Tensor?): ms.Tensor
ops.linear = calls.linear

--- gelu(linear(x, w, bias)) in one pass, with the same values; on a GPU 'tanh' in bf16 and f16 is
--- rounded once, not also before it.
---@param x ms.Tensor  (..., in)
---@param w ms.Tensor  (out, in)
---@param bias? ms.Tensor  (out)
---@param approximate? 'none'|'tanh'
---@return ms.Tensor  (..., out)
function ops.linear_gelu(x, w, bias, approximate)
  return calls.linear_gelu(x, w, bias, is_tanh('linear_gelu', approximate))
end

---@class ms.ops.EmbeddingOptions
---@field padding_idx? integer  row that gets no gradient; counted from 0, or from -1 at the end

local embedding_options = { padding_idx = 'whole' }

--- table (V, C), ids i64 (...) from 0 -> (..., C)
---@param table ms.Tensor
---@param ids ms.Tensor
---@param opts? ms.ops.EmbeddingOptions
---@return ms.Tensor
function ops.embedding(table, ids, opts)
  local out = calls.embedding(table, ids)
  local row = opts and errors.options('embedding', opts, embedding_options).padding_idx
  if not row then
    return out
  end
  local is_padding = ids:eq(dims.row('embedding', 'padding_idx', row, table:size(1))):unsqueeze(-1)
  return calls.where(is_padding, out:detach(), out)
end

--- Layer normalisation over the last dimension.
---@param x ms.Tensor  (..., C)
---@param w? ms.Tensor  (C)
---@param bias? ms.Tensor  (C)
---@param eps? number  default 1e-5
---@return ms.Tensor
function ops.layer_norm(x, w, bias, eps)
  return calls.layer_norm(x, w, bias, eps == nil and 1e-5 or eps)
end

--- x - log(sum(exp(x))), the sum over one dimension.
---@param x ms.Tensor  of one dimension or more
---@param dim? integer  default: the last
---@return ms.Tensor
function ops.log_softmax(x, dim)
  if dim == nil or dims.index(dim, ndim('log_softmax', x), 'log_softmax') == info.ndim - 1 then
    return calls.log_softmax(x)
  end
  return ops.transpose(calls.log_softmax(ops.transpose(x, dim, -1)), dim, -1)
end

--- exp(x) / sum(exp(x)), the sum over one dimension.
---@param x ms.Tensor  of one dimension or more
---@param dim? integer  default: the last
---@return ms.Tensor
function ops.softmax(x, dim)
  if dim == nil or dims.index(dim, ndim('softmax', x), 'softmax') == info.ndim - 1 then
    return calls.softmax(x)
  end
  return ops.transpose(calls.softmax(ops.transpose(x, dim, -1)), dim, -1)
end

---@class ms.ops.AttentionOptions
---@field causal? boolean  position t attends to positions s <= t only (default false)
---@field scale? number  finite, not 0 (default 1 / sqrt(D))

-- 0 means the default in C.
local function scale(what, given)
  if given == 0 then
    errors.raise('ValueError', "%s: 'scale' is 0, expected another number, or none for 1 / sqrt(D)",
      what)
  end
  return arguments.number(what, 'scale', given, 0)
end

local attention_options = { 'causal', 'scale' }

local function attention_arguments(what, opts)
  opts = errors.options(what, opts, attention_options)
  return arguments.flag(what, 'causal', opts.causal, false), scale(what, opts.scale)
end

--- softmax(q k^T scale) v; the scores are not stored.
---@param q ms.Tensor  (B, H, T, D)
---@param k ms.Tensor  (B, H, S, D)
---@param v ms.Tensor  (B, H, S, D)
---@param opts? ms.ops.AttentionOptions
---@return ms.Tensor  (B, H, T, D)
function ops.attention(q, k, v, opts)
  return calls.attention(q, k, v, attention_arguments('attention', opts))
end

--- The same for a packed projection, which contains q, k and v in this order.
---@param qkv ms.Tensor  (B, T, 3 C)
---@param heads integer
---@param opts? ms.ops.AttentionOptions
---@return ms.Tensor  (B, T, C)
function ops.attention_packed(qkv, heads, opts)
  return calls.attention_packed(qkv, heads, attention_arguments('attention_packed', opts))
end

--- The dropout stream of a module path, for ops.dropout.
---@param path string
---@return ms.Site  opaque
function ops.site(path)
  return dropout_streams.of(arguments.text('site', 'path', path))
end

local ANYWHERE = dropout_streams.of('ms.ops.dropout') -- not a module's path

local function site_of(site)
  if dropout_streams.is(site) then
    return site
  elseif site == nil or site == true then
    return ANYWHERE
  elseif type(site) ~= 'string' then
    arguments.refuse('dropout', 'site', site, 'true, false or a string')
  end
  return ops.site(site)
end

--- Zero elements with probability p and divide the rest by 1 - p. The mask depends on the seed, the
--- stream, the call and the global sample index, not on how samples are assigned to ranks. Every
--- call draws a new mask. See nn.Dropout for the sample indices.
---@param x ms.Tensor  (samples, ...)
---@param p number
---@param site? boolean|string|ms.Site  false: not training, returns x; true or nil: training; a
---  module path or the result of ops.site(): draw from that stream
---@param call? integer  number of earlier calls with this stream in the micro-batch (default:
---  counted)
---@return ms.Tensor
function ops.dropout(x, p, site, call)
  if site == false then
    arguments.tensor('dropout', 'x', x)
    if not (arguments.number('dropout', 'p', p) >= 0 and p <= 1) then
      errors.raise('ValueError', 'dropout: probability is %g, expected 0 to 1', p)
    end
    return x
  end
  site = site_of(site)
  local n = call or samples.ran(site)
  local out = calls.dropout(x, p, site.key, n)
  if call then
    samples.drew_given(call)
  else
    samples.drew(site, n)
  end
  return out
end

---@class ms.ops.ScaledDotProductAttentionOptions
---@field attn_mask? ms.Tensor  broadcasts to (..., H, T, S). bool: true where a query attends to a
---  key; f32 or q's dtype: added to the scaled scores
---@field dropout_p? number  of the attention probabilities (default 0)
---@field is_causal? boolean  position t attends to s <= t only; not with attn_mask (default false)
---@field scale? number  finite (default 1 / sqrt(D))
---@field enable_gqa? boolean  k and v may have fewer heads, which must divide H (default false)
---@field site? boolean|string|ms.Site  dropout stream, as in ops.dropout

local SDPA = 'scaled_dot_product_attention'
local sdpa_options = { 'attn_mask', 'dropout_p', 'is_causal', 'scale', 'enable_gqa', 'site' }

--- softmax(q k^T scale + attn_mask) v; the scores are not stored. A query that attends to no key
--- gives 0. k and v must be finite also at masked positions.
---@param q ms.Tensor  (..., H, T, D), of two dimensions or more
---@param k ms.Tensor  (..., H, S, D)
---@param v ms.Tensor  (..., H, S, E)
---@param opts? ms.ops.ScaledDotProductAttentionOptions
---@return ms.Tensor  (..., H, T, E)
function ops.scaled_dot_product_attention(q, k, v, opts)
  opts = errors.options(SDPA, opts, sdpa_options)
  local p, site = arguments.number(SDPA, 'dropout_p', opts.dropout_p, 0), opts.site
  local mask = opts.attn_mask and arguments.tensor(SDPA, 'attn_mask', opts.attn_mask)
  local causal = arguments.flag(SDPA, 'is_causal', opts.is_causal, false)
  local shared = arguments.flag(SDPA, 'enable_gqa', opts.enable_gqa, false)
  if causal and mask then
    errors.raise('RuntimeError', '%s: attn_mask is given and is_causal is true, expected one of '
      .. 'them', SDPA)
  elseif not (p >= 0 and p <= 1) then
    errors.raise('ValueError', '%s: dropout probability is %g, expected 0 to 1', SDPA, p)
  end
  site = p > 0 and site ~= false and site_of(site) or nil
  return attend.any(SDPA, q, k, v, {
    mask = mask, causal = causal, shared = shared, p = site and p or 0, site = site,
    scale = opts.scale and arguments.number(SDPA, 'scale', opts.scale),
  })
end

--- Turn the pairs of elements i and i + D / 2 of each row by an angle (rotary positions).
---@param x ms.Tensor  (..., D)
---@param cos ms.Tensor  of the angles; broadcasts to (..., D / 2)
---@param sin ms.Tensor
---@return ms.Tensor  (..., D)
function ops.rotary(x, cos, sin)
  return calls.rotary(x, cos, sin)
end

-- -- reductions and shapes -----------------------------------------------------------------------

--- Sum over all dimensions, or over the given ones.
---@param x ms.Tensor
---@param over? integer|integer[]
---@param keepdim? boolean|{ keepdim: boolean }
---@return ms.Tensor
function ops.sum(x, over, keepdim)
  return calls.sum(x, over ~= nil and dims.mask(over, ndim('sum', x), 'sum') or 0,
    dims.keepdim('sum', keepdim))
end

---@param x ms.Tensor
---@param over? integer|integer[]
---@param keepdim? boolean|{ keepdim: boolean }
---@return ms.Tensor
function ops.mean(x, over, keepdim)
  return calls.mean(x, over ~= nil and dims.mask(over, ndim('mean', x), 'mean') or 0,
    dims.keepdim('mean', keepdim))
end

--- Cumulative sums along a dimension, in i64 for integers and bool.
---@param x ms.Tensor
---@param dim integer
---@return ms.Tensor
function ops.cumsum(x, dim)
  return calls.cumsum(x, dims.index(dim, ndim('cumsum', x), 'cumsum'))
end

--- A view if the strides allow it, else a copy. One size may be -1.
---@param x ms.Tensor
---@param ... integer|integer[]
---@return ms.Tensor
function ops.reshape(x, ...)
  return calls.reshape(x, dims.shape(dims.list('reshape', ...), 'reshape', -1))
end

local order = B.new('int32_t[?]', C.MS_MAX_DIMS)

--- A view with permuted dimensions: dimension i is the i-th argument.
---@param x ms.Tensor
---@param ... integer|integer[]
---@return ms.Tensor
function ops.permute(x, ...)
  local list = dims.list('permute', ...)
  local n = ndim('permute', x)
  if #list ~= n then
    errors.raise('ValueError', 'permute: %d dimensions given, expected %d', #list, n)
  end
  for i = 1, n do
    order[i - 1] = dims.index(list[i], n, 'permute')
  end
  return calls.permute(x, n, order)
end

--- A view with two dimensions swapped.
---@param x ms.Tensor
---@param a integer
---@param b integer
---@return ms.Tensor
function ops.transpose(x, a, b)
  local n = ndim('transpose', x)
  local i, j = dims.index(a, n, 'transpose'), dims.index(b, n, 'transpose')
  for d = 0, n - 1 do
    order[d] = d
  end
  order[i], order[j] = j, i
  return calls.permute(x, n, order)
end

--- A view of `length` entries of a dimension, beginning at `start` (counted from 1).
---@param x ms.Tensor
---@param dim integer
---@param start integer
---@param length integer
---@return ms.Tensor
function ops.narrow(x, dim, start, length)
  local d = dims.index(dim, ndim('narrow', x), 'narrow')
  local size = tonumber(info.shape[d])
  arguments.whole('narrow', 'start', start)
  arguments.whole('narrow', 'length', length)
  if start < 1 or length < 0 or start - 1 + length > size then
    errors.raise('IndexError', 'narrow: %d entries from %d exceed dimension %d of size %d', length,
      start, dim, size)
  end
  return calls.narrow(x, d, start - 1, length)
end

--- A view without dimension `dim`, at index `index` (counted from 1, or from the end).
---@param x ms.Tensor
---@param dim integer
---@param index integer
---@return ms.Tensor
function ops.select(x, dim, index)
  local d = dims.index(dim, ndim('select', x), 'select')
  return calls.select(x, d, dims.entry(index, tonumber(info.shape[d]), d + 1, 'select'))
end

--- Concatenate along a dimension.
---@param list ms.Tensor[]
---@param dim? integer  default 1
---@return ms.Tensor
function ops.cat(list, dim)
  local refs, n = B.array(arguments.array('cat', 'list', list), 'cat')
  if n == 0 then
    errors.raise('ValueError', 'cat: the list is empty, expected at least one tensor')
  end
  return calls.cat(refs, n, dims.index(dim == nil and 1 or dim, ndim('cat', list[1]), 'cat'))
end

--- Cast to another dtype. To integers, fractions are truncated; i64 saturates (infinities too) and
--- is 0 for NaN; i32 and u8 take the low 32 and 8 bits of the i64 value. bool is true for every
--- value except 0, also for NaN. Floats round to nearest; values that are too large become
--- infinite.
---@param x ms.Tensor
---@param to ms.DType
---@return ms.Tensor
function ops.cast(x, to)
  return calls.cast(x, dtype.code(to))
end

--- A contiguous copy.
---@type fun(x: ms.Tensor): ms.Tensor
ops.clone = calls.clone

for name, fn in next, compare do
  ops[name] = fn
end
for _, functions in ipairs {
  shapes.functions, products, masks, reduced, positions, selected.functions, padding, einsum,
  spatial.functions, interpolate.functions, losses,
} do
  for name, fn in next, functions do
    ops[name] = fn
  end
end

return ops
