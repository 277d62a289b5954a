--- Random programs over the operators of ms.ops, for compare.py: one line of JSON a program.
---
--- A program is a chain of calls that begins with an operand of any shape, sizes 0 and 1 among
--- them. Operands are drawn; many are permuted and narrowed views of larger leaves, or broadcast,
--- and in a third of the programs hold special values. The line has a step for every leaf and call,
--- in order, with the values it has here, and the gradients of the leaves.
---
--- MS_PROGRAMS=n programs from MS_SEED=s on.

local ms = require 'moonshard'
local draw = dofile(arg[0]:gsub('[^/]*$', '') .. 'draw.lua')
local ops, json, util = ms.ops, require 'moonshard.base.json', require 'moonshard.base.util'

local PROGRAMS = tonumber(os.getenv('MS_PROGRAMS')) or 1000
local SEED = tonumber(os.getenv('MS_SEED')) or 2001 -- as in cases.lua: of others a value may differ
local MOST_CALLS, MOST_ELEMENTS = 4, 150
local FLOATS = { 'f32', 'f64', 'bf16' }
local SIZES = { 1, 1, 2, 3, 4, 5, 7 }
local POWERS = { 0, 0.5, 1, 2, 3, -1, -2, 1.7 }

--- An empty list must not be written as an object.
local function array(list)
  return setmetatable(list, json.array)
end

local function range(n)
  local list = {}
  for i = 1, n do
    list[i] = i
  end
  return list
end

-- -- programs -------------------------------------------------------------------------------------

---@class Program
---@field random fun(n: integer?): number
---@field special boolean
---@field ended boolean?  no call may follow
---@field steps table[]  what is written
---@field tensors ms.Tensor[]  one a step
local Program = {}
Program.__index = Program

function Program:chance(one_in)
  return self.random(one_in) == 1
end

--- Write down what a step gave, and return it.
function Program:record(step, t)
  step.dtype, step.shape = t:dtype(), array(t:shape())
  step.values = array(draw.texts(t:detach()))
  self.steps[#self.steps + 1], self.tensors[#self.tensors + 1] = step, t
  return t
end

--- Call an operator. `given` are the numbers of the call as compare.py takes them (dimensions and
--- places counted from 0).
function Program:call(op, operands, given, fn)
  local places = {}
  for i, operand in ipairs(operands) do
    for k, t in ipairs(self.tensors) do
      places[i] = rawequal(t, operand) and k - 1 or places[i]
    end
  end
  return self:record({ op = op, operands = array(places), given = given },
    fn(unpack(operands)))
end

function Program:leaf(shape, dtype, values)
  local t = ms.tensor(values, { dtype = dtype }):reshape(shape):clone()
  local floats = dtype == 'f32' or dtype == 'f64' or dtype == 'bf16'
  t:requires_grad_(floats and not self:chance(4))
  return self:record({ op = 'leaf', differentiated = t:requires_grad() }, t)
end

function Program:permutation(n)
  local list = range(n)
  for i = n, 2, -1 do
    local k = self.random(i)
    list[i], list[k] = list[k], list[i]
  end
  return list
end

function Program:permute(x, order)
  local from_0 = {}
  for i, d in ipairs(order) do
    from_0[i] = d - 1
  end
  return self:call('permute', { x }, { dims = array(from_0) }, function(t)
    return ops.permute(t, order)
  end)
end

function Program:narrow(x, dim, start, length)
  return self:call('narrow', { x }, { dim = dim - 1, start = start - 1, length = length },
    function(t) return ops.narrow(t, dim, start, length) end)
end

--- An operand of a shape: a leaf, or every other time a view of a larger one.
function Program:operand(shape, dtype, special)
  if special == nil then
    special = self.special
  end
  local function leaf(sizes)
    return self:leaf(sizes, dtype, draw.values(self.random, util.product(sizes), special))
  end
  if #shape == 0 or self:chance(2) then
    return leaf(shape)
  end
  local order, memory = self:permutation(#shape), {}
  for i, d in ipairs(order) do
    memory[d] = shape[i]
  end
  local dim = self.random(#shape)
  local size = memory[dim]
  memory[dim] = size + self.random(3)
  local start = self.random(memory[dim] - size + 1)
  return self:permute(self:narrow(leaf(memory), dim, start, size), order)
end

--- A shape that broadcasts with x's.
function Program:broadcast(x)
  local shape = {}
  for i, size in ipairs(x:shape()) do
    if #shape > 0 or i == x:dim() or not self:chance(4) then
      shape[#shape + 1] = self:chance(4) and 1 or size
    end
  end
  return shape
end

--- Are magnitudes such that slopes of what follows do not lift rounding up?
local function moderate(x)
  for _, text in ipairs(draw.texts(x:detach())) do
    local size = math.abs(tonumber(text))
    if size ~= 0 and not (size > 1e-3 and size < 100) then
      return false
    end
  end
  return true
end

--- Are all finite, and not large?
local function tame(x)
  return ops.all(ops.le(x:detach(), 10)) and ops.all(ops.ge(x:detach(), -10))
end

-- -- operators ------------------------------------------------------------------------------------
-- Each draws what else the call takes beside x; nil: not with this x.

local rows = {}

for _, name in ipairs { 'exp', 'log', 'sqrt', 'tanh', 'relu', 'reciprocal', 'clone' } do
  rows[name] = function(p, x)
    return p:call(name, { x }, {}, ops[name])
  end
end

for _, name in ipairs { 'add', 'sub', 'mul', 'div' } do
  rows[name] = function(p, x)
    if p:chance(3) then
      local number, left = p.random(9) / 4 - 1.125, p:chance(2)
      return p:call(name, { x }, { number = number, left = left }, function(t)
        return left and ops[name](number, t) or ops[name](t, number)
      end)
    end
    local same = name ~= 'div' and p:chance(6) -- slopes of x / x are what rounding leaves
    local y = same and x or p:operand(p:broadcast(x), x:dtype())
    return p:call(name, p:chance(2) and { x, y } or { y, x }, {}, ops[name])
  end
end

function rows.where(p, x)
  local shape, conditions = p:broadcast(x), {}
  for i = 1, util.product(shape) do
    conditions[i] = p:chance(2)
  end
  local cond = p:leaf(shape, 'bool', conditions)
  return p:call('where', { cond, x, p:operand(p:broadcast(x), x:dtype()) }, {}, ops.where)
end

for _, name in ipairs { 'eq', 'ne', 'lt', 'le', 'gt', 'ge' } do
  rows[name] = function(p, x)
    local cond
    if p:chance(2) then
      local number = p.random(5) - 3
      cond = p:call(name, { x }, { number = number }, function(t) return ops[name](t, number) end)
    else
      cond = p:call(name, { x, p:operand(p:broadcast(x), x:dtype()) }, {}, ops[name])
    end
    return p:call('where', { cond, x, p:operand(p:broadcast(x), x:dtype()) }, {}, ops.where)
  end
end

function rows.affine(p, x)
  local scale, shift = p.random(9) / 4 - 1.125, p.random(9) / 4 - 1.125
  return p:call('affine', { x }, { scale = scale, shift = shift }, function(t)
    return ops.affine(t, scale, shift)
  end)
end

function rows.pow(p, x)
  local exponent = POWERS[p.random(#POWERS)]
  return p:call('pow', { x }, { exponent = exponent }, function(t) return ops.pow(t, exponent) end)
end

-- PyTorch's formulas have NaN at infinities, where gelu has limits.
function rows.gelu(p, x)
  local approximate = p:chance(2) and 'tanh' or 'none'
  return not p.special and tame(x)
    and p:call('gelu', { x }, { approximate = approximate }, function(t)
      return ops.gelu(t, approximate)
    end)
end

function rows.matmul(p, x)
  local shape = x:shape()
  if #shape < 2 then
    return nil
  end
  shape[#shape - 1], shape[#shape] = shape[#shape], SIZES[p.random(#SIZES)]
  return p:call('matmul', { x, p:operand(shape, x:dtype()) }, {}, ops.matmul)
end

local function layer(p, x)
  local outputs, inputs = SIZES[p.random(#SIZES)], x:size(-1)
  local operands = { x, p:operand({ outputs, inputs }, x:dtype()) }
  operands[3] = p:chance(2) and p:operand({ outputs }, x:dtype()) or nil
  return operands
end

function rows.linear(p, x)
  return x:dim() > 0 and p:call('linear', layer(p, x), {}, ops.linear)
end

function rows.linear_gelu(p, x)
  local approximate = p:chance(2) and 'tanh' or 'none'
  return x:dim() > 0 and not p.special and tame(x)
    and p:call('linear_gelu', layer(p, x), { approximate = approximate }, function(t, w, bias)
      return ops.linear_gelu(t, w, bias, approximate)
    end)
end

function rows.embedding(p, x)
  if x:dim() ~= 2 or x:size(1) == 0 then
    return nil
  end
  local shape, ids = { SIZES[p.random(#SIZES)], SIZES[p.random(3)] }, {}
  for i = 1, util.product(shape) do
    ids[i] = p.random(x:size(1)) - 1
  end
  return p:call('embedding', { x, p:leaf(shape, 'i64', ids) }, {}, ops.embedding)
end

-- A large eps: rows of nearly one value have rounding alone for their variance. Finite weights:
-- infinite ones make the gradient a sum of infinities, which is NaN or not by its order.
function rows.layer_norm(p, x)
  if x:dim() == 0 or x:size(-1) == 0 then
    return nil
  end
  local width, operands = { x:size(-1) }, { x }
  if p:chance(2) then
    operands = { x, p:operand(width, x:dtype(), false), p:operand(width, x:dtype(), false) }
  end
  return p:call('layer_norm', operands, { eps = 0.1 }, function(t, w, bias)
    return ops.layer_norm(t, w, bias, 0.1)
  end)
end

function rows.log_softmax(p, x)
  if x:dim() == 0 then
    return nil
  end
  local dim = p.random(x:dim())
  return p:call('log_softmax', { x }, { dim = dim - 1 }, function(t)
    return ops.log_softmax(t, dim)
  end)
end

local function reduction_of(p)
  return p:chance(2) and 'mean' or 'sum'
end

-- Rows that do not count are NaN in PyTorch's gradient when they hold NaN.
function rows.cross_entropy(p, x)
  if x:dim() ~= 2 or x:size(2) == 0 then
    return nil
  end
  local targets, reduction = {}, reduction_of(p)
  for i = 1, x:size(1) do
    targets[i] = not p.special and p:chance(5) and -100 or p.random(x:size(2)) - 1
  end
  return p:call('cross_entropy', { x, p:leaf({ x:size(1) }, 'i64', targets) },
    { reduction = reduction }, function(t, at)
      return ops.cross_entropy(t, at, { reduction = reduction })
    end)
end

function rows.mse_loss(p, x)
  local reduction = reduction_of(p)
  return p:call('mse_loss', { x, p:operand(x:shape(), x:dtype()) }, { reduction = reduction },
    function(t, y) return ops.mse_loss(t, y, { reduction = reduction }) end)
end

-- Finite operands, and no NaN from a later call in the gradient: what a mask hides does not count
-- here, and is NaN in PyTorch when it is NaN.
function rows.attention(p, x)
  local shape = x:shape()
  if #shape ~= 4 or util.product(shape) == 0 or not tame(x) then
    return nil
  end
  local causal, scale = p:chance(2), p:chance(3) and 0.5 or nil
  local function other()
    return p:operand(shape, x:dtype(), false)
  end
  p.ended = causal
  shape[3] = causal and shape[3] or SIZES[p.random(#SIZES)]
  return p:call('attention', { x, other(), other() }, { causal = causal, scale = scale },
    function(q, k, v) return ops.attention(q, k, v, { causal = causal, scale = scale }) end)
end

function rows.scaled_dot_product_attention(p, x)
  local shape = x:shape()
  if #shape ~= 4 or util.product(shape) == 0 or not tame(x) then
    return nil
  end
  local scores, operands, opts = x:shape(), { x }, { enable_gqa = p:chance(2) }
  shape[2] = opts.enable_gqa and 1 or shape[2]
  shape[3] = SIZES[p.random(#SIZES)]
  scores[4] = shape[3]
  operands[2], operands[3] = p:operand(shape, x:dtype(), false), p:operand(shape, x:dtype(), false)
  for d = 1, 4 do
    scores[d] = p:chance(3) and 1 or scores[d]
  end
  if p:chance(2) then
    operands[4] = p:operand(scores, x:dtype(), false)
  else
    local shown = {}
    for i = 1, util.product(scores) do
      shown[i] = not p:chance(3)
    end
    operands[4] = p:leaf(scores, 'bool', shown)
    p.ended = true -- the slope at a row of zeros
  end
  return p:call('scaled_dot_product_attention', operands, opts, function(q, k, v, mask)
    return ops.scaled_dot_product_attention(q, k, v, util.merged(opts, { attn_mask = mask }))
  end)
end

function rows.attention_packed(p, x)
  if x:dim() ~= 4 or x:numel() == 0 or not tame(x) then
    return nil
  end
  local heads, causal = p.random(3), p:chance(2)
  p.ended = causal
  local packed = p:operand({ x:size(1), x:size(2), 3 * heads * x:size(4) }, x:dtype(), false)
  return p:call('attention_packed', { packed }, { heads = heads, causal = causal }, function(t)
    return ops.attention_packed(t, heads, { causal = causal })
  end)
end

-- Which elements stay is this library's to draw; what ones become says it.
function rows.dropout(p, x)
  if x:dim() == 0 then
    return nil
  end
  local call = p.random(100)
  local kept = ops.ne(ops.dropout(ms.ones(x:shape()), 0.25, 'programs', call), 0)
  local mask = p:record({ op = 'leaf', differentiated = false }, kept)
  return p:call('dropout', { x, mask }, { p = 0.25 }, function(t)
    return ops.dropout(t, 0.25, 'programs', call)
  end)
end

for _, name in ipairs { 'sum', 'mean' } do
  rows[name] = function(p, x)
    if x:dim() == 0 or p:chance(4) then
      return p:call(name, { x }, {}, function(t) return ops[name](t) end)
    end
    local over, from_0, keepdim = {}, {}, p:chance(2)
    for i, d in ipairs(p:permutation(x:dim())) do
      if i == 1 or p:chance(3) then
        over[#over + 1], from_0[#from_0 + 1] = d, d - 1
      end
    end
    return p:call(name, { x }, { dim = array(from_0), keepdim = keepdim }, function(t)
      return ops[name](t, over, keepdim)
    end)
  end
end

function rows.reshape(p, x)
  local n, first = x:numel(), p.random(4)
  local shape = n % first == 0 and { first, n / first } or { n }
  return p:call('reshape', { x }, { shape = array(shape) }, function(t)
    return ops.reshape(t, shape)
  end)
end

function rows.permute(p, x)
  return p:permute(x, p:permutation(x:dim()))
end

function rows.transpose(p, x)
  if x:dim() == 0 then
    return nil
  end
  local a, b = p.random(x:dim()), p.random(x:dim())
  return p:call('transpose', { x }, { dim0 = a - 1, dim1 = b - 1 }, function(t)
    return ops.transpose(t, a, b)
  end)
end

function rows.narrow(p, x)
  if x:dim() == 0 then
    return nil
  end
  local dim = p.random(x:dim())
  local size = x:size(dim)
  local start = p.random(size + 1)
  return p:narrow(x, dim, start, p.random(size - start + 2) - 1)
end

function rows.select(p, x)
  local dim = x:dim() > 0 and p.random(x:dim())
  if not dim or x:size(dim) == 0 then
    return nil
  end
  local index = p.random(x:size(dim))
  return p:call('select', { x }, { dim = dim - 1, index = index - 1 }, function(t)
    return ops.select(t, dim, index)
  end)
end

function rows.cat(p, x)
  if x:dim() == 0 then
    return nil
  end
  local dim, list = p.random(x:dim()), { x }
  for _ = 1, p.random(3) - 1 do
    local shape = x:shape()
    shape[dim] = p.random(4) - 1
    table.insert(list, p.random(#list + 1), p:chance(4) and x or p:operand(shape, x:dtype()))
  end
  return p:call('cat', list, { dim = dim - 1 }, function(...) return ops.cat({ ... }, dim) end)
end

-- Special values have no integer.
function rows.cast(p, x)
  local dtype = x:dtype()
  if tame(x) and p:chance(4) then
    x = p:call('cast', { x }, { dtype = 'i64' }, function(t) return ops.cast(t, 'i64') end)
  end
  dtype = p:chance(4) and dtype or FLOATS[p.random(3)]
  return p:call('cast', { x }, { dtype = dtype }, function(t) return ops.cast(t, dtype) end)
end

-- -- all of them ----------------------------------------------------------------------------------

local names = {}
for name in pairs(rows) do
  names[#names + 1] = name
end
table.sort(names)

local function first_shape(p)
  local shape = {}
  for d = 1, p.random(5) - 1 do
    shape[d] = SIZES[p.random(#SIZES)]
    if util.product(shape) > MOST_ELEMENTS / 2 then
      shape[d] = 1
    end
  end
  if #shape > 0 and p:chance(10) then
    shape[p.random(#shape)] = 0
  end
  return shape
end

--- A program of the n-th operator first.
local function program(number)
  local random = draw.stream(number)
  local p = setmetatable({ random = random }, Program)
  local first, y = rows[names[number % #names + 1]], nil
  while not y do
    p.special, p.steps, p.tensors = random(3) == 1, {}, {}
    y = first(p, p:operand(first_shape(p), FLOATS[random(3)]))
  end
  for _ = 2, random(MOST_CALLS) do
    if p.ended or y:numel() > MOST_ELEMENTS or not (p.special or moderate(y)) then
      break
    end
    y = rows[names[random(#names)]](p, y) or y
  end
  local line = { number = number, special = p.special, steps = p.steps }
  if y:requires_grad() then
    local weight = ms.tensor(draw.values(random, y:numel(), false), { dtype = y:dtype() })
      :reshape(y:shape())
    line.weight = array(draw.texts(weight))
    y:backward(weight)
    for k, t in ipairs(p.tensors) do
      if p.steps[k].differentiated and t:grad() then
        p.steps[k].gradient = array(draw.texts(t:grad()))
      end
    end
  end
  print(json.encode(line))
end

for number = SEED, SEED + PROGRAMS - 1 do
  ms.scope(program, number)
end
