--- Comparisons, elementwise selection, and predicates.
---
--- Comparisons are methods, not operators: Lua converts the result of `a < b` to one boolean, and
--- `a == b` compares identity.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'

local C, calls = B.C, B.calls
local type = type

local compare = {}

local info = B.new('ms_tensor_info')
local answer = B.new('bool[1]')

-- -- elementwise ---------------------------------------------------------------------------------

local function relation(name, code)
  return function(a, b)
    if type(a) ~= 'cdata' then
      arguments.refuse(name, 'a', a, 'a tensor')
    elseif type(b) == 'number' then
      return calls.compare_number(a, b, code)
    elseif type(b) == 'boolean' then
      return calls.compare_number(a, b and 1 or 0, code)
    elseif type(b) ~= 'cdata' then
      arguments.refuse(name, 'b', b, 'a tensor or a number')
    end
    return calls.compare(a, b, code)
  end
end

--- a == b as a bool tensor. Shapes broadcast; not differentiable.
---@type fun(a: ms.Tensor, b: ms.Tensor|number|boolean): ms.Tensor
compare.eq = relation('eq', C.MS_COMPARE_EQ)
--- a ~= b as a bool tensor
---@type fun(a: ms.Tensor, b: ms.Tensor|number|boolean): ms.Tensor
compare.ne = relation('ne', C.MS_COMPARE_NE)
--- a < b as a bool tensor
---@type fun(a: ms.Tensor, b: ms.Tensor|number|boolean): ms.Tensor
compare.lt = relation('lt', C.MS_COMPARE_LT)
--- a <= b as a bool tensor
---@type fun(a: ms.Tensor, b: ms.Tensor|number|boolean): ms.Tensor
compare.le = relation('le', C.MS_COMPARE_LE)
--- a > b as a bool tensor
---@type fun(a: ms.Tensor, b: ms.Tensor|number|boolean): ms.Tensor
compare.gt = relation('gt', C.MS_COMPARE_GT)
--- a >= b as a bool tensor
---@type fun(a: ms.Tensor, b: ms.Tensor|number|boolean): ms.Tensor
compare.ge = relation('ge', C.MS_COMPARE_GE)

--- A number as a tensor without dimensions, in the dtype of `like` (f32 if `like` is a number). A
--- number that an integer dtype cannot hold raises: dtypes are not promoted.
local function as_tensor(value, like)
  if type(value) ~= 'number' then
    return value
  end
  local code = C.MS_DTYPE_F32
  if B.is_ref(like) then
    calls.tensor_describe(like, info)
    code = info.dtype
    B.check(C.ms_dtype_check('where', code, value))
  end
  return calls.tensor_full(code, 0, nil, value)
end

--- a where `cond` is true, else b; the three broadcast. The gradient goes to the selected elements.
---@param cond ms.Tensor  bool
---@param a ms.Tensor|number
---@param b ms.Tensor|number
---@return ms.Tensor
function compare.where(cond, a, b)
  local yes, no = as_tensor(a, b), as_tensor(b, a)
  local result = calls.where(cond, yes, no)
  if yes ~= a then
    C.ms_ref_release(yes)
  end
  if no ~= b then
    C.ms_ref_release(no)
  end
  return result
end

-- -- logic ---------------------------------------------------------------------------------------

local function truth(what, name, x)
  return calls.compare_number(arguments.tensor(what, name, x), 0, C.MS_COMPARE_NE)
end

local function logical(what, combine)
  return function(a, b)
    return combine(truth(what, 'a', a), truth(what, 'b', b))
  end
end

--- Logical and of elements (0 is false) as a bool tensor. Shapes broadcast; not differentiable.
---@type fun(a: ms.Tensor, b: ms.Tensor): ms.Tensor
compare.logical_and = logical('logical_and', function(a, b) return compare.where(a, b, 0) end)
--- Logical or of elements as a bool tensor
---@type fun(a: ms.Tensor, b: ms.Tensor): ms.Tensor
compare.logical_or = logical('logical_or', function(a, b) return compare.where(a, 1, b) end)
--- Exclusive or of elements as a bool tensor
---@type fun(a: ms.Tensor, b: ms.Tensor): ms.Tensor
compare.logical_xor = logical('logical_xor', function(a, b)
  return calls.compare(a, b, C.MS_COMPARE_NE)
end)

--- Logical negation of elements as a bool tensor
---@param x ms.Tensor
---@return ms.Tensor
function compare.logical_not(x)
  return calls.compare_number(arguments.tensor('logical_not', 'x', x), 0, C.MS_COMPARE_EQ)
end

-- -- yes or no -----------------------------------------------------------------------------------

--- Are all elements of a bool tensor true? True for an empty tensor.
---@param x ms.Tensor  bool
---@return boolean
function compare.all(x)
  calls.tensor_all(x, answer)
  return answer[0]
end

--- Is any element of a bool tensor true?
---@param x ms.Tensor  bool
---@return boolean
function compare.any(x)
  calls.tensor_any(x, answer)
  return answer[0]
end

--- Are shape, dtype and all values equal? NaN is unequal to every value.
---@param a ms.Tensor
---@param b ms.Tensor
---@return boolean
function compare.equal(a, b)
  calls.tensor_equal(a, b, answer)
  return answer[0]
end

local tolerances = { rtol = 'number', atol = 'number' }

--- Is |a - b| <= atol + rtol |b| for all elements? False for NaN.
---@param a ms.Tensor
---@param b ms.Tensor
---@param rtol? number|{ rtol?: number, atol?: number }  default 1e-5
---@param atol? number  default 1e-8
---@return boolean
function compare.allclose(a, b, rtol, atol)
  if type(rtol) == 'table' then
    if atol ~= nil then
      errors.raise('TypeError', "allclose: 'atol' is %s behind the options, expected in their "
        .. 'table', arguments.noun(atol))
    end
    local opts = errors.options('allclose', rtol, tolerances)
    rtol, atol = opts.rtol, opts.atol
  end
  calls.tensor_allclose(a, b, rtol == nil and 1e-5 or rtol, atol == nil and 1e-8 or atol, answer)
  return answer[0]
end

return compare
