--- Tensors in Lua: operators, methods, printing.
---
--- A tensor is a ref: a runtime handle and its generation. Methods are stateless. Dimensions and
--- indices count from 1, negative ones from the end.
---
--- `t[i]` is a view of entry i without the first dimension; `t[i] = x` writes to it. `t[mask]`
--- copies the entries where a bool tensor is true; `t[mask] = x` writes to them. `a == b` compares
--- identity; elementwise comparisons are methods: `a:eq(b)`, ...

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local bit = require 'bit'
local capture = require 'moonshard.base.capture'
local device = require 'moonshard.base.device'
local dims = require 'moonshard.base.dims'
local dtype = require 'moonshard.base.dtype'
local entries = require 'moonshard.tensor.entries'
local errors = require 'moonshard.base.errors'
local parameter = require 'moonshard_ffi.parameter'
local format = require 'moonshard.tensor.format'
local graph = require 'moonshard.base.graph'
local ops = require 'moonshard.ops'
local random = require 'moonshard.base.random'
local writable = require 'moonshard.base.writable'

local C, calls, core = B.C, B.calls, B.core

---@class ms.Tensor: ms.Unary
---@operator add(ms.Tensor|number): ms.Tensor
---@operator sub(ms.Tensor|number): ms.Tensor
---@operator mul(ms.Tensor|number): ms.Tensor
---@operator div(ms.Tensor|number): ms.Tensor
---@operator mod(ms.Tensor|number): ms.Tensor
---@operator pow(ms.Tensor|number): ms.Tensor
---@operator unm: ms.Tensor
---@field [integer] ms.Tensor  a view without the first dimension
---@field gelu fun(self: ms.Tensor, approximate?: 'none'|'tanh'): ms.Tensor
---@field leaky_relu fun(self: ms.Tensor, negative_slope?: number): ms.Tensor
---@field softplus fun(self: ms.Tensor, beta?: number, threshold?: number): ms.Tensor
---@field pow fun(self: ms.Tensor, p: ms.Tensor|number): ms.Tensor
---@field remainder fun(self: ms.Tensor, b: ms.Tensor|number): ms.Tensor
---@field eq fun(self: ms.Tensor, other: ms.Tensor|number|boolean): ms.Tensor  bool
---@field ne fun(self: ms.Tensor, other: ms.Tensor|number|boolean): ms.Tensor  bool
---@field lt fun(self: ms.Tensor, other: ms.Tensor|number|boolean): ms.Tensor  bool
---@field le fun(self: ms.Tensor, other: ms.Tensor|number|boolean): ms.Tensor  bool
---@field gt fun(self: ms.Tensor, other: ms.Tensor|number|boolean): ms.Tensor  bool
---@field ge fun(self: ms.Tensor, other: ms.Tensor|number|boolean): ms.Tensor  bool
---@field all fun(self: ms.Tensor, over?: integer|integer[], keepdim?: boolean|table):
---  boolean|ms.Tensor  a boolean without dimensions
---@field any fun(self: ms.Tensor, over?: integer|integer[], keepdim?: boolean|table):
---  boolean|ms.Tensor  a boolean without dimensions
---@field max fun(self: ms.Tensor, dim?: integer, keepdim?: boolean|table): ms.Tensor, ms.Tensor?
---@field min fun(self: ms.Tensor, dim?: integer, keepdim?: boolean|table): ms.Tensor, ms.Tensor?
---@field amax fun(self: ms.Tensor, over?: integer|integer[], keepdim?: boolean|table): ms.Tensor
---@field amin fun(self: ms.Tensor, over?: integer|integer[], keepdim?: boolean|table): ms.Tensor
---@field argmax fun(self: ms.Tensor, dim?: integer, keepdim?: boolean|table): ms.Tensor  from 1
---@field argmin fun(self: ms.Tensor, dim?: integer, keepdim?: boolean|table): ms.Tensor  from 1
---@field prod fun(self: ms.Tensor, over?: integer|integer[], keepdim?: boolean|table): ms.Tensor
---@field var fun(self: ms.Tensor, over?: integer|integer[], opts?: ms.ops.SpreadOptions): ms.Tensor
---@field std fun(self: ms.Tensor, over?: integer|integer[], opts?: ms.ops.SpreadOptions): ms.Tensor
---@field logsumexp fun(self: ms.Tensor, over: integer|integer[], keepdim?: boolean|table):
---  ms.Tensor
---@field norm fun(self: ms.Tensor, p?: number, over?: integer|integer[], keepdim?: boolean|table):
---  ms.Tensor
---@field gather fun(self: ms.Tensor, dim: integer, index: ms.Tensor): ms.Tensor
---@field index_select fun(self: ms.Tensor, dim: integer, index: ms.Tensor): ms.Tensor
---@field index_copy fun(self: ms.Tensor, dim: integer, index: ms.Tensor, src: ms.Tensor): ms.Tensor
---@field index_add fun(self: ms.Tensor, dim: integer, index: ms.Tensor, src: ms.Tensor,
---  opts?: { alpha?: number }): ms.Tensor
---@field diag fun(self: ms.Tensor, diagonal?: integer): ms.Tensor
---@field masked_select fun(self: ms.Tensor, mask: ms.Tensor): ms.Tensor
---@field unique fun(self: ms.Tensor, opts?: table): ms.Tensor, ms.Tensor?, ms.Tensor?
---@field bincount fun(self: ms.Tensor, opts?: table): ms.Tensor
---@field repeat_interleave fun(self: ms.Tensor, repeats: integer|integer[]|ms.Tensor,
---  dim?: integer): ms.Tensor
---@field scatter fun(self: ms.Tensor, dim: integer, index: ms.Tensor, src: ms.Tensor|number):
---  ms.Tensor
---@field scatter_add fun(self: ms.Tensor, dim: integer, index: ms.Tensor, src: ms.Tensor):
---  ms.Tensor
---@field sort fun(self: ms.Tensor, dim?: integer, opts?: boolean|table): ms.Tensor, ms.Tensor
---@field argsort fun(self: ms.Tensor, dim?: integer, opts?: boolean|table): ms.Tensor
---@field topk fun(self: ms.Tensor, k: integer, dim?: integer, opts?: table): ms.Tensor, ms.Tensor
---@field nonzero fun(self: ms.Tensor): ms.Tensor  i64 (found, dimensions), from 1
---@field roll fun(self: ms.Tensor, shifts: integer|integer[], over?: integer|integer[]): ms.Tensor
---@field inner fun(self: ms.Tensor, b: ms.Tensor): ms.Tensor
---@field logical_and fun(self: ms.Tensor, b: ms.Tensor): ms.Tensor  bool
---@field logical_or fun(self: ms.Tensor, b: ms.Tensor): ms.Tensor  bool
---@field logical_xor fun(self: ms.Tensor, b: ms.Tensor): ms.Tensor  bool
---@field logical_not fun(self: ms.Tensor): ms.Tensor  bool
---@field equal fun(self: ms.Tensor, other: ms.Tensor): boolean
---@field allclose fun(self: ms.Tensor, x: ms.Tensor, rtol?: number|table, atol?: number): boolean
---@field log_softmax fun(self: ms.Tensor, dim?: integer): ms.Tensor  default: the last
---@field softmax fun(self: ms.Tensor, dim?: integer): ms.Tensor  default: the last
---@field round fun(self: ms.Tensor, decimals?: integer|{ decimals?: integer }): ms.Tensor
---@field clamp fun(self: ms.Tensor, low?: number, high?: number): ms.Tensor
---@field maximum fun(self: ms.Tensor, other: ms.Tensor): ms.Tensor
---@field minimum fun(self: ms.Tensor, other: ms.Tensor): ms.Tensor
---@field isnan fun(self: ms.Tensor): ms.Tensor  bool
---@field isinf fun(self: ms.Tensor): ms.Tensor  bool
---@field isfinite fun(self: ms.Tensor): ms.Tensor  bool
---@field matmul fun(self: ms.Tensor, other: ms.Tensor): ms.Tensor
---@field sum fun(self: ms.Tensor, over?: integer|integer[], keepdim?: boolean|table): ms.Tensor
---@field select fun(self: ms.Tensor, dim: integer, index: integer): ms.Tensor  a view
---@field unsqueeze fun(self: ms.Tensor, dim: integer): ms.Tensor  a view
---@field squeeze fun(self: ms.Tensor, over?: integer|integer[]): ms.Tensor  a view
---@field flatten fun(self: ms.Tensor, first?: integer, last?: integer): ms.Tensor
---@field view_as fun(self: ms.Tensor, other: ms.Tensor): ms.Tensor  a view
---@field movedim fun(self: ms.Tensor, source: integer|integer[], destination: integer|integer[]):
---  ms.Tensor  a view
---@field expand fun(self: ms.Tensor, ...: integer|integer[]): ms.Tensor  a view
---@field expand_as fun(self: ms.Tensor, other: ms.Tensor): ms.Tensor  a view
---@field tile fun(self: ms.Tensor, ...: integer|integer[]): ms.Tensor
---@field flip fun(self: ms.Tensor, ...: integer|integer[]): ms.Tensor
---@field split fun(self: ms.Tensor, sizes: integer|integer[], dim?: integer): ms.Tensor[]  views
---@field chunk fun(self: ms.Tensor, chunks: integer, dim?: integer): ms.Tensor[]  views
---@field unbind fun(self: ms.Tensor, dim?: integer): ms.Tensor[]  views
---@field masked_fill fun(self: ms.Tensor, mask: ms.Tensor, value: number|ms.Tensor): ms.Tensor
---@field tril fun(self: ms.Tensor, diagonal?: integer): ms.Tensor
---@field triu fun(self: ms.Tensor, diagonal?: integer): ms.Tensor
---@field mm fun(self: ms.Tensor, b: ms.Tensor): ms.Tensor
---@field mv fun(self: ms.Tensor, b: ms.Tensor): ms.Tensor
---@field dot fun(self: ms.Tensor, b: ms.Tensor): ms.Tensor
---@field bmm fun(self: ms.Tensor, b: ms.Tensor): ms.Tensor
---@field outer fun(self: ms.Tensor, b: ms.Tensor): ms.Tensor
---@field addmm fun(self: ms.Tensor, a: ms.Tensor, b: ms.Tensor, opts?: table): ms.Tensor
---@field baddbmm fun(self: ms.Tensor, a: ms.Tensor, b: ms.Tensor, opts?: table): ms.Tensor
---@field mean fun(self: ms.Tensor, over?: integer|integer[], keepdim?: boolean|table): ms.Tensor
---@field f32 fun(self: ms.Tensor): ms.Tensor
---@field f64 fun(self: ms.Tensor): ms.Tensor
---@field bf16 fun(self: ms.Tensor): ms.Tensor
---@field f16 fun(self: ms.Tensor): ms.Tensor
---@field i64 fun(self: ms.Tensor): ms.Tensor
---@field i32 fun(self: ms.Tensor): ms.Tensor
---@field u8 fun(self: ms.Tensor): ms.Tensor
---@field bool fun(self: ms.Tensor): ms.Tensor
local Tensor = {}

local info = B.new('ms_tensor_info')
local double_out = B.new('double[1]')
local hash_out = B.new('uint64_t[1]')

local function describe(t)
  calls.tensor_describe(t, info)
  return info
end

-- -- what it is ----------------------------------------------------------------------------------

--- Sizes of all dimensions.
---@return integer[]
function Tensor:shape()
  describe(self)
  local sizes = {}
  for i = 1, info.ndim do
    sizes[i] = tonumber(info.shape[i - 1])
  end
  return sizes
end

--- Size of one dimension.
---@param dim integer
---@return integer
function Tensor:size(dim)
  describe(self)
  if dim == nil then
    errors.raise('TypeError', 'size: dimension nil is not an integer; t:shape() gives all sizes')
  end
  return tonumber(info.shape[dims.index(dim, info.ndim, 'size')])
end

--- Stride of each dimension, in elements.
---@return integer[]
function Tensor:stride()
  describe(self)
  local strides = {}
  for i = 1, info.ndim do
    strides[i] = tonumber(info.stride[i - 1])
  end
  return strides
end

--- Number of dimensions.
---@return integer
function Tensor:dim()
  return describe(self).ndim
end

--- Number of elements.
---@return integer
function Tensor:numel()
  return tonumber(describe(self).numel)
end

---@return ms.DType
function Tensor:dtype()
  return dtype.name(describe(self).dtype)
end

---@param on? nil  use requires_grad_() to set it
---@return boolean
function Tensor:requires_grad(on)
  if on ~= nil then
    errors.raise('TypeError', 't:requires_grad(): %s is one argument too many; to set it, write '
      .. 't:requires_grad_(on)', arguments.noun(on))
  end
  return describe(self).requires_grad
end

--- True unless the tensor is the result of a recorded operator.
---@return boolean
function Tensor:is_leaf()
  return describe(self).is_leaf
end

---@return boolean
function Tensor:is_parameter()
  return describe(self).is_parameter
end

---@return boolean
function Tensor:is_contiguous()
  return describe(self).contiguous
end

--- Number of in-place writes so far to its memory.
---@return integer
function Tensor:version()
  return tonumber(describe(self).version)
end

-- -- its values ----------------------------------------------------------------------------------

--- The only element as a number. A 64-bit integer beyond 2^53 is rounded (printing shows it
--- exactly).
---@return number
function Tensor:item()
  calls.tensor_item(self, double_out)
  return double_out[0]
end

local function nest(values, sizes, depth, at, convert)
  if depth > #sizes then
    return convert(values[at]), at + 1
  end
  local list = {}
  for i = 1, sizes[depth] do
    list[i], at = nest(values, sizes, depth + 1, at, convert)
  end
  return list, at
end

local function as_number(x)
  return x
end

local function as_boolean(x)
  return x ~= 0
end

--- The values as a nested table; a number if there are no dimensions. 64-bit integers as in item().
--- item() gives them.
---@return table|number|boolean
function Tensor:totable()
  local sizes = Tensor.shape(self)
  local n, boolean = tonumber(info.numel), info.dtype == C.MS_DTYPE_BOOL
  local values = B.new('double[?]', math.max(n, 1))
  calls.tensor_to_doubles(self, values, n)
  return (nest(values, sizes, 1, 0, boolean and as_boolean or as_number))
end

--- Same as totable().
---@type fun(self: ms.Tensor): table|number|boolean
Tensor.tolist = Tensor.totable

--- A hash of 16 hexadecimal digits over the elements in row-major order; equal bits have equal
--- hashes.
---@return string
function Tensor:hash()
  calls.tensor_hash(self, hash_out)
  return bit.tohex(hash_out[0], 16)
end

-- -- views and copies ----------------------------------------------------------------------------

--- Convert to another dtype, as ops.cast, or move to another device. In a process with a device,
--- 'cpu' gives a copy in pinned host memory outside the graph, for reading and files; operators
--- raise RuntimeError for it unless it has no dimensions. Waits for the copy. Returns the tensor
--- itself if nothing changes.
---@param target ms.DType|string|ms.Tensor  a dtype, 'cpu', 'cuda', or a tensor with both
---@param other? ms.DType|string  the dtype if the first argument is a device, and vice versa
---@return ms.Tensor
function Tensor:to(target, other)
  if other == nil and dtype.is_name(target) then
    local on_host = describe(self).on_host
    local t = ops.cast(self, target)
    return on_host and calls.tensor_to_host(t) or t
  end
  if B.is_ref(target) and other == nil then
    target, other = target:dtype(), target:device()
  end
  if device.is_name(target) then
    target, other = other, target
  end
  if device.is_name(other) then
    local t = target ~= nil and ops.cast(self, target) or self
    return device.move(t, describe(t).on_host, other)
  elseif other ~= nil then
    errors.raise('TypeError', "to: 'other' is %s, expected a place such as 'cpu'",
      arguments.noun(other))
  end
  return ops.cast(self, target)
end

--- The device: 'cpu', 'cuda:0'.
---@return string
function Tensor:device()
  return describe(self).on_host and 'cpu' or device.name()
end

--- The same values and memory, detached from the graph.
---@return ms.Tensor
function Tensor:detach()
  return calls.tensor_detach(self)
end

--- Like reshape, but raises instead of copying.
---@param ... integer|integer[]
---@return ms.Tensor
function Tensor:view(...)
  local from, numel = describe(self).data, info.numel
  local result = calls.reshape(self, dims.shape(dims.list('view', ...), 'view', -1))
  if numel > 0 and describe(result).data ~= from then
    C.ms_ref_release(result)
    errors.raise('RuntimeError', 'view: strides (%s) do not allow this shape without a copy; '
      .. 'use reshape', table.concat(self:stride(), ', '))
  end
  return result
end

--- The transpose of a matrix.
---@return ms.Tensor
function Tensor:t()
  if Tensor.dim(self) ~= 2 then
    errors.raise('ValueError', 't: the tensor has %d dimensions, expected 2', self:dim())
  end
  return ops.transpose(self, 1, 2)
end

--- The tensor itself if it is contiguous, else a contiguous copy.
---@return ms.Tensor
function Tensor:contiguous()
  return describe(self).contiguous and self or ops.clone(self)
end

for _, name in ipairs(dtype.names) do
  Tensor[name] = function(self)
    return ops.cast(self, name)
  end
end

-- -- operators -----------------------------------------------------------------------------------

-- Every operator is a method, except those that do not act on their first operand.
local functions_only = {
  adaptive_avg_pool1d = true, adaptive_avg_pool2d = true, adaptive_avg_pool3d = true,
  affine = true, attention = true, attention_packed = true, avg_pool1d = true, avg_pool2d = true,
  avg_pool3d = true, binary_cross_entropy_with_logits = true, cast = true, cat = true,
  conv1d = true, conv2d = true, conv3d = true, conv_transpose1d = true, conv_transpose2d = true,
  conv_transpose3d = true, cosine_similarity = true, cross_entropy = true, document_mask = true,
  dropout = true,
  einsum = true, embedding = true, huber_loss = true, interpolate = true, kl_div = true,
  l1_loss = true, layer_norm = true, linear = true,
  linear_gelu = true, max_pool1d = true, max_pool2d = true, max_pool3d = true, mse_loss = true,
  nll_loss = true, normalize = true, one_hot = true, pad = true, rotary = true,
  scaled_dot_product_attention = true, site = true, smooth_l1_loss = true, stack = true,
}
for name, operator in next, ops do
  if not functions_only[name] then
    Tensor[name] = operator
  end
end

--- The tensor where `cond` is true, else `other`; the three broadcast.
---@param cond ms.Tensor  bool
---@param other ms.Tensor|number
---@return ms.Tensor
function Tensor:where(cond, other)
  return ops.where(cond, self, other)
end

-- -- writing in place ----------------------------------------------------------------------------
-- In-place writes are never differentiated. While operators are recorded, writing to a tensor that
-- requires grad is a RuntimeError. ms.no_grad(function() ... end) allows writes to leaves,
-- t:detach() also to results of recorded operators.

--- Overwrite all elements. For integer dtypes ValueError unless the value is an integer in range.
---@param value number|boolean
---@return ms.Tensor self
function Tensor:fill_(value)
  if type(value) == 'boolean' then
    value = value and 1 or 0
  end
  writable(self, 'fill_')
  calls.tensor_fill(self, value)
  return self
end

--- Overwrite with a tensor of the same shape and dtype, also if this tensor requires grad; not
--- recorded. (torch: t.data = src)
---@param src ms.Tensor
---@return ms.Tensor self
function Tensor:set_data(src)
  local to, from = self:detach(), arguments.tensor('set_data', 'src', src):detach()
  local expected, found = self:shape(), src:shape()
  if table.concat(expected, ' ') ~= table.concat(found, ' ') or self:dtype() ~= src:dtype() then
    errors.raise('RuntimeError', '%sset_data: the tensor is %s (%s), src is %s (%s)',
      parameter.manager(self) and 'Cannot writeback when the parameter shape changes: ' or '',
      self:dtype(), table.concat(expected, ', '), src:dtype(), table.concat(found, ', '))
  end
  local ok, err = pcall(to.copy_, to, from)
  to:release()
  from:release()
  if not ok and parameter.manager(self) then
    errors.raise('AssertionError', 'FSDP does not support changing the parameters between forward '
      .. 'and backward: %s', errors.is(err) and err.message or tostring(err))
  elseif not ok then
    error(err, 0)
  end
  return self
end

---@return ms.Tensor self
function Tensor:zero_()
  return Tensor.fill_(self, 0)
end

--- Overwrite with another tensor, which is broadcast and cast: to integers, fractions are truncated
--- and NaN becomes 0. While operators are recorded, copying values that require grad to a float
--- tensor is a RuntimeError: use ms.cat or ms.where to build such tensors, or x:detach() or
--- ms.no_grad to write without a gradient.
---@param src ms.Tensor
---@return ms.Tensor self
function Tensor:copy_(src)
  writable(self, 'copy_')
  calls.tensor_copy(self, src)
  return self
end

--- self = self + alpha * src. Raises for values that require grad, as copy_ does. TypeError for
--- fractions if self is an integer tensor.
---@param src ms.Tensor|number
---@param alpha? number
---@return ms.Tensor self
function Tensor:add_(src, alpha)
  alpha = arguments.number('add_', 'alpha', alpha, 1)
  writable(self, 'add_')
  if type(src) == 'number' then
    local one = calls.tensor_full(describe(self).dtype, 0, nil, 1)
    calls.tensor_add_scaled(self, one, src * alpha)
    C.ms_ref_release(one)
  else
    calls.tensor_add_scaled(self, src, alpha)
  end
  return self
end

-- self = op(self, ...); the result must have the shape of self.
local function in_place(name, op)
  Tensor[name] = function(self, ...)
    writable(self, name)
    local value = self:detach()
    local result = op(value, ...)
    calls.tensor_copy(self, result)
    result:release()
    value:release()
    return self
  end
end

--- self = self * x, self - x, self / x for a number or a tensor that broadcasts to self; also
--- clamp, masked_fill, scatter_add and index_add in place. Raises for values that require grad, as
--- copy_ does. Allocates memory for the result.
---@class ms.Tensor
---@field mul_ fun(self: ms.Tensor, x: ms.Tensor|number): ms.Tensor
---@field sub_ fun(self: ms.Tensor, x: ms.Tensor|number): ms.Tensor
---@field div_ fun(self: ms.Tensor, x: ms.Tensor|number): ms.Tensor
---@field clamp_ fun(self: ms.Tensor, low?: number, high?: number): ms.Tensor
---@field masked_fill_ fun(self: ms.Tensor, mask: ms.Tensor, value: number|ms.Tensor): ms.Tensor
---@field scatter_add_ fun(self: ms.Tensor, dim: integer, index: ms.Tensor, src: ms.Tensor):
---  ms.Tensor
---@field index_add_ fun(self: ms.Tensor, dim: integer, index: ms.Tensor, src: ms.Tensor,
---  opts?: { alpha?: number }): ms.Tensor
for _, name in ipairs {
  'mul', 'sub', 'div', 'clamp', 'masked_fill', 'scatter_add', 'index_add',
} do
  in_place(name .. '_', ops[name])
end

-- Overwrite with random values of the next stream, as ms.randn() and ms.rand() draw them.
local function drawn(self, name, kind, a, b)
  writable(self, name)
  calls.tensor_init(self, kind, a, b, C.ms_name_key('random:#' .. random.next_tensor()))
  return self
end

--- Overwrite with random numbers of a normal distribution.
---@param mean? number  default 0
---@param std? number  default 1
---@return ms.Tensor self
function Tensor:normal_(mean, std)
  std = arguments.number('normal_', 'std', std, 1)
  if not (std >= 0 and std < math.huge) then
    errors.raise('ValueError', "normal_: 'std' is %g, expected a finite number of 0 or more", std)
  end
  return drawn(self, 'normal_', C.MS_INIT_NORMAL, arguments.number('normal_', 'mean', mean, 0), std)
end

--- Overwrite with random numbers, uniform in [from, to).
---@param from? number  default 0
---@param to? number  default 1
---@return ms.Tensor self
function Tensor:uniform_(from, to)
  from = arguments.number('uniform_', 'from', from, 0)
  to = arguments.number('uniform_', 'to', to, 1)
  if not (from <= to and to - from < math.huge) then
    errors.raise('ValueError', 'uniform_: from %g to %g, expected ascending finite numbers', from,
      to)
  end
  return drawn(self, 'uniform_', C.MS_INIT_UNIFORM, from, to)
end

-- -- gradients -----------------------------------------------------------------------------------

---@param on? boolean  default true
---@return ms.Tensor self
function Tensor:requires_grad_(on)
  calls.tensor_set_requires_grad(self, on == nil or on)
  return self
end

local function run_backward(t, grad, flags)
  graph.begin_backward()
  B.check(core.backward(t, grad, flags))
end

--- Compute the gradients of all leaves of the graph and add them to the existing gradients. A
--- second backward through the same graph is a RuntimeError, unless the first one retained it.
---@param grad? ms.Tensor  optional for a tensor with one element
---@param options? ms.Backward.Options  may be passed as the first argument
function Tensor:backward(grad, options)
  arguments.tensor('backward', 'self', self)
  if type(grad) == 'table' and options == nil then
    grad, options = nil, grad
  elseif grad ~= nil then
    arguments.tensor('backward', 'grad', grad)
  end
  capture.step('backward', run_backward, self, grad,
    options ~= nil and graph.flags('backward', options) or 0)
end

--- The gradient of a leaf, sharing its memory; nil if no backward has run or this rank has no
--- element of it. For a sharded parameter: a copy of what backwards inside no_sync have
--- accumulated. Writing to it is a RuntimeError; set_grad() replaces it.
---@return ms.Tensor?
function Tensor:grad()
  return calls.tensor_grad(self)
end

--- Replace the gradient with a copy; nil removes it. TypeError if its dtype differs.
---@param grad ms.Tensor?
function Tensor:set_grad(grad)
  calls.tensor_set_grad(self, grad)
end

-- -- division among ranks ------------------------------------------------------------------------
-- A parameter that FSDP manages shows this rank's part, and so does one of ms.parallel. Any other
-- tensor is whole.

--- This rank's part of a parameter that is divided among ranks, whatever its handle shows; the
--- tensor itself of any other. The memory is shared.
---@return ms.Tensor  with the placement Flat in one dimension
function Tensor:to_local()
  local owner = parameter.owner(self)
  return owner and owner:_local_value(self) or self
end

--- The whole of a parameter that is divided among ranks: a copy, not recorded. The tensor itself of
--- any other. Collective over the ranks that divide it.
---@return ms.Tensor
function Tensor:full_tensor()
  local owner, divided = parameter.owner(self), parameter.divided(self)
  local part = owner and owner:_full_value(self) or self
  return divided and divided:_whole(part) or part
end

--- How ranks divide a parameter, for each dimension of device_mesh(); empty for any other tensor.
---@return ms.dist.Placement[]
function Tensor:placements()
  local owner, divided = parameter.owner(self), parameter.divided(self)
  local list = owner and owner:_placements(self) or {}
  return divided and divided:_placements_after(list) or list
end

--- The ranks that divide a parameter; nil for any other tensor.
---@return ms.dist.DeviceMesh?
function Tensor:device_mesh()
  local owner, divided = parameter.owner(self), parameter.divided(self)
  local mesh = owner and owner:_mesh() or nil
  return divided and divided:_mesh_after(mesh) or mesh
end

--- The whole shape of a parameter that is divided among ranks; the shape of any other tensor.
---@return integer[]
function Tensor:global_shape()
  local owner = parameter.divided(self) or parameter.owner(self)
  return owner and owner:_global_shape(self) or Tensor.shape(self)
end

-- -- life ----------------------------------------------------------------------------------------

--- Release the tensor now, instead of at the end of its scope or at a garbage collection.
function Tensor:release()
  C.ms_ref_release(arguments.tensor('release', 'self', self))
  B.disown(self)
end

-- -- metamethods ---------------------------------------------------------------------------------

local metatable = {}

entries.define(metatable, Tensor)

metatable.__add = ops.add
metatable.__sub = ops.sub
metatable.__mul = ops.mul
metatable.__div = ops.div
metatable.__pow = ops.pow
metatable.__mod = ops.remainder

-- Lua converts the results of these to one boolean, so they cannot compare elements.
local function no_order(operators, methods)
  return function()
    errors.raise('TypeError', '%s cannot compare tensors in Lua; use %s', operators, methods)
  end
end

-- LuaJIT's own message for these operators would mention structs.
local function no_operator(operator, instead)
  return function()
    errors.raise('TypeError', '%s is no operator of tensors; use %s', operator, instead)
  end
end

metatable.__len = no_operator('#t', 't:size(1) or t:numel()')
metatable.__concat = no_operator('..', 'tostring(t) for its text, ms.cat for joining')
metatable.__call = no_operator('t(...)', 't[i] for an entry, t:method() for a method')

metatable.__lt = no_order('a < b and b > a', 'a:lt(b) or b:gt(a)')
metatable.__le = no_order('a <= b and b >= a', 'a:le(b) or b:ge(a)')

metatable.__unm = ops.neg

-- The values as a nested table; 64-bit integers as int64_t, which is exact.
local function read(t)
  if describe(t).dtype ~= C.MS_DTYPE_I64 then
    return Tensor.totable(t)
  end
  local sizes = Tensor.shape(t)
  local values = B.new('int64_t[?]', math.max(tonumber(info.numel), 1))
  local whole = calls.tensor_borrow(info.dtype, info.ndim, info.shape, values)
  calls.tensor_copy(whole, t)
  C.ms_ref_release(whole)
  return (nest(values, sizes, 1, 0, as_number))
end

local function suffix(sizes)
  local parts = { ("dtype='%s'"):format(dtype.name(info.dtype)) }
  if #sizes > 0 then
    parts[#parts + 1] = 'shape=' .. dims.text(sizes)
  end
  if info.requires_grad then
    parts[#parts + 1] = 'requires_grad=true'
  end
  return ', ' .. table.concat(parts, ', ') .. ')'
end

function metatable.__tostring(t)
  if not C.ms_ref_alive(t) then
    local by = B.string(C.ms_ref_released_by(t))
    return 'tensor(released' .. (by ~= '' and ' at the end of ' .. by or '') .. ')'
  end
  local sizes = t:shape()
  local last = suffix(sizes)
  if info.data == nil and info.numel > 0 then
    return 'tensor(no values' .. last
  end
  local floating = C.ms_dtype_is_floating(info.dtype)
  local values = t:detach()
  local text = format(values, sizes, floating, read)
  values:release()
  return 'tensor(' .. text .. last
end

B.define_methods(metatable)

return Tensor
