--- Parameters: declaration, names, memory, local shards.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'

local C, calls = B.C, B.calls

local parameter = {}

local DTYPES = {}
for number = 0, C.MS_DTYPE_COUNT - 1 do
  DTYPES[B.string(C.ms_dtype_name(number))] = number
end
local RULES = {
  none = C.MS_INIT_NONE, constant = C.MS_INIT_CONSTANT, uniform = C.MS_INIT_UNIFORM,
  normal = C.MS_INIT_NORMAL,
}
local MAX_DIMS = C.MS_MAX_DIMS

--- Number of a dtype name. TypeError for an unknown name.
---@param name string
---@return integer
function parameter.dtype(name)
  return DTYPES[name] or B.errors.raise('TypeError', 'no dtype is called %s', tostring(name))
end

--- Name of a dtype number.
---@param number integer
---@return string
function parameter.dtype_name(number)
  return B.string(C.ms_dtype_name(number))
end

local function rule_of(rule)
  local kind = RULES[rule.kind]
  if not kind then
    B.errors.raise('ValueError', "no rule for initial values is called '%s'", tostring(rule.kind))
  end
  return kind, rule.a or 0, rule.b or 0
end

--- A check of arguments: the name of a dtype.
function arguments.dtype(what, name, value)
  if type(value) ~= 'string' then
    arguments.refuse(what, name, value, "a dtype such as 'f32'")
  end
  parameter.dtype(value)
  return value
end

--- A check of arguments: the name of a floating dtype.
function arguments.floating(what, name, value)
  if not C.ms_dtype_is_floating(parameter.dtype(arguments.dtype(what, name, value))) then
    B.errors.raise('ValueError', "%s: '%s' is %s, expected a floating dtype", what, name, value)
  end
  return value
end

--- A check of arguments: a rule for initial values (moonshard.nn.init).
function arguments.rule(what, name, value)
  if type(value) ~= 'table' or rawget(value, 'kind') == nil then
    arguments.refuse(what, name, value, 'a rule of nn.init')
  end
  local _, a, b = rule_of(value)
  arguments.number(what, name, a)
  arguments.number(what, name, b)
  return value
end

--- Declare a parameter without memory. rule.zeros: the first (from 0) of the elements that are
--- initially 0, and their number.
---@param dtype string
---@param shape integer[]
---@param rule ms.nn.InitRule
---@return ms.Tensor
function parameter.declare(dtype, shape, rule)
  local sizes = B.new('int64_t[?]', MAX_DIMS)
  if #shape > MAX_DIMS then
    B.errors.raise('ValueError', 'a parameter has %d dimensions, expected at most %d', #shape,
      MAX_DIMS)
  end
  for i = 1, #shape do
    sizes[i - 1] = shape[i]
  end
  local tensor = calls.tensor_parameter(parameter.dtype(dtype), #shape, sizes, rule_of(rule))
  if rule.zeros then
    calls.tensor_initial_zeros(tensor, unpack(rule.zeros))
  end
  return tensor
end

--- Make a tensor a parameter that keeps its values. No scope releases it.
function parameter.make(tensor)
  calls.tensor_make_parameter(tensor)
end

--- Overwrite a tensor with a rule's values; `name` determines the random stream.
function parameter.fill(tensor, rule, name)
  local kind, a, b = rule_of(rule)
  calls.tensor_init(tensor, kind, a, b, C.ms_name_key(name))
end

function parameter.set_name(tensor, name)
  calls.tensor_set_name(tensor, name)
end

--- A number as 64 bits in two's complement. (C does not define the conversion of a negative
--- double.)
---@param number integer|ffi.cdata*
---@return integer|ffi.cdata*
function parameter.bits(number)
  return number < 0 and B.cast('uint64_t', B.cast('int64_t', number)) or number
end

-- Number of streams used since the last seed.
local n_streams = 0

--- The next stream number. It distinguishes streams of equal names.
---@return integer
function parameter.next_stream()
  n_streams = n_streams + 1
  return n_streams - 1
end

--- The number of streams used since the last seed.
---@return integer
function parameter.streams()
  return n_streams
end

--- Set the seed of all random numbers; all streams restart.
---@param seed integer|ffi.cdata*
---@param streams? integer  the new value of streams() (default 0)
function parameter.set_seed(seed, streams)
  C.ms_seed(parameter.bits(seed))
  n_streams = streams or 0
end

--- In stream 0, initial values depend on the parameter's name alone.
function parameter.set_stream(tensor, stream)
  calls.tensor_set_stream(tensor, stream)
end

local name_out = B.new('const char *[1]')

---@return string  '' if it has no name
function parameter.name(tensor)
  calls.tensor_name(tensor, name_out)
  return B.string(name_out[0])
end

function parameter.materialize(tensor)
  calls.tensor_materialize(tensor)
end

parameter.is_tensor = B.is_ref

local described = B.new('ms_tensor_info')

--- Is this value a parameter?
---@return boolean
function parameter.is_parameter(value)
  if not B.is_ref(value) then
    return false
  end
  calls.tensor_describe(value, described)
  return described.is_parameter
end

--- Does a parameter have memory? A declared one has it once it is materialized or wrapped.
---@return boolean
function parameter.has_values(tensor)
  calls.tensor_describe(tensor, described)
  return described.data ~= nil or described.numel == 0
end

--- Does a tensor have a gradient? Unlike grad(), it makes no tensor.
---@return boolean
function parameter.has_grad(tensor)
  calls.tensor_describe(tensor, described)
  return described.has_grad
end

--- A number that is equal for all refs of a handle, and valid as long as the handle.
---@return integer
function parameter.key(tensor)
  return tonumber(B.cast('uintptr_t', tensor.ptr))
end

local function shape_list(ndim, sizes)
  local shape = {}
  for i = 1, ndim do
    shape[i] = tonumber(sizes[i - 1])
  end
  return shape
end

--- Current shape of a tensor; for a sharded parameter that of the local shard.
function parameter.shape(tensor)
  local info = B.new('ms_tensor_info')
  calls.tensor_describe(tensor, info)
  return shape_list(info.ndim, info.shape)
end

--- The properties of a tensor that wrapping checks, in one call.
function parameter.facts(tensor)
  local info = B.new('ms_tensor_info')
  calls.tensor_describe(tensor, info)
  return {
    dtype = parameter.dtype_name(info.dtype),
    floating = C.ms_dtype_is_floating(info.dtype),
    requires_grad = info.requires_grad,
    ndim = info.ndim,
    numel = tonumber(info.numel),
  }
end

---@class ms.Extent
---@field start integer  index of the first local element in the parameter, from 0
---@field numel integer  number of local elements
---@field shape integer[]  of the whole parameter
---@field dtype string
---@field c ffi.cdata*  the runtime's own struct

--- This rank's elements of a parameter as a 1-D view (nil if empty), and their extent.
---@return ms.Tensor?, ms.Extent
function parameter.part(tensor)
  local c = B.new('ms_param_extent')
  local view = calls.param_local(tensor, c)
  return view, {
    start = tonumber(c.start),
    numel = tonumber(c.numel),
    shape = shape_list(c.ndim, c.shape),
    dtype = parameter.dtype_name(c.dtype),
    c = c,
  }
end

--- The extent of the elements [start, start + numel) of a sharded tensor.
---@param shape integer[]
---@param dtype string
---@param start integer  from 0
---@param numel integer
---@return ms.Extent
function parameter.extent(shape, dtype, start, numel)
  local c = B.new('ms_param_extent')
  c.start, c.numel, c.ndim, c.dtype = start, numel, #shape, parameter.dtype(dtype)
  for i = 1, #shape do
    c.shape[i - 1] = shape[i]
  end
  return { start = start, numel = numel, shape = shape, dtype = dtype, c = c }
end

--- The extent of a whole plain tensor, and its elements as 1-D (nil if empty).
---@param flat ms.Tensor  (numel of t)
---@param t ms.Tensor
---@return ms.Tensor?, ms.Extent
function parameter.whole(flat, t)
  local info, c = B.new('ms_tensor_info'), B.new('ms_param_extent')
  calls.tensor_describe(t, info)
  c.start, c.numel, c.ndim, c.dtype = 0, info.numel, info.ndim, info.dtype
  B.copy(c.shape, info.shape, B.sizeof(c.shape))
  local shape = shape_list(info.ndim, info.shape)
  local numel = tonumber(info.numel)
  return numel > 0 and flat or nil, {
    start = 0, numel = numel, shape = shape, dtype = parameter.dtype_name(info.dtype), c = c,
  }
end

--- Mark the master weights as written from outside.
function parameter.touch(tensor)
  calls.param_touch(tensor)
end

-- Managers by key of parameters and flat parameters: they read and write full values.
local WEAK_VALUES = { __mode = 'v' }
local managers, flats = setmetatable({}, WEAK_VALUES), setmetatable({}, WEAK_VALUES)

--- Register a manager whose `_full_values()` and `_load_value(tensor, value)` access the parameter.
function parameter.manage(tensor, manager)
  managers[parameter.key(tensor)] = manager
end

---@return table?  the manager of a parameter, or nil
function parameter.manager(tensor)
  return managers[parameter.key(tensor)]
end

-- Layouts by key of plain parameters that are this rank's part of a larger one.
local divided = setmetatable({}, WEAK_VALUES)

--- Register how a parameter is divided (ms.dist.Divided, which keeps the tensor). The caller keeps
--- it as long as the parameter is divided.
function parameter.divide(tensor, layout)
  divided[parameter.key(tensor)] = layout
end

---@return table?  how a plain parameter is divided, or nil
function parameter.divided(tensor)
  return divided[parameter.key(tensor)]
end

--- Remove all managers after the context was closed, because keys may be reused.
function parameter.forget_managers()
  for _, manager in next, managers do
    manager:_close()
  end
  managers, flats = setmetatable({}, WEAK_VALUES), setmetatable({}, WEAK_VALUES)
  divided = setmetatable({}, WEAK_VALUES)
end

--- Register a flat parameter: originals() replaces it by the list of `manager:_managed()`.
function parameter.stands_for(flat, manager)
  flats[parameter.key(flat)] = manager
end

---@return boolean  is this a flat parameter?
function parameter.is_flat(tensor)
  return flats[parameter.key(tensor)] ~= nil
end

---@return table?  the manager of a parameter or of a flat parameter, or nil
function parameter.owner(tensor)
  local key = parameter.key(tensor)
  return managers[key] or flats[key]
end

--- The parameters, with flat ones replaced by the original ones.
---@param tensors ms.Tensor[]
---@return ms.Tensor[]
function parameter.originals(tensors)
  if next(flats) == nil then
    return tensors
  end
  local out = {}
  for _, tensor in ipairs(tensors) do
    local manager = parameter.is_tensor(tensor) and flats[parameter.key(tensor)]
    for _, original in ipairs(manager and manager:_managed() or { tensor }) do
      out[#out + 1] = original
    end
  end
  return out
end

local hash_out = B.new('uint64_t[1]')

--- A hash of 16 hexadecimal digits over names and values of plain parameters, in this order.
---@param tensors ms.Tensor[]
---@return string
function parameter.hash(tensors)
  local refs, n = B.array(tensors, 'params')
  calls.params_hash(refs, n, hash_out)
  return bit.tohex(hash_out[0], 16)
end

--- Cast plain parameters and their gradients, in place.
---@param tensors ms.Tensor[]
---@param dtype ms.DType
function parameter.cast(tensors, dtype)
  local refs, n = B.array(tensors, 'params')
  calls.params_cast(refs, n, parameter.dtype(dtype))
end

-- The first 52 bits of a hash, which a Lua number can represent.
local function number_of(hash)
  return tonumber(bit.tohex(hash, 16):sub(1, 13), 16)
end

--- A hash of a tensor's values below 2^53.
---@return integer
function parameter.hash_number(tensor)
  calls.tensor_hash(tensor, hash_out)
  return number_of(hash_out[0])
end

--- A hash of a text below 2^53.
---@param text string
---@return integer
function parameter.text_number(text)
  return number_of(C.ms_hash_bytes(text, #text))
end

--- Can a tensor be overwritten in place with `value`? Not if autograd recorded it, or if it
--- overlaps itself or `value`.
---@return boolean
function parameter.takes(tensor, value)
  return C.msf_tensor_check_copy(tensor, value, 'copy_') == 0
end

--- Overwrite a parameter with full values (cast to its dtype) in two steps: this call checks and
--- allocates, the returned function writes.
---@param tensor ms.Tensor  materialised
---@param value ms.Tensor  of the full shape; read by the second step
---@return fun() write, integer? number  hash_number() of the value if a unit manages the
---  parameter: write() requires that it is equal on all ranks
function parameter.prepare_load(tensor, value)
  local manager, from = parameter.manager(tensor), calls.tensor_detach(value)
  if manager then
    calls.tensor_describe(from, described)
    local whole = described.contiguous and from or calls.clone(from)
    return function() manager:_load_value(tensor, whole) end, parameter.hash_number(whole)
  end
  calls.tensor_check_copy(tensor, from, 'load_state_dict')
  return function()
    calls.tensor_copy(tensor, from)
    calls.param_touch(tensor)
  end
end

--- 64-bit key of a named random stream.
---@param stream integer  0: the key depends on the name alone
function parameter.stream_key(name, stream)
  return C.ms_stream_key(name, stream)
end

--- Set the global sample indices of the next batch to `first`, `first` + 1, ....
---@param first integer  from 0
function parameter.begin_samples(first)
  B.check(C.ms_samples_begin(first))
end

-- A Lua number cannot represent 64 bits.
local function decimal(number)
  return (tostring(number):gsub('ULL$', ''))
end

--- The context's seed as a decimal string.
---@return string
function parameter.seed()
  return decimal(parameter.seed_bits())
end

--- The context's seed.
---@return ffi.cdata*  uint64_t
function parameter.seed_bits()
  return C.ms_seed_get()
end

--- The seed whose decimal string is `text`.
---@param text string
---@return ffi.cdata*?  uint64_t; nil for any other text
function parameter.seed_of(text)
  local seed = 0ULL
  for digit in text:gmatch '%d' do
    seed = seed * 10ULL + tonumber(digit)
  end
  return decimal(seed) == text and seed or nil
end

return parameter
