--- Draws random functions of tensors: 5 to 60 operators over arguments, leaves and frozen tensors,
--- with views, writes in place, broadcasting, reductions, values used several times, parts without
--- grad, and activation checkpoints, also nested. A function is a list of steps; each adds one
--- tensor to the list of values.

local ms = require 'moonshard'

local maker = {}

local SIZES = { 1, 2, 3, 4, 6 }

-- A generator of its own: operators must not change what is drawn.
local function generator(seed)
  local state = seed % 2147483647 + 1
  return function(n)
    state = state * 48271 % 2147483647
    return state % n + 1
  end
end

local function shape_of(t)
  local s = t:shape()
  return s[1], s[2]
end

local function broadcasts(a, b)
  local r, c = shape_of(a)
  local s, d = shape_of(b)
  return (r == s or r == 1 or s == 1) and (c == d or c == 1 or d == 1)
end

-- Each operator: what it needs of its operands `a` and `b`, and what it gives. Results stay small,
-- so that no value becomes infinite.
local UNARY = {
  tanh = function(a) return a:tanh() end,
  sigmoid = function(a) return a:sigmoid() end,
  relu = function(a) return a:relu() end,
  gelu = function(a) return a:gelu() end,
  exp = function(a) return (-(a * a)):exp() end,
  scale = function(a) return a * 0.5 + 0.25 end,
  reciprocal = function(a) return 1 / (a * a + 1) end,
  sqrt = function(a) return (a * a + 1):sqrt() end,
  clamp = function(a) return a:clamp(-0.5, 0.75) end,
  softmax = function(a) return a:softmax(2) end,
  log_softmax = function(a) return a:log_softmax(2):tanh() end,
  transpose = function(a) return a:transpose(1, 2) end,
  contiguous = function(a) return a:transpose(1, 2):contiguous() end,
  row = function(a) return a:narrow(1, 1, 1) end,
  column = function(a) return a:narrow(2, a:shape()[2], 1) end,
  flat = function(a) return a:contiguous():view(1, -1):narrow(2, 1, 1) end,
  flip = function(a) return a:flip(1) end,
  sum_rows = function(a) return a:sum(1, true) end,
  mean_columns = function(a) return a:mean(2, true) end,
  sum_all = function(a) return a:sum():view(1, 1):tanh() end,
  largest = function(a) return a:amax(2, true) end,
  cumsum = function(a) return a:cumsum(2):tanh() end,
  expand = function(a)
    local r, c = shape_of(a)
    return r == 1 and a:expand(3, c) or a
  end,
  bf16 = function(a) return ms.ops.cast(ms.ops.cast(a, 'bf16') * 0.5, 'f32') end,
  bf16_twice = function(a) -- the gradient of gelu is added to another
    local h = ms.ops.cast(a, 'bf16') * 0.5
    return ms.ops.cast(h:gelu() + h, 'f32')
  end,
  f64 = function(a) return ms.ops.cast(ms.ops.cast(a, 'f64'):sum(2, true), 'f32'):tanh() end,
  norm = function(a)
    local _, c = shape_of(a)
    return ms.ops.layer_norm(a, ms.ones(c), ms.zeros(c))
  end,
  detached = function(a) return a:detach() * 0.5 end,
  no_grad = function(a)
    return ms.no_grad(function()
      return (a * 2):tanh()
    end)
  end,
  written = function(a)
    local out = a:detach():clone()
    out:add_(out:detach():clone()):mul_(0.25)
    return out
  end,
  row_written = function(a)
    local out = a:detach():clone()
    out:narrow(1, 1, 1):fill_(0.125)
    return out
  end,
  filled = function(a)
    local r, c = shape_of(a)
    local out = ms.zeros(r, c)
    out:copy_(a:detach())
    return out + 1
  end,
}

local BINARY = {
  add = function(a, b) return (a + b) * 0.5 end,
  sub = function(a, b) return (a - b):tanh() end,
  mul = function(a, b) return (a * b):tanh() end,
  div = function(a, b) return (a / (b * b + 1)):tanh() end,
  maximum = function(a, b) return a:maximum(b) end,
  where = function(a, b) return ms.where(a:gt(b), a, b) end,
}

local PRODUCTS = {
  matmul = function(a, b) return a:matmul(b):tanh() end,
  linear = function(a, b) return ms.ops.linear(a, b:transpose(1, 2)):tanh() end,
  linear_gelu = function(a, b) return ms.ops.linear(a, b:transpose(1, 2)):gelu() end,
  loss = function(a, b)
    local logits = ms.ops.linear(a, b:transpose(1, 2))
    local targets = ms.zeros({ (shape_of(a)) }, { dtype = ms.i64 })
    return ms.ops.cross_entropy(logits, targets):view(1, 1):tanh()
  end,
}

local SAME_ROWS = {
  cat = function(a, b) return ms.cat({ a, b }, 2):narrow(2, 1, 2) end,
}

local function names(operators)
  local list = {}
  for name in pairs(operators) do
    list[#list + 1] = name
  end
  table.sort(list)
  return list
end

local FAMILIES = {
  { 5, UNARY, names(UNARY), function() return true end },
  { 3, BINARY, names(BINARY), broadcasts },
  { 2, PRODUCTS, names(PRODUCTS), function(a, b)
    return a:shape()[2] == b:shape()[1]
  end },
  { 1, SAME_ROWS, names(SAME_ROWS), function(a, b)
    return a:shape()[1] == b:shape()[1] and a:shape()[2] + b:shape()[2] >= 2
  end },
}

local function family(draw)
  local at = draw(11)
  for _, f in ipairs(FAMILIES) do
    at = at - f[1]
    if at <= 0 then
      return f
    end
  end
end

local function tensor(draw)
  return ms.randn(SIZES[draw(#SIZES)], SIZES[draw(#SIZES)])
end

local function run(steps, values)
  for _, s in ipairs(steps) do
    values[#values + 1] = s.fn(values[s.a], values[s.b])
  end
  return values[#values]
end

local step

-- An activation checkpoint over a function of two values.
local function checkpoint(draw, values, depth)
  local a, b = draw(#values), draw(#values)
  local inner, steps, names_of = { values[a], values[b] }, {}, {}
  for i = 1, draw(5) do
    steps[i] = step(draw, inner, depth + 1)
    names_of[i] = ('%s(v%d, v%d)'):format(steps[i].name, steps[i].a, steps[i].b)
    inner[#inner + 1] = steps[i].fn(inner[steps[i].a], inner[steps[i].b])
  end
  local function fn(...)
    return run(steps, { ... }):tanh()
  end
  return { name = ('checkpoint{%s}'):format(table.concat(names_of, ', ')), a = a, b = b,
    fn = function(x, y) return ms.nn.checkpoint(fn, x, y) end }
end

-- The next step: {name, fn, index of a, index of b}.
function step(draw, values, depth)
  if depth < 3 and draw(8) == 1 then
    return checkpoint(draw, values, depth)
  end
  for _ = 1, 50 do
    local f = family(draw)
    local name = f[3][draw(#f[3])]
    local a = draw(3) == 1 and #values or draw(#values)
    local b = draw(#values)
    if f[4](values[a], values[b]) then
      return { name = name, fn = f[2][name], a = a, b = b }
    end
  end
  return { name = 'tanh', fn = UNARY.tanh, a = #values, b = 1 }
end

---@class ms.spec.Program
---@field seed integer
---@field args ms.Tensor[]
---@field leaves ms.Tensor[]  those that require grad
---@field fn fun(...): ...  results: one to three tensors
---@field text string

--- The program of a seed.
---@return ms.spec.Program
function maker.draw(seed)
  local draw = generator(seed)
  ms.manual_seed(seed)
  local args, leaves, held = {}, {}, {}
  for i = 1, draw(3) do
    args[i] = tensor(draw)
  end
  for _ = 1, draw(4) do
    local t = tensor(draw)
    if draw(4) > 1 then
      t:requires_grad_(true)
      leaves[#leaves + 1] = t
    end
    held[#held + 1] = t
  end
  local function start(...)
    local values = { ... }
    for _, t in ipairs(held) do
      values[#values + 1] = t
    end
    return values
  end
  local values, steps, text = start(unpack(args)), {}, {}
  for i = 1, 4 + draw(56) do
    steps[i] = step(draw, values, 1)
    text[i] = ('v%d = %s(v%d, v%d)'):format(#values + 1, steps[i].name, steps[i].a, steps[i].b)
    values[#values + 1] = steps[i].fn(values[steps[i].a], values[steps[i].b])
  end
  local results = { #values }
  for i = 2, draw(3) do
    results[i] = #args + #held + draw(#steps)
  end
  local function fn(...)
    local now, out = start(...), {}
    run(steps, now)
    for i, at in ipairs(results) do
      out[i] = now[at]
    end
    return unpack(out)
  end
  return { seed = seed, steps = steps, start = start, args = args, leaves = leaves, fn = fn,
    text = table.concat(text, '\n') .. '\nresults v' .. table.concat(results, ' v') }
end

--- The function that ends behind `n` steps, whose result is that of the last.
---@param p ms.spec.Program
function maker.prefix(p, n)
  return function(...)
    local values = p.start(...)
    for i = 1, n do
      local s = p.steps[i]
      values[#values + 1] = s.fn(values[s.a], values[s.b])
    end
    return values[#values]
  end
end

return maker
