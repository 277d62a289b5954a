--- Matrix and vector products under PyTorch's names. Each checks the numbers of its operands'
--- dimensions and calls ops.matmul, which accepts any.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'

local C, calls = B.C, B.calls
local type = type

local products = {}

local info = B.new('ms_tensor_info')

local function check_dims(what, name, x, expected)
  if type(x) ~= 'cdata' then
    arguments.no_tensor(what, name, x)
  end
  calls.tensor_describe(x, info)
  if info.ndim ~= expected then
    errors.raise('ValueError', "%s: '%s' has %d dimensions, expected %d", what, name, info.ndim,
      expected)
  end
end

local function size(x, dim)
  calls.tensor_describe(x, info)
  return tonumber(info.shape[dim - 1])
end

local function product(what, a_dims, b_dims)
  return function(a, b)
    check_dims(what, 'a', a, a_dims)
    check_dims(what, 'b', b, b_dims)
    return calls.matmul(a, b)
  end
end

--- a (M, K), b (K, N) -> (M, N)
---@type fun(a: ms.Tensor, b: ms.Tensor): ms.Tensor
products.mm = product('mm', 2, 2)
--- a (M, K), b (K) -> (M)
---@type fun(a: ms.Tensor, b: ms.Tensor): ms.Tensor
products.mv = product('mv', 2, 1)
--- a (K), b (K) -> ()
---@type fun(a: ms.Tensor, b: ms.Tensor): ms.Tensor
products.dot = product('dot', 1, 1)

--- a (B, M, K), b (B, K, N) -> (B, M, N); B does not broadcast.
---@param a ms.Tensor
---@param b ms.Tensor
---@return ms.Tensor
function products.bmm(a, b)
  check_dims('bmm', 'a', a, 3)
  check_dims('bmm', 'b', b, 3)
  if size(a, 1) ~= size(b, 1) then
    errors.raise('ValueError', 'bmm: batches are %d and %d, expected one number', size(a, 1),
      size(b, 1))
  end
  return calls.matmul(a, b)
end

--- a (M), b (N) -> (M, N)
---@param a ms.Tensor
---@param b ms.Tensor
---@return ms.Tensor
function products.outer(a, b)
  check_dims('outer', 'a', a, 1)
  check_dims('outer', 'b', b, 1)
  local column = a:unsqueeze(2)
  local out = calls.mul(column, b)
  C.ms_ref_release(column)
  return out
end

local factors = { beta = 'number', alpha = 'number' }

-- factor x; returns x itself if the factor is 1.
local function scaled(x, factor)
  return factor == 1 and x or calls.with_number(x, factor, C.MS_NUMBER_MUL)
end

-- beta input + alpha product, in the shape of the product.
local function add_product(what, input, product_of, a, b, opts)
  opts = errors.options(what, opts, factors)
  local alpha = arguments.number(what, 'alpha', opts.alpha, 1)
  local beta = arguments.number(what, 'beta', opts.beta, 1)
  arguments.tensor(what, 'input', input)
  local result = scaled(product_of(a, b), alpha)
  local wide = input:expand_as(result)
  return beta == 0 and result or calls.add(scaled(wide, beta), result)
end

--- beta input + alpha (a b): input broadcasts to (M, N), a (M, K), b (K, N). If beta is 0, input is
--- not read, so its NaN has no effect.
---@param input ms.Tensor
---@param a ms.Tensor
---@param b ms.Tensor
---@param opts? { beta?: number, alpha?: number }  default 1
---@return ms.Tensor
function products.addmm(input, a, b, opts)
  check_dims('addmm', 'a', a, 2)
  check_dims('addmm', 'b', b, 2)
  return add_product('addmm', input, calls.matmul, a, b, opts)
end

--- The same for batches: a (B, M, K), b (B, K, N).
---@param input ms.Tensor
---@param a ms.Tensor
---@param b ms.Tensor
---@param opts? { beta?: number, alpha?: number }  default 1
---@return ms.Tensor
function products.baddbmm(input, a, b, opts)
  check_dims('baddbmm', 'a', a, 3)
  check_dims('baddbmm', 'b', b, 3)
  return add_product('baddbmm', input, products.bmm, a, b, opts)
end

return products
