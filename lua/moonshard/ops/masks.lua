--- Replacement of elements where a mask is true or on one side of a diagonal. Composed of
--- comparisons and where, so the gradient goes to the elements that are kept.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local create = require 'moonshard.base.create'
local dtype = require 'moonshard.base.dtype'
local errors = require 'moonshard.base.errors'

local C, calls = B.C, B.calls
local type = type

local masks = {}

local info = B.new('ms_tensor_info')

local function describe(what, name, x)
  if type(x) ~= 'cdata' then
    arguments.no_tensor(what, name, x)
  end
  calls.tensor_describe(x, info)
  return info
end

-- A number as a tensor without dimensions, in a dtype that can hold it.
local function scalar(what, code, value)
  B.check(C.ms_dtype_check(what, code, value))
  return calls.tensor_full(code, 0, nil, value)
end

--- x with `value` where `mask` is true; x and mask broadcast.
---@param x ms.Tensor
---@param mask ms.Tensor  bool
---@param value number|ms.Tensor  a tensor must have no dimensions; its gradient is summed
---@return ms.Tensor
function masks.masked_fill(x, mask, value)
  if describe('masked_fill', 'mask', mask).dtype ~= C.MS_DTYPE_BOOL then
    errors.raise('TypeError', 'masked_fill: the mask is %s, expected bool', dtype.name(info.dtype))
  end
  local code = describe('masked_fill', 'x', x).dtype
  if type(value) == 'number' then
    local filler = scalar('masked_fill', code, value)
    local result = calls.where(mask, filler, x)
    C.ms_ref_release(filler)
    return result
  elseif describe('masked_fill', 'value', value).ndim > 0 then
    errors.raise('ValueError', 'masked_fill: the value has %d dimensions, expected a number or a '
      .. 'tensor without dimensions', info.ndim)
  end
  return calls.where(mask, value, x)
end

-- bool (rows, columns): compares column index minus row index with `diagonal`.
local function triangle(rows, columns, diagonal, relation)
  local place = calls.tensor_arange(C.MS_DTYPE_I64, diagonal, 1, rows)
  local row, column = place:unsqueeze(2), calls.tensor_arange(C.MS_DTYPE_I64, 0, 1, columns)
  local mask = calls.compare(column, row, relation)
  for _, made in ipairs { place, row, column } do
    C.ms_ref_release(made)
  end
  return mask
end

local function keep(what, relation)
  return function(x, diagonal)
    diagonal = arguments.whole(what, 'diagonal', diagonal, 0)
    local n, code = describe(what, 'x', x).ndim, info.dtype
    if n < 2 then
      errors.raise('ValueError', '%s: x has %d dimensions, expected at least 2', what, n)
    end
    local mask = triangle(tonumber(info.shape[n - 2]), tonumber(info.shape[n - 1]), diagonal,
      relation)
    local zero = scalar(what, code, 0)
    local result = calls.where(mask, x, zero)
    C.ms_ref_release(mask)
    C.ms_ref_release(zero)
    return result
  end
end

--- The lower triangle of the last two dimensions; elements above it become zero, also NaN.
--- `diagonal` is the last diagonal that is kept: 0 the main one, 1 the one above it, -1 the one
--- below.
---@type fun(x: ms.Tensor, diagonal?: integer): ms.Tensor
masks.tril = keep('tril', C.MS_COMPARE_LE)
--- The upper triangle; `diagonal` is the first diagonal that is kept.
---@type fun(x: ms.Tensor, diagonal?: integer): ms.Tensor
masks.triu = keep('triu', C.MS_COMPARE_GE)

local document_options = { past = 'whole', window = 'whole', causal = 'flag' }

--- The attention mask of rows with several documents: a token at position p of its document sees
--- the p tokens before it and itself. This holds for packed documents, for padding on the left
--- (position 0) and for rows that continue from a cache.
---@param positions ms.Tensor  i64 (B, T) or (1, T): of each token in its document, from 0
---@param opts? { past?: integer, window?: integer, causal?: boolean }  past: tokens of each row
---  that a cache has, which the queries follow (default 0); window: most keys that a query sees,
---  its own among them; causal = false: later keys are not masked, for operators that are causal
---@return ms.Tensor  bool (B, 1, T, past + T)
function masks.document_mask(positions, opts)
  arguments.tensor('document_mask', 'positions', positions)
  opts = errors.options('document_mask', opts, document_options)
  local past, length = opts.past or 0, positions:size(2)
  local reach = opts.window and calls.clamp(positions, -math.huge, opts.window - 1) or positions
  local keys = create.arange(past + length)
  local first = create.arange(past, past + length) - reach
  local mask = calls.compare(keys, first:unsqueeze(2):unsqueeze(-1), C.MS_COMPARE_GE)
  if opts.causal == false then
    return mask
  end
  local own = create.arange(past, past + length):unsqueeze(2)
  local is_past = calls.compare(keys, own, C.MS_COMPARE_LE)
  return calls.where(is_past, mask, is_past)
end

return masks
