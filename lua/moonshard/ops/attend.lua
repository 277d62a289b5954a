--- Attention with masks and dropout, shared by ops.scaled_dot_product_attention and
--- nn.MultiheadAttention.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local create = require 'moonshard.base.create'
local errors = require 'moonshard.base.errors'
local samples = require 'moonshard.base.samples'

local calls = B.calls

local attend = {}

--- The attention operator. A mask and `causal` are combined.
---@param q ms.Tensor  (B, H, T, D)
---@param k ms.Tensor  (B, G, S, D), H a multiple of G
---@param v ms.Tensor  (B, G, S, D)
---@param mask ms.Tensor?  broadcasts to (B, H, T, S); bool: true where a query attends to a key
---@param causal boolean
---@param scale number
---@param p number  of dropout
---@param site ms.Site?  required if p is not 0
---@return ms.Tensor  (B, H, T, D)
function attend.heads(q, k, v, mask, causal, scale, p, site)
  if p == 0 then
    return calls.scaled_dot_product_attention(q, k, v, mask, causal, scale, 0, 0, 0)
  end
  local n = samples.ran(site)
  local out = calls.scaled_dot_product_attention(q, k, v, mask, causal, scale, p, site.key, n)
  samples.drew(site, n)
  return out
end

-- x (..., H, T, D) as (B, H, T, D). The first of three dimensions is that of samples, unless query
-- heads share key heads.
local function four(x, n, is_shared)
  if n == 4 then
    return x
  elseif n == 3 then
    return x:unsqueeze(is_shared and 1 or 2)
  elseif n == 2 then
    return x:unsqueeze(1):unsqueeze(1)
  end
  return x:flatten(1, n - 3)
end

-- The mask for operands reshaped by four(); `shape` is that of the scores.
local function mask_of(mask, n, is_shared, shape)
  if mask == nil or n == 4 or mask:dim() < 3 then
    return mask
  elseif n > 4 and mask:dim() > 3 then
    mask = mask:expand(unpack(shape))
  end
  return four(mask, n > 4 and mask:dim() == 3 and 4 or n, is_shared)
end

-- x padded with zeros to a width of the last dimension.
local function widened(x, width)
  local shape = x:shape()
  if shape[#shape] == width then
    return x
  end
  shape[#shape] = width - shape[#shape]
  return calls.cat(B.array({ x, create.zeros(shape, { dtype = x:dtype() }) }, 'cat'), 2, #shape - 1)
end

local function check(what, q, k, v, enable_gqa)
  local n = arguments.tensor(what, 'q', q):dim()
  arguments.tensor(what, 'k', k)
  arguments.tensor(what, 'v', v)
  if n < 2 or k:dim() ~= n or v:dim() ~= n then
    errors.raise('ValueError', '%s: q, k and v have %d, %d and %d dimensions, expected as many, '
      .. 'and at least 2', what, n, k:dim(), v:dim())
  elseif q:size(-1) ~= k:size(-1) then
    errors.raise('ValueError', '%s: heads of q and k have widths %d and %d, expected equal ones',
      what, q:size(-1), k:size(-1))
  elseif n > 2 and q:size(-3) ~= k:size(-3) and not enable_gqa then
    errors.raise('ValueError', '%s: q has %d heads and k %d, expected as many, or enable_gqa = '
      .. 'true', what, q:size(-3), k:size(-3))
  end
  return n
end

--- Attention for operands of any number of dimensions. The kernel needs one head width, so narrower
--- heads are padded with zeros.
---@param what string  the function
---@param opts table  mask, causal, scale, p, site as above; shared: key heads may be fewer
---@return ms.Tensor
function attend.any(what, q, k, v, opts)
  local n = check(what, q, k, v, opts.shared)
  local depth, width = q:size(-1), v:size(-1)
  local shape = q:shape()
  shape[n] = k:size(-2)
  local mask = mask_of(opts.mask, n, opts.shared, shape)
  local most = math.max(depth, width)
  local function part(x)
    return widened(four(x, n, opts.shared), most)
  end
  local y = attend.heads(part(q), part(k), part(v), mask, opts.causal,
    opts.scale or depth > 0 and 1 / math.sqrt(depth) or 1, opts.p, opts.site)
  if width ~= most then
    y = y:narrow(4, 1, width)
  end
  shape[n] = width
  return n == 4 and y or y:reshape(shape)
end

return attend
