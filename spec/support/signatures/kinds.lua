--- Kinds of arguments, each made from a value that is right and with a test of what may be right,
--- and what most functions are called with.

local ms = require 'moonshard'

---@class spec.Argument
---@field value any  a right one
---@field may fun(value: any): boolean  false: certainly wrong
---@field optional boolean
---@field fields table<string, spec.Argument>?  of a table of options

-- -- kinds of arguments --------------------------------------------------------------------------

local function maybe(argument)
  argument.optional = true
  return argument
end

--- A number of things to do: many of them are no misuse, only long.
local function bounded(argument)
  argument.bounded = true
  return argument
end

--- Not to be replaced: calling something else calls something else.
local function fixed(argument)
  argument.fixed = true
  return argument
end

local function is_live(v)
  return ms.is_tensor(v) and not tostring(v):find('^tensor%(released')
end

local function callable(v)
  local meta = type(v) == 'table' and getmetatable(v)
  return type(v) == 'function' or type(meta) == 'table' and meta.__call ~= nil
    and not ms.is(v, ms.optim.Optimizer)
end

local function is_whole(v)
  return type(v) == 'number' and v % 1 == 0
end

local function kind(may)
  return function(value)
    return { value = value, may = may, optional = false }
  end
end

local function of_type(name)
  return kind(function(v) return type(v) == name end)
end

local tensor, whole, number = kind(is_live), kind(is_whole), of_type 'number'
local flag, text, list, fn = of_type 'boolean', of_type 'string', of_type 'table', kind(callable)
-- A list without fields.
local array = kind(function(v)
  for key in next, type(v) == 'table' and v or {} do
    if type(key) ~= 'number' then
      return false
    end
  end
  return type(v) == 'table'
end)
local function any(value)
  return maybe(kind(function() return true end)(value))
end
local scalar = kind(function(v) return is_live(v) or type(v) == 'number' end)
local filler = kind(function(v) return type(v) == 'number' or type(v) == 'boolean' end)
local operand = kind(function(v)
  return is_live(v) or type(v) == 'number' or type(v) == 'boolean'
end)
local dtype = kind(function(v) return type(v) == 'string' and rawget(ms, v) == v end)
local dims = kind(function(v) return is_whole(v) or array().may(v) end)

local function choice(value, ...)
  local allowed = { ... }
  return kind(function(v)
    for _, c in ipairs(allowed) do
      if v == c then
        return true
      end
    end
    return v == value
  end)(value)
end

local function object(value, class)
  return kind(function(v) return ms.is(v, class) end)(value)
end

--- A table of options whose values are themselves arguments.
local function options(fields)
  local value = {}
  for name, field in pairs(fields) do
    value[name] = field.value
  end
  local o = kind(function(v)
    if type(v) ~= 'table' then
      return false
    end
    for key in pairs(v) do
      if not fields[key] then
        return false
      end
    end
    return true
  end)(value)
  o.fields = fields
  return o
end

-- -- what they are called with -------------------------------------------------------------------

local function x() return tensor(ms.rand(2, 3)) end
local function bools() return tensor(ms.rand(2, 3):gt(0.5)) end
local function ids() return tensor(ms.tensor({ { 0, 1 }, { 1, 2 } }, { dtype = 'i64' })) end
local function leaf() return tensor(ms.rand(2, 3, { requires_grad = true })) end
local function square() return tensor(ms.rand(3, 3)) end
local function pass(...) return ... end

local function linear() return ms.nn.Linear(3, 3) end
local function module(m) return object(m or linear(), ms.nn.Module) end

local function wrapped()
  local model
  ms.capture_warnings(function() model = ms.fsdp.FSDP(linear()) end)
  return object(model, ms.fsdp.FSDP)
end

local function gpt()
  return ms.models.GPT { vocab = 8, layers = 1, heads = 1, width = 4, context = 4 }
end

local function optimizer()
  return ms.optim.SGD(linear():parameters(), { lr = 0.1 })
end

local function tokens() return ms.tensor({ 1, 2, 3, 4, 5, 6, 7, 8, 9 }, { dtype = 'u8' }) end

local function loader()
  return ms.data.Loader { tokens = tokens(), batch = 1, context = 2 }
end

local folder = os.getenv 'MS_MISUSE_DIR' or '/tmp'
local root = folder .. '/checkpoints'

local function tensor_options(more)
  local fields = { dtype = maybe(dtype 'f32'), requires_grad = maybe(flag(false)) }
  for name, field in pairs(more or {}) do
    fields[name] = field
  end
  return maybe(options(fields))
end

local function bias_options(more)
  local fields = { bias = maybe(flag(true)), dtype = maybe(dtype 'f32') }
  for name, field in pairs(more or {}) do
    fields[name] = field
  end
  return maybe(options(fields))
end

local function adam_options()
  return maybe(options {
    lr = maybe(number(0.1)), betas = maybe(array { 0.9, 0.99 }), eps = maybe(number(1e-8)),
    weight_decay = maybe(number(0)), maximize = maybe(flag(false)),
  })
end

local function parameters() return array(linear():parameters()) end

local positive = kind(function(v) return is_whole(v) and v > 0 end)
local size = kind(function(v) return is_whole(v) and v >= 0 end)
local rule = kind(function(v) return type(v) == 'table' and v.kind ~= nil end)

local function zero_grad_options()
  return maybe(options { set_to_none = maybe(flag(true)) })
end

return {
  maybe = maybe, bounded = bounded, fixed = fixed, callable = callable, is_whole = is_whole,
  kind = kind, tensor = tensor, whole = whole, number = number, flag = flag, text = text,
  list = list, array = array, fn = fn, any = any, scalar = scalar, operand = operand,
  filler = filler,
  dtype = dtype, dims = dims, choice = choice, object = object, options = options, x = x,
  bools = bools, ids = ids, leaf = leaf, square = square, pass = pass, linear = linear,
  module = module, wrapped = wrapped,
  gpt = gpt, optimizer = optimizer, tokens = tokens, loader = loader, folder = folder, root = root,
  tensor_options = tensor_options, bias_options = bias_options, adam_options = adam_options,
  parameters = parameters, positive = positive, size = size, rule = rule,
  zero_grad_options = zero_grad_options,
}
