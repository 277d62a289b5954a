-- Operators on drawn operands, for compare.py: one line of JSON a case, with what went in, what
-- came out and the gradients of the operands. Numbers JSON has not are texts.
local ms = require 'moonshard'
local ops, json = ms.ops, require 'moonshard.base.json'

local draw = dofile(arg[0]:gsub('[^/]*$', '') .. 'draw.lua')
local util = require 'moonshard.base.util'

-- Of other seeds one or two values differ by right: slopes of bf16 cancel to what rounding leaves,
-- and sums of large numbers overflow in one order and not in the other.
local SEED = 9
local plain, random = draw.texts, draw.stream(SEED)

local UNARY = { 'exp', 'log', 'sqrt', 'tanh', 'relu', 'reciprocal', 'gelu', 'neg', 'scale' }
local run = {
  neg = function(x) return -x end,
  scale = function(x) return x * -1.5 end,
  add = function(a, b) return a + b end,
  sub = function(a, b) return a - b end,
  mul = function(a, b) return a * b end,
  div = function(a, b) return a / b end,
  gelu_tanh = function(x) return ops.gelu(x, 'tanh') end,
  square = function(x) return x ^ 2 end,
  root = function(x) return x ^ 0.5 end,
  matmul = ops.matmul, linear = ops.linear, log_softmax = ops.log_softmax,
  mse_loss = function(a, b) return ops.mse_loss(a, b) end,
  cross_entropy = function(x)
    return ops.cross_entropy(x, ms.tensor({ 0, 2, 1 }, { dtype = 'i64' }))
  end,
  layer_norm = function(x, w, b) return ops.layer_norm(x, w, b, 1e-5) end,
  sum = function(x) return x:sum() end,
  mean = function(x) return x:mean() end,
}

local LARGE = 3e38

-- Values of an operand; those of a divisor keep away from 0 where none are special.
local function values_of(shape, special, divides)
  local values = draw.values(random, util.product(shape), special, LARGE)
  for i = 1, divides and not special and #values or 0 do
    values[i] = values[i] / 2 + 1.5
  end
  return values
end

local function case(name, dtype, shapes, special)
  local inputs, record = {}, { op = name, dtype = dtype, shapes = shapes, inputs = {}, grads = {} }
  for i, shape in ipairs(shapes) do
    local values = values_of(shape, special, name == 'div' and i == 2)
    inputs[i] = ms.tensor(values, { dtype = dtype }):reshape(unpack(shape)):clone()
    inputs[i]:requires_grad_(true)
    record.inputs[i] = plain(inputs[i])
  end
  local y = (run[name] or ops[name])(unpack(inputs))
  record.output, record.special = plain(y), special
  y:backward(ms.ones(unpack(y:shape())):to(y:dtype()))
  for i, x in ipairs(inputs) do
    record.grads[i] = plain(x:grad())
  end
  print(json.encode(record))
end

for _, dtype in ipairs { 'f32', 'f64', 'bf16' } do
  for _, special in ipairs { false, true } do
    for _, name in ipairs(UNARY) do
      case(name, dtype, { { 4, 7 } }, special)
    end
    for _, name in ipairs { 'gelu_tanh', 'square', 'root', 'sum', 'mean' } do
      case(name, dtype, { { 4, 7 } }, special)
    end
    for _, name in ipairs { 'add', 'sub', 'mul', 'div' } do
      case(name, dtype, { { 5, 3, 4 }, { 3, 1 } }, special)
    end
    case('mse_loss', dtype, { { 3, 5 }, { 3, 5 } }, special)
    case('log_softmax', dtype, { { 3, 5 } }, special)
    case('cross_entropy', dtype, { { 3, 5 } }, special)
  end
  case('matmul', dtype, { { 2, 3, 5 }, { 2, 5, 4 } }, false)
  case('linear', dtype, { { 2, 3, 5 }, { 4, 5 }, { 4 } }, false)
  case('layer_norm', dtype, { { 3, 6 }, { 6 }, { 6 } }, false)
end
