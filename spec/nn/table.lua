--- The modules of lua/moonshard/nn, one row each. spec/nn/table_spec.lua runs the same tests on
--- every row. A new module needs one row here and no file of its own.
---
--- | field | meaning |
--- | --- | --- |
--- | name | names the tests |
--- | make | function(): a new module with small sizes |
--- | input | function(): the arguments of forward in f32; two ranks take halves of dimension 1 |
--- | reference | function(sd, ...): the result in evaluation, from the state dict and ops alone |
--- | state | names and shapes of the state dict, in order; default: none |
--- | random | true when forward draws random numbers while training |
--- | batch | true when training normalises by the batch: it differs from evaluation |
--- | sequences | true when dimension 2 of the inputs is that of positions |
--- | sums | true for a loss that adds: 0 for an empty batch, where a mean is NaN |
--- | single | true when a part is computed in f32 whatever the dtype |
--- | alone | true when forward is collective: a test of its own runs it on two ranks |
--- | result | dtype of the result with inputs in bf16 or f16; default: theirs |
--- | class, refuses | a class and calls of it that raise: { kind, message, arguments ... } |

local ms = require 'moonshard'
local nn, ops = ms.nn, ms.ops

-- -- inputs --------------------------------------------------------------------------------------

local function floats(...)
  return ms.randn({ ... }, { seed = 7 })
end

local function ids(values)
  return ms.tensor(values, { dtype = 'i64' })
end

-- -- references ----------------------------------------------------------------------------------

local function linear(x, weight, bias)
  local y = ops.matmul(x, weight:t())
  return bias and y + bias or y
end

-- x times the normal distribution function, whose integral is Simpson's rule with 200 intervals.
local function gelu(x)
  local n, h = 200, x / 200
  local sum = ms.zeros(x:shape(), { dtype = x:dtype() })
  for i = 0, n do
    local factor = (i == 0 or i == n) and 1 or i % 2 == 1 and 4 or 2
    sum = sum + (-(h * i):square() / 2):exp() * factor
  end
  return x * (sum * h / 3 / math.sqrt(2 * math.pi) + 0.5)
end

local function gelu_tanh(x)
  return x * 0.5 * (((x + x ^ 3 * 0.044715) * math.sqrt(2 / math.pi)):tanh() + 1)
end

local function layer_norm(x, weight, bias, eps)
  local dim = x:dim()
  local centred = x - x:mean(dim, true)
  local y = centred / ((centred:square():mean(dim, true) + (eps or 1e-5)):sqrt())
  y = weight and y * weight or y
  return bias and y + bias or y
end

-- By the statistics of the state dict, one channel at a time.
local function batch_norm(sd, x, eps)
  local planes = {}
  for c = 1, x:size(2) do
    local y = (x:select(2, c) - sd.running_mean[c]) / (sd.running_var[c] + (eps or 1e-5)):sqrt()
    planes[c] = sd.weight and y * sd.weight[c] + sd.bias[c] or y
  end
  return ms.stack(planes, 2)
end

-- A batch normalisation that has seen a batch.
local function with_statistics(make, ...)
  local sizes = { ... }
  return function()
    local module = make()
    ms.no_grad(module, ms.randn(sizes, { seed = 11 }) * 2 + 1)
    return module
  end
end

local function batch_norm_state(n)
  return { { 'weight', n }, { 'bias', n }, { 'running_mean', n }, { 'running_var', n },
    { 'num_batches_tracked' } }
end

-- Softmax of scores over the past, one head at a time.
local function causal_attention(qkv, heads)
  local batch, length, width = qkv:size(1), qkv:size(2), qkv:size(3) / 3
  local d, out = width / heads, {}
  local past = ms.ones(length, length):tril():gt(0)
  for h = 0, heads - 1 do
    local function part(k) return qkv:narrow(3, k * width + h * d + 1, d) end
    local scores = ops.matmul(part(0), part(1):transpose(2, 3)) / math.sqrt(d)
    local e = ms.where(past, scores:exp(), 0)
    out[h + 1] = ops.matmul(e / e:sum(3, true), part(2))
  end
  return ms.cat(out, 3):reshape(batch, length, width)
end

local function attention(sd, x, heads, prefix)
  local function p(name) return sd[prefix .. name] end
  local qkv = linear(x, p 'qkv.weight', p 'qkv.bias')
  return linear(causal_attention(qkv, heads), p 'proj.weight', p 'proj.bias')
end

-- Pairs i and i + D / 2 of x (T, D) turned by position / theta^(2 i / D).
local function rotated(x, theta)
  local half, rows = x:size(2) / 2, {}
  for t = 1, x:size(1) do
    local low, high = {}, {}
    for i = 1, half do
      local angle = (t - 1) / theta ^ ((i - 1) / half)
      local a, b, cos, sin = x[t][i], x[t][half + i], math.cos(angle), math.sin(angle)
      low[i], high[i] = a * cos - b * sin, b * cos + a * sin
    end
    rows[t] = ms.cat({ ms.stack(low), ms.stack(high) }, 1)
  end
  return ms.stack(rows)
end

-- Causal attention with `n` query heads for each key head, one sample and head at a time.
local function grouped_query_attention(sd, x, heads, n, theta)
  local samples, d = {}, sd['q_proj.weight']:size(1) / heads
  for s = 1, x:size(1) do
    local out = {}
    for h = 0, heads - 1 do
      local function part(name, at)
        return linear(x[s], sd[name .. '_proj.weight']:narrow(1, at * d + 1, d))
      end
      local q, k = part('q', h), part('k', math.floor(h / n))
      if theta then
        q, k = rotated(q, theta), rotated(k, theta)
      end
      local e = (ops.matmul(q, k:t()) / math.sqrt(d)):exp():tril()
      out[h + 1] = ops.matmul(e / e:sum(2, true), part('v', math.floor(h / n)))
    end
    samples[s] = linear(ms.cat(out, 2), sd['o_proj.weight'])
  end
  return ms.stack(samples)
end

-- One sample and one head at a time; all (N, length, width), bias (N, heads, L, S) of the scores.
local function multihead(sd, prefix, heads, query, key, value, bias)
  local width = query:size(3)
  local function project(x, i, name)
    local weight, b = sd[prefix .. name], sd[prefix .. 'in_proj_bias']
    weight = weight or sd[prefix .. 'in_proj_weight']:narrow(1, (i - 1) * width + 1, width)
    return linear(x, weight, b and b:narrow(1, (i - 1) * width + 1, width))
  end
  local q, k = project(query, 1, 'q_proj_weight'), project(key, 2, 'k_proj_weight')
  local v, d = project(value, 3, 'v_proj_weight'), width / heads
  local samples = {}
  for n = 1, query:size(1) do
    local out = {}
    for h = 0, heads - 1 do
      local function part(x) return x[n]:narrow(2, h * d + 1, d) end
      local scores = ops.matmul(part(q), part(k):t()) / math.sqrt(d)
      local e = (bias and scores + bias[n][h + 1] or scores):exp()
      out[h + 1] = ops.matmul(e / e:sum(2, true), part(v))
    end
    samples[n] = linear(ms.cat(out, 2), sd[prefix .. 'out_proj.weight'],
      sd[prefix .. 'out_proj.bias'])
  end
  return ms.stack(samples)
end

-- (N, heads, L, S) of masks that are true where nothing is seen: pairs (L, S), keys (N, S).
local function score_bias(x, heads, pairs_of, keys)
  local hidden = ms.zeros(x:size(1), heads, pairs_of:size(1), pairs_of:size(2))
    :masked_fill(pairs_of, -math.huge)
  hidden = keys and hidden:masked_fill(keys:reshape(keys:size(1), 1, 1, -1), -math.huge) or hidden
  return hidden:to(x:dtype())
end

local function causal(n)
  return ms.ones(n, n):triu(1):gt(0)
end

local function feed_forward(sd, x, prefix, act)
  local function p(name) return sd[prefix .. name] end
  return linear(act(linear(x, p 'fc.weight', p 'fc.bias')), p 'out.weight', p 'out.bias')
end

-- A layer of a transformer, normalised in front of its blocks or behind; all (N, length, width).
-- memory: of a decoder layer. bias: of the scores of self-attention.
local function transformer_layer(sd, prefix, heads, x, opts)
  local memory, n = opts.memory, 0
  local function residual(block)
    n = n + 1
    local norm = ('%snorm%d.'):format(prefix, n)
    local weight, bias = sd[norm .. 'weight'], sd[norm .. 'bias']
    if opts.norm_first then
      x = x + block(layer_norm(x, weight, bias))
    else
      x = layer_norm(x + block(x), weight, bias)
    end
  end
  residual(function(y) return multihead(sd, prefix .. 'self_attn.', heads, y, y, y, opts.bias) end)
  if memory then
    residual(function(y)
      return multihead(sd, prefix .. 'multihead_attn.', heads, y, memory, memory)
    end)
  end
  residual(function(y)
    local function p(name) return sd[prefix .. name] end
    local hidden = linear(y, p 'linear1.weight', p 'linear1.bias')
    hidden = opts.act and opts.act(hidden) or ms.where(hidden:gt(0), hidden, 0)
    return linear(hidden, p 'linear2.weight', p 'linear2.bias')
  end)
  return x
end

-- One sample, channel and position at a time, from the definition. x (N, C, H, W), padded with 0.
local function conv2d(x, weight, bias, stride, dilation, groups)
  local per_group, kh, kw = weight:size(2), weight:size(3), weight:size(4)
  local rows = math.floor((x:size(3) - dilation * (kh - 1) - 1) / stride)
  local columns = math.floor((x:size(4) - dilation * (kw - 1) - 1) / stride)
  local channels = {}
  for o = 1, weight:size(1) do
    local first, cells = math.floor((o - 1) * groups / weight:size(1)) * per_group, {}
    for r = 0, rows do
      for c = 0, columns do
        local sum = 0
        for i = 1, kh do
          for j = 1, kw do
            local part = x:narrow(2, first + 1, per_group)
              :select(3, r * stride + (i - 1) * dilation + 1)
              :select(3, c * stride + (j - 1) * dilation + 1)
            sum = (part * weight[o]:select(2, i):select(2, j)):sum(2) + sum
          end
        end
        cells[#cells + 1] = bias and sum + bias[o] or sum
      end
    end
    channels[o] = ms.stack(cells, 2):reshape(x:size(1), rows + 1, columns + 1)
  end
  return ms.stack(channels, 2)
end

-- x with a zero behind each entry of a dimension but the last.
local function spread(x, dim)
  local shape = x:shape()
  local zeros = ms.zeros(shape, { dtype = x:dtype() })
  shape[dim] = 2 * shape[dim]
  return ms.stack({ x, zeros }, dim + 1):reshape(shape):narrow(dim, 1, shape[dim] - 1)
end

-- (N, C, H, W) with a frame of zeros.
local function framed(x, n)
  for dim = 3, 4 do
    local shape = x:shape()
    shape[dim] = n
    local zeros = ms.zeros(shape, { dtype = x:dtype() })
    x = ms.cat({ zeros, x, zeros }, dim)
  end
  return x
end

-- fn of each window of 2 times 2 elements, side by side.
local function windows(x, fn)
  local a, b = x:size(3) / 2, x:size(4) / 2
  return fn(x:reshape(x:size(1), x:size(2), a, 2, b, 2):permute(1, 2, 3, 5, 4, 6):reshape(
    x:size(1), x:size(2), a, b, 4))
end

local function largest(cells)
  local most = cells:select(-1, 1)
  for i = 2, cells:size(-1) do
    most = ops.maximum(most, cells:select(-1, i))
  end
  return most
end

-- Mean of -log p(target) over the rows whose target is not `ignored`.
local function cross_entropy(logits, targets, ignored)
  local total, n = 0, 0
  for i, row in ipairs(logits) do
    local target = targets[i]:item()
    if target ~= ignored then
      total, n = (row:exp():sum() / row[target + 1]:exp()):log() + total, n + 1
    end
  end
  return total, n
end

local function sigmoid(x)
  return 1 / ((-x):exp() + 1)
end

-- A layer over x (N, T, in), one step and one gate at a time. step(map, h, c) gives the next h and
-- c, map(name, i) the linear map of gate i.
local function recurrent(sd, suffix, step, x, backwards)
  local h = ms.zeros(x:size(1), sd['weight_hh' .. suffix]:size(2), { dtype = x:dtype() })
  local c, n, out = h, x:size(2), {}
  for s = 1, n do
    local t = backwards and n + 1 - s or s
    local function map(name, i)
      local width = h:size(2)
      local first = (i - 1) * width + 1
      local function part(p) return sd[p .. name .. suffix]:narrow(1, first, width) end
      return linear(name == 'ih' and x:select(2, t) or h, part 'weight_', part 'bias_')
    end
    h, c = step(map, h, c)
    out[t] = h
  end
  return ms.stack(out, 2)
end

local function lstm(map, _, c)
  local function gate(i) return map('ih', i) + map('hh', i) end
  c = sigmoid(gate(2)) * c + sigmoid(gate(1)) * gate(3):tanh()
  return sigmoid(gate(4)) * c:tanh(), c
end

local function gru(map, h)
  local reset = sigmoid(map('ih', 1) + map('hh', 1))
  local update = sigmoid(map('ih', 2) + map('hh', 2))
  return (1 - update) * (map('ih', 3) + reset * map('hh', 3)):tanh() + update * h
end

local function recurrent_state(suffix, gates, width, inputs)
  return { 'weight_ih' .. suffix, gates * width, inputs },
    { 'weight_hh' .. suffix, gates * width, width }, { 'bias_ih' .. suffix, gates * width },
    { 'bias_hh' .. suffix, gates * width }
end

local function bidirectional_state(gates, width, inputs)
  local list = {}
  for layer = 0, 1 do
    for _, direction in ipairs { '', '_reverse' } do
      local suffix, from = '_l' .. layer .. direction, layer == 0 and inputs or 2 * width
      for _, entry in ipairs { recurrent_state(suffix, gates, width, from) } do
        list[#list + 1] = entry
      end
    end
  end
  return list
end

-- A container in use: nn.ModuleList has no forward of its own.
local Stack = nn.Module.extend('spec.Stack')
function Stack:init()
  self.layers = nn.ModuleList { nn.Linear(4, 4), nn.Linear(4, 4) }
end
function Stack:forward(x)
  for _, layer in ipairs(self.layers) do
    x = layer(x)
  end
  return x
end

local Named = nn.Module.extend('spec.Named')
function Named:init()
  self.layers = nn.ModuleDict { { 'second', nn.Linear(3, 4) }, { 'first', nn.Linear(4, 3) } }
  self.layers.act = nn.Tanh()
end
function Named:forward(x)
  local layers = self.layers
  return layers.act(layers['second'](layers.first(x)))
end

-- With a forward, so that FSDP can wrap it alone.
local Scales = nn.ParameterList.extend('spec.Scales')
function Scales:forward(x)
  for i = 1, self:len() do
    x = x * self[i]
  end
  return x
end

-- Self-attention with options of the call, as a module of one argument.
local SelfAttention = nn.Module.extend('spec.SelfAttention')
function SelfAttention:init(opts, call)
  self.attn = nn.MultiheadAttention(4, 2, opts)
  self.call = call
end
function SelfAttention:forward(x, keys)
  local call = self.call
  if keys then
    call = { key_padding_mask = keys:gt(0), attn_mask = call.attn_mask, need_weights = false }
  end
  return (self.attn(x, x, x, call))
end

local function attention_state(prefix, width)
  return { prefix .. 'in_proj_weight', 3 * width, width }, { prefix .. 'in_proj_bias', 3 * width },
    { prefix .. 'out_proj.weight', width, width }, { prefix .. 'out_proj.bias', width }
end

local function linear_state(prefix, from, to)
  return { prefix .. '.weight', to, from }, { prefix .. '.bias', to }
end

-- Of a layer of a transformer with one attention or two.
local function layer_state(list, prefix, attentions, width, hidden)
  local function add(...)
    for _, entry in ipairs { ... } do
      list[#list + 1] = entry
    end
  end
  for i = 1, attentions do
    add(attention_state(prefix .. (i == 1 and 'self_attn.' or 'multihead_attn.'), width))
  end
  add(linear_state(prefix .. 'linear1', width, hidden))
  add(linear_state(prefix .. 'linear2', hidden, width))
  for i = 1, attentions + 1 do
    add({ prefix .. 'norm' .. i .. '.weight', width }, { prefix .. 'norm' .. i .. '.bias', width })
  end
  return list
end

local function transformer_state()
  local list = layer_state({}, 'encoder.layers.0.', 1, 4, 3)
  layer_state(list, 'encoder.layers.1.', 1, 4, 3)
  list[#list + 1], list[#list + 2] = { 'encoder.norm.weight', 4 }, { 'encoder.norm.bias', 4 }
  layer_state(list, 'decoder.layers.0.', 2, 4, 3)
  list[#list + 1], list[#list + 2] = { 'decoder.norm.weight', 4 }, { 'decoder.norm.bias', 4 }
  return list
end

-- -- rows ----------------------------------------------------------------------------------------

return {
  {
    name = 'Linear',
    make = function() return nn.Linear(4, 3) end,
    input = function() return floats(2, 5, 4) end,
    state = { { 'weight', 3, 4 }, { 'bias', 3 } },
    reference = function(sd, x) return linear(x, sd.weight, sd.bias) end,
    class = nn.Linear,
    refuses = {
      { 'TypeError', "'out_features' is nil, expected a whole number", 3 },
      { 'ValueError', "'in_features' is -1, expected 0 or more", -1, 2 },
      { 'TypeError', "'bias' is a string, expected true or false", 2, 2, { bias = 'no' } },
      { 'TypeError', "'init' is a number, expected a rule of nn.init", 2, 2, { init = 0 } },
      { 'ValueError', "'dtype' is i64, expected a floating dtype", 2, 2, { dtype = 'i64' } },
      { 'ValueError', "unknown option 'bais', did you mean 'bias'?", 3, 2, { bais = false } },
    },
  },
  {
    name = 'Linear without a bias',
    make = function() return nn.Linear(4, 3, { bias = false }) end,
    input = function() return floats(2, 4) end,
    state = { { 'weight', 3, 4 } },
    reference = function(sd, x) return linear(x, sd.weight) end,
  },
  {
    name = 'LinearGELU',
    make = function() return nn.LinearGELU(4, 3) end,
    input = function() return floats(2, 4) end,
    state = { { 'weight', 3, 4 }, { 'bias', 3 } },
    reference = function(sd, x) return gelu(linear(x, sd.weight, sd.bias)) end,
  },
  {
    name = 'LinearGELU with the tanh form',
    make = function() return nn.LinearGELU(4, 3, { approximate = 'tanh' }) end,
    input = function() return floats(2, 4) end,
    state = { { 'weight', 3, 4 }, { 'bias', 3 } },
    reference = function(sd, x) return gelu_tanh(linear(x, sd.weight, sd.bias)) end,
  },
  {
    name = 'Conv1d',
    make = function() return nn.Conv1d(2, 3, 3, { padding = 'same' }) end,
    input = function() return floats(2, 2, 5) end,
    state = { { 'weight', 3, 2, 3 }, { 'bias', 3 } },
    reference = function(sd, x)
      local weight = sd.weight:reshape(3, 2, 1, 3)
      return conv2d(framed(x:unsqueeze(3), 1):narrow(3, 2, 1), weight, sd.bias, 1, 1, 1):squeeze(3)
    end,
  },
  {
    name = 'Conv2d',
    make = function() return nn.Conv2d(3, 4, 3, { padding = 1 }) end,
    input = function() return floats(2, 3, 4, 5) end,
    state = { { 'weight', 4, 3, 3, 3 }, { 'bias', 4 } },
    reference = function(sd, x) return conv2d(framed(x, 1), sd.weight, sd.bias, 1, 1, 1) end,
    class = nn.Conv2d,
    refuses = {
      { 'TypeError', "'kernel_size' is nil, expected a whole number", 2, 3 },
      { 'ValueError', "'kernel_size' has 3 numbers, expected one or 2", 2, 3, { 3, 3, 3 } },
      { 'ValueError', "'in_channels' is 3, expected a multiple of 'groups' = 2", 3, 4, 3,
        { groups = 2 } },
      { 'ValueError', "'padding' is 'same' and 'stride' 2", 3, 4, 3,
        { padding = 'same', stride = 2 } },
    },
  },
  {
    name = 'Conv2d with a stride, distant taps and groups, without a bias',
    make = function()
      return nn.Conv2d(4, 6, { 2, 3 }, { stride = 2, dilation = 2, groups = 2, bias = false })
    end,
    input = function() return floats(2, 4, 6, 7) end,
    state = { { 'weight', 6, 2, 2, 3 } },
    reference = function(sd, x) return conv2d(x, sd.weight, nil, 2, 2, 2) end,
  },
  {
    name = 'Conv2d of each channel alone',
    make = function() return nn.Conv2d(3, 3, 3, { padding = 1, groups = 3 }) end,
    input = function() return floats(2, 3, 4, 4) end,
    state = { { 'weight', 3, 1, 3, 3 }, { 'bias', 3 } },
    reference = function(sd, x) return conv2d(framed(x, 1), sd.weight, sd.bias, 1, 1, 3) end,
  },
  {
    name = 'Conv2d padded by reflection',
    make = function() return nn.Conv2d(2, 2, 3, { padding = 1, padding_mode = 'reflect' }) end,
    input = function() return floats(2, 2, 3, 3) end,
    state = { { 'weight', 2, 2, 3, 3 }, { 'bias', 2 } },
    reference = function(sd, x)
      for dim = 3, 4 do
        x = ms.cat({ x:narrow(dim, 2, 1), x, x:narrow(dim, 2, 1) }, dim)
      end
      return conv2d(x, sd.weight, sd.bias, 1, 1, 1)
    end,
  },
  {
    name = 'Conv3d',
    make = function() return nn.Conv3d(2, 2, { 1, 3, 2 }) end,
    input = function() return floats(2, 2, 3, 4, 3) end,
    state = { { 'weight', 2, 2, 1, 3, 2 }, { 'bias', 2 } },
    reference = function(sd, x)
      local sheets = {}
      for d = 1, x:size(3) do
        sheets[d] = conv2d(x:select(3, d), sd.weight:squeeze(3), sd.bias, 1, 1, 1)
      end
      return ms.stack(sheets, 3)
    end,
  },
  {
    name = 'ConvTranspose2d',
    make = function() return nn.ConvTranspose2d(3, 2, 3, { stride = 2, padding = 1 }) end,
    input = function() return floats(2, 3, 2, 3) end,
    state = { { 'weight', 3, 2, 3, 3 }, { 'bias', 2 } },
    reference = function(sd, x)
      return conv2d(framed(spread(spread(x, 3), 4), 1), sd.weight:transpose(1, 2):flip(3):flip(4),
        sd.bias, 1, 1, 1)
    end,
    class = nn.ConvTranspose2d,
    refuses = {
      { 'TypeError', "'padding' is a string, expected whole numbers", 2, 3, 3,
        { padding = 'same' } },
      { 'ValueError', "'padding_mode' is 'reflect', expected one of zeros", 2, 3, 3,
        { padding_mode = 'reflect' } },
      { 'ValueError', "'out_channels' is 3, expected a multiple of 'groups' = 2", 4, 3, 3,
        { groups = 2 } },
    },
  },
  {
    name = 'ConvTranspose1d',
    make = function() return nn.ConvTranspose1d(2, 3, 2, { stride = 2, output_padding = 1 }) end,
    input = function() return floats(2, 2, 4) end,
    state = { { 'weight', 2, 3, 2 }, { 'bias', 3 } },
    reference = function(sd, x)
      x = framed(spread(x, 3):unsqueeze(3), 1):narrow(3, 2, 1)
      local after = ms.zeros(x:size(1), 2, 1, 1, { dtype = x:dtype() })
      local weight = sd.weight:transpose(1, 2):flip(3):unsqueeze(3)
      return conv2d(ms.cat({ x, after }, 4), weight, sd.bias, 1, 1, 1):squeeze(3)
    end,
  },
  {
    name = 'Upsample',
    make = function() return nn.Upsample { scale_factor = 2 } end,
    input = function() return floats(2, 3, 4) end,
    reference = function(_, x) return x:repeat_interleave(2, 3) end,
    class = nn.Upsample,
    refuses = {
      { 'ValueError', "none of 'size' and 'scale_factor' are given, expected one" },
      { 'ValueError', "both of 'size' and 'scale_factor' are given",
        { size = 2, scale_factor = 2 } },
      { 'ValueError', "'align_corners' is given in mode 'nearest', which has no weights",
        { size = 2, align_corners = true } },
      { 'ValueError', "'mode' is 'cubic', expected one of", { size = 2, mode = 'cubic' } },
    },
  },
  {
    name = 'Upsample with weights',
    make = function() return nn.Upsample { size = 8, mode = 'linear' } end,
    input = function() return floats(2, 3, 4) end,
    reference = function(_, x)
      local cells = {}
      for i = 1, 4 do
        for _, j in ipairs { math.max(i - 1, 1), math.min(i + 1, 4) } do
          cells[#cells + 1] = x:select(3, i) * 0.75 + x:select(3, j) * 0.25
        end
      end
      return ms.stack(cells, 3)
    end,
  },
  {
    name = 'MaxPool2d',
    make = function() return nn.MaxPool2d(2) end,
    input = function() return floats(2, 3, 4, 6) end,
    reference = function(_, x) return windows(x, largest) end,
    class = nn.MaxPool2d,
    refuses = { { 'ValueError', "'kernel_size' is 0, expected 1 or more", 0 } },
  },
  {
    name = 'AvgPool2d',
    make = function() return nn.AvgPool2d(2, { padding = 1 }) end,
    input = function() return floats(2, 3, 4, 6) end,
    reference = function(_, x)
      return windows(framed(x, 1), function(cells) return cells:mean(-1) end)
    end,
  },
  {
    name = 'AdaptiveAvgPool2d',
    make = function() return nn.AdaptiveAvgPool2d(2) end,
    input = function() return floats(2, 3, 4, 3) end,
    reference = function(_, x) -- of 3 columns: 1 and 2, 2 and 3
      local function half(i) return x:narrow(4, i, 2):reshape(2, 3, 2, 4):mean(-1) end
      return ms.stack({ half(1), half(2) }, 4)
    end,
  },
  {
    name = 'Embedding',
    make = function() return nn.Embedding(5, 3, { padding_idx = 3 }) end, -- not among the ids
    input = function() return ids { { 4, 0, 0 }, { 2, 4, 1 } } end,
    state = { { 'weight', 5, 3 } },
    reference = function(sd, x)
      local rows = {}
      for i, id in ipairs(x:reshape(-1):totable()) do
        rows[i] = sd.weight[id + 1]
      end
      return ms.stack(rows):reshape(x:size(1), x:size(2), 3)
    end,
    class = nn.Embedding,
    refuses = {
      { 'ValueError', "'padding_idx' is 5, expected -5 to 4", 5, 4, { padding_idx = 5 } },
    },
  },
  {
    name = 'LayerNorm',
    make = function() return nn.LayerNorm(6, { eps = 0.1 }) end,
    input = function() return floats(2, 3, 6) end,
    state = { { 'weight', 6 }, { 'bias', 6 } },
    reference = function(sd, x) return layer_norm(x, sd.weight, sd.bias, 0.1) end,
    class = nn.LayerNorm,
    refuses = {
      { 'ValueError', "'normalized_shape' is empty, expected one size at least", {} },
      { 'TypeError', "'normalized_shape[2]' is a string, expected a whole number", { 4, 'x' } },
      { 'ValueError', "'eps' is -1, expected a finite number", 2, { eps = -1 } },
    },
  },
  {
    name = 'LayerNorm over two dimensions',
    make = function() return nn.LayerNorm({ 3, 2 }) end,
    input = function() return floats(4, 3, 2) end,
    state = { { 'weight', 3, 2 }, { 'bias', 3, 2 } },
    reference = function(sd, x)
      return layer_norm(x:reshape(4, 6), sd.weight:reshape(6), sd.bias:reshape(6)):reshape(4, 3, 2)
    end,
  },
  {
    name = 'LayerNorm without a bias',
    make = function() return nn.LayerNorm(6, { bias = false }) end,
    input = function() return floats(2, 6) end,
    state = { { 'weight', 6 } },
    reference = function(sd, x) return layer_norm(x, sd.weight) end,
  },
  {
    name = 'LayerNorm without parameters',
    make = function() return nn.LayerNorm(6, { elementwise_affine = false }) end,
    input = function() return floats(2, 6) end,
    reference = function(_, x) return layer_norm(x) end,
  },
  {
    name = 'RMSNorm',
    make = function() return nn.RMSNorm(6, { eps = 0.1 }) end,
    input = function() return floats(2, 3, 6) end,
    state = { { 'weight', 6 } },
    reference = function(sd, x)
      return x / (x:square():sum(3, true) / 6 + 0.1):sqrt() * sd.weight
    end,
    class = nn.RMSNorm,
    refuses = { { 'TypeError', "'normalized_shape' is nil, expected a whole number" } },
  },
  {
    name = 'RMSNorm over two dimensions',
    make = function() return nn.RMSNorm({ 3, 2 }, { eps = 0.1 }) end,
    input = function() return floats(4, 3, 2) end,
    state = { { 'weight', 3, 2 } },
    reference = function(sd, x)
      return x / (x:square():reshape(4, 6):sum(2):reshape(4, 1, 1) / 6 + 0.1):sqrt() * sd.weight
    end,
  },
  {
    name = 'RMSNorm without a weight',
    make = function() return nn.RMSNorm(3, { elementwise_affine = false }) end,
    input = function() return ms.tensor { { 0.03, 0, -0.03 }, { 1, 2, 3 } } end,
    reference = function(_, x)
      local eps = x:dtype() == 'f64' and 2 ^ -52 or 2 ^ -23
      return x / (x:square():sum(2, true) / 3 + eps):sqrt()
    end,
  },
  {
    name = 'GroupNorm',
    make = function() return nn.GroupNorm(2, 4, { eps = 0.1 }) end,
    input = function() return floats(2, 4, 3) end,
    state = { { 'weight', 4 }, { 'bias', 4 } },
    reference = function(sd, x)
      local groups = {}
      for g = 0, 1 do
        local part = x:narrow(2, 2 * g + 1, 2):reshape(2, 6)
        groups[g + 1] = layer_norm(part, nil, nil, 0.1):reshape(2, 2, 3)
      end
      return ms.cat(groups, 2) * sd.weight:reshape(4, 1) + sd.bias:reshape(4, 1)
    end,
    class = nn.GroupNorm,
    refuses = {
      { 'ValueError', 'num_channels must be divisible by num_groups', 2, 5 },
    },
  },
  {
    name = 'GroupNorm without parameters',
    make = function() return nn.GroupNorm(1, 2, { affine = false }) end,
    input = function() return floats(2, 2, 1, 3) end,
    reference = function(_, x) return layer_norm(x:reshape(2, 6)):reshape(2, 2, 1, 3) end,
  },
  {
    name = 'BatchNorm1d',
    make = with_statistics(function() return nn.BatchNorm1d(3, { eps = 0.1 }) end, 4, 3),
    input = function() return floats(6, 3) end,
    state = batch_norm_state(3),
    batch = true,
    reference = function(sd, x) return batch_norm(sd, x, 0.1) end,
    class = nn.BatchNorm1d,
    refuses = {
      { 'TypeError', "'momentum' is a string, expected a number", 4, { momentum = 'none' } },
    },
  },
  {
    name = 'BatchNorm1d of sequences',
    make = with_statistics(function() return nn.BatchNorm1d(3) end, 4, 3, 2),
    input = function() return floats(4, 3, 5) end,
    state = batch_norm_state(3),
    batch = true,
    reference = batch_norm,
  },
  {
    name = 'BatchNorm1d without parameters',
    make = with_statistics(function() return nn.BatchNorm1d(3, { affine = false }) end, 4, 3),
    input = function() return floats(6, 3) end,
    state = { unpack(batch_norm_state(3), 3) },
    batch = true,
    reference = batch_norm,
  },
  {
    name = 'BatchNorm1d without statistics',
    make = function() return nn.BatchNorm1d(3, { track_running_stats = false }) end,
    input = function() return floats(6, 3) end,
    state = { { 'weight', 3 }, { 'bias', 3 } },
    reference = function(sd, x)
      local mean = x:mean(1)
      return batch_norm({ running_mean = mean, running_var = (x - mean):square():mean(1),
        weight = sd.weight, bias = sd.bias }, x)
    end,
  },
  {
    name = 'BatchNorm2d',
    make = with_statistics(function() return nn.BatchNorm2d(2) end, 2, 2, 3, 2),
    input = function() return floats(2, 2, 2, 3) end,
    state = batch_norm_state(2),
    batch = true,
    reference = batch_norm,
  },
  {
    name = 'BatchNorm3d',
    make = with_statistics(function() return nn.BatchNorm3d(2, { momentum = false }) end,
      2, 2, 1, 2, 2),
    input = function() return floats(2, 2, 2, 1, 3) end,
    state = batch_norm_state(2),
    batch = true,
    reference = batch_norm,
  },
  {
    name = 'SyncBatchNorm',
    make = with_statistics(function() return nn.SyncBatchNorm(2) end, 4, 2),
    input = function() return floats(2, 2, 3) end,
    state = batch_norm_state(2),
    batch = true,
    alone = true,
    reference = batch_norm,
  },
  {
    name = 'LSTM of two layers and directions with dropout',
    make = function()
      return nn.LSTM(3, 2, {
        num_layers = 2, bidirectional = true, batch_first = true, dropout = 0.5,
      })
    end,
    input = function() return floats(2, 3, 3) end,
    state = bidirectional_state(4, 2, 3),
    random = true,
    reference = function(sd, x)
      for layer = 0, 1 do
        local suffix = '_l' .. layer
        x = ms.cat({ recurrent(sd, suffix, lstm, x),
          recurrent(sd, suffix .. '_reverse', lstm, x, true) }, 3)
      end
      return x
    end,
    class = nn.LSTM,
    refuses = {
      { 'TypeError', "'hidden_size' is nil, expected a whole number", 3 },
      { 'ValueError', 'dropout probability has to be between 0 and 1, but got 2', 3, 2,
        { dropout = 2 } },
      { 'ValueError', "'proj_size' is 2, expected less than hidden_size = 2", 3, 2,
        { proj_size = 2 } },
      { 'ValueError', "unknown option 'nonlinearity'", 3, 2, { nonlinearity = 'relu' } },
    },
  },
  {
    name = 'GRU',
    make = function() return nn.GRU(3, 2, { batch_first = true }) end,
    input = function() return floats(2, 3, 3) end,
    state = { recurrent_state('_l0', 3, 2, 3) },
    reference = function(sd, x) return recurrent(sd, '_l0', gru, x) end,
  },
  {
    name = 'RNN',
    make = function() return nn.RNN(3, 2, { batch_first = true }) end,
    input = function() return floats(2, 3, 3) end,
    state = { recurrent_state('_l0', 1, 2, 3) },
    reference = function(sd, x)
      return recurrent(sd, '_l0', function(map) return (map('ih', 1) + map('hh', 1)):tanh() end, x)
    end,
    class = nn.RNN,
    refuses = {
      { 'ValueError', "'nonlinearity' is 'gelu', expected one of tanh, relu", 3, 2,
        { nonlinearity = 'gelu' } },
    },
  },
  {
    name = 'LSTMCell',
    make = function() return nn.LSTMCell(3, 2) end,
    input = function() return floats(2, 3) end,
    state = { recurrent_state('', 4, 2, 3) },
    reference = function(sd, x) return recurrent(sd, '', lstm, x:unsqueeze(2)):squeeze(2) end,
  },
  {
    name = 'GRUCell',
    make = function() return nn.GRUCell(3, 2) end,
    input = function() return floats(2, 3) end,
    state = { recurrent_state('', 3, 2, 3) },
    reference = function(sd, x) return recurrent(sd, '', gru, x:unsqueeze(2)):squeeze(2) end,
  },
  {
    name = 'Dropout',
    make = function() return nn.Dropout(0.5) end,
    input = function() return floats(2, 16) end,
    random = true,
    reference = function(_, x) return x end,
    class = nn.Dropout,
    refuses = {
      { 'ValueError', 'dropout probability has to be between 0 and 1, but got 1.5', 1.5 },
    },
  },
  {
    name = 'GELU',
    make = function() return nn.GELU() end,
    input = function() return floats(2, 5) end,
    reference = function(_, x) return gelu(x) end,
    class = nn.GELU,
    refuses = {
      { 'ValueError', "'approximate' is 'tan', expected one of none, tanh",
        { approximate = 'tan' } },
    },
  },
  {
    name = 'GELU with the tanh form',
    make = function() return nn.GELU { approximate = 'tanh' } end,
    input = function() return floats(2, 5) end,
    reference = function(_, x) return gelu_tanh(x) end,
  },
  {
    name = 'ReLU',
    make = function() return nn.ReLU() end,
    input = function() return floats(2, 5) end,
    reference = function(_, x) return ms.where(x:gt(0), x, 0) end,
    class = nn.ReLU,
    refuses = { { 'TypeError', 'nn.ReLU takes no arguments, got a boolean', true } },
  },
  {
    name = 'LeakyReLU',
    make = function() return nn.LeakyReLU(0.3) end,
    input = function() return floats(2, 5) end,
    reference = function(_, x) return x:clamp(0) + x:clamp(nil, 0) * 0.3 end,
    class = nn.LeakyReLU,
    refuses = { { 'TypeError', "'negative_slope' is a string, expected a number", 'x' } },
  },
  {
    name = 'Softplus',
    make = function() return nn.Softplus(2, 1) end,
    input = function() return floats(2, 5) end,
    reference = function(_, x)
      return ops.where((x * 2):gt(1), x, ((x * 2):exp() + 1):log() / 2)
    end,
    class = nn.Softplus,
    refuses = { { 'TypeError', "'beta' is a string, expected a number", 'x' } },
  },
  {
    name = 'SiLU',
    make = function() return nn.SiLU() end,
    input = function() return floats(2, 5) end,
    reference = function(_, x) return x / ((-x):exp() + 1) end,
  },
  {
    name = 'Sigmoid',
    make = function() return nn.Sigmoid() end,
    input = function() return floats(2, 5) end,
    reference = function(_, x) return 1 / ((-x):exp() + 1) end,
  },
  {
    name = 'Softmax',
    make = function() return nn.Softmax(2) end,
    input = function() return floats(2, 3, 4) end,
    reference = function(_, x) return x:exp() / x:exp():sum(2, true) end,
    class = nn.Softmax,
    refuses = { { 'TypeError', "'dim' is nil, expected a whole number" } },
  },
  {
    name = 'LogSoftmax',
    make = function() return nn.LogSoftmax(-1) end,
    input = function() return floats(2, 3, 4) end,
    reference = function(_, x) return (x:exp() / x:exp():sum(3, true)):log() end,
  },
  {
    name = 'Identity',
    make = function() return nn.Identity(54, { unused = true }) end,
    input = function() return floats(2, 3) end,
    reference = function(_, x) return x end,
  },
  {
    name = 'Flatten',
    make = function() return nn.Flatten() end,
    input = function() return floats(2, 3, 2, 2) end,
    reference = function(_, x) return x:reshape(2, 12) end,
    class = nn.Flatten,
    refuses = { { 'TypeError', "'end_dim' is a string, expected a whole number", 2, 'x' } },
  },
  {
    name = 'Flatten of some dimensions',
    make = function() return nn.Flatten(2, 3) end,
    input = function() return floats(2, 3, 2, 2) end,
    reference = function(_, x) return x:reshape(2, 6, 2) end,
  },
  {
    name = 'Tanh',
    make = function() return nn.Tanh() end,
    input = function() return floats(2, 5) end,
    reference = function(_, x) return 1 - 2 / ((x * 2):exp() + 1) end,
  },
  {
    name = 'FeedForward',
    sequences = true,
    make = function() return nn.FeedForward(3) end,
    input = function() return floats(2, 2, 3) end,
    state = { { 'fc.weight', 12, 3 }, { 'fc.bias', 12 }, { 'out.weight', 3, 12 },
      { 'out.bias', 3 } },
    reference = function(sd, x) return feed_forward(sd, x, '', gelu_tanh) end,
  },
  {
    name = 'FeedForward with all options',
    make = function()
      return nn.FeedForward(3, { hidden = 4, bias = false, dropout = 0.5, approximate = 'none' })
    end,
    input = function() return floats(2, 2, 3) end,
    state = { { 'fc.weight', 4, 3 }, { 'out.weight', 3, 4 } },
    random = true,
    reference = function(sd, x) return feed_forward(sd, x, '', gelu) end,
  },
  {
    name = 'SwiGLU',
    sequences = true,
    make = function() return nn.SwiGLU(3, 4) end,
    input = function() return floats(2, 2, 3) end,
    state = { { 'gate_proj.weight', 4, 3 }, { 'up_proj.weight', 4, 3 },
      { 'down_proj.weight', 3, 4 } },
    reference = function(sd, x)
      local gate = linear(x, sd['gate_proj.weight'])
      return linear(gate / ((-gate):exp() + 1) * linear(x, sd['up_proj.weight']),
        sd['down_proj.weight'])
    end,
    class = nn.SwiGLU,
    refuses = {
      { 'TypeError', "'hidden' is nil, expected a whole number", 3 },
      { 'ValueError', "'activation' is 'tanh', expected", 3, 4, { activation = 'tanh' } },
    },
  },
  {
    name = 'GroupedQueryAttention',
    sequences = true,
    make = function() return nn.GroupedQueryAttention(4, 4, 2, { head_dim = 2 }) end,
    input = function() return floats(2, 3, 4) end,
    state = { { 'q_proj.weight', 8, 4 }, { 'k_proj.weight', 4, 4 }, { 'v_proj.weight', 4, 4 },
      { 'o_proj.weight', 4, 8 } },
    reference = function(sd, x) return grouped_query_attention(sd, x, 4, 2) end,
    class = nn.GroupedQueryAttention,
    refuses = {
      { 'ValueError', 'the 4 heads are not a multiple of the 3 key-value heads', 8, 4, 3 },
      { 'ValueError', 'width 6 is not a multiple of 4 heads; give head_dim', 6, 4, 2 },
      { 'ValueError', 'the rotary positions are for heads of width 4, expected 2', 4, 2, 1,
        { rotary = nn.Rotary(4) } },
      { 'ValueError', 'dropout probability has to be between 0 and 1, but got 2', 4, 2, 1,
        { dropout = 2 } },
    },
  },
  {
    name = 'GroupedQueryAttention with rotary positions and dropout',
    make = function()
      return nn.GroupedQueryAttention(4, 2, 1, { rotary = { rope_theta = 1 }, dropout = 0.5 })
    end,
    input = function() return floats(2, 3, 4) end,
    state = { { 'q_proj.weight', 4, 4 }, { 'k_proj.weight', 2, 4 }, { 'v_proj.weight', 2, 4 },
      { 'o_proj.weight', 4, 4 } },
    random = true,
    single = true,
    reference = function(sd, x) return grouped_query_attention(sd, x, 2, 2, 1) end,
  },
  {
    name = 'CausalSelfAttention',
    sequences = true,
    make = function() return nn.CausalSelfAttention(4, 2) end,
    input = function() return floats(2, 5, 4) end,
    state = { { 'qkv.weight', 12, 4 }, { 'qkv.bias', 12 }, { 'proj.weight', 4, 4 },
      { 'proj.bias', 4 } },
    reference = function(sd, x) return attention(sd, x, 2, '') end,
    class = nn.CausalSelfAttention,
    refuses = { { 'ValueError', 'width 6 is not a multiple of 4 heads', 6, 4 } },
  },
  {
    name = 'CausalSelfAttention with all options',
    make = function() return nn.CausalSelfAttention(4, 1, { bias = false, dropout = 0.5 }) end,
    input = function() return floats(2, 3, 4) end,
    state = { { 'qkv.weight', 12, 4 }, { 'proj.weight', 4, 4 } },
    random = true,
    reference = function(sd, x) return attention(sd, x, 1, '') end,
  },
  {
    name = 'MultiheadAttention',
    make = function() return nn.MultiheadAttention(4, 2) end,
    input = function()
      return floats(4, 3, 4), ms.randn({ 2, 3, 4 }, { seed = 8 }),
        ms.randn({ 2, 3, 4 }, { seed = 9 })
    end,
    state = { attention_state('', 4) },
    reference = function(sd, q, k, v)
      return multihead(sd, '', 2, q:transpose(1, 2), k:transpose(1, 2), v:transpose(1, 2))
        :transpose(1, 2)
    end,
    class = nn.MultiheadAttention,
    refuses = {
      { 'ValueError', 'embed_dim must be divisible by num_heads, got 6 and 4', 6, 4 },
      { 'TypeError', "'add_bias_kv' is a number, expected true", 4, 2, { add_bias_kv = 1 } },
      { 'ValueError', 'dropout probability has to be between 0 and 1', 4, 2, { dropout = 2 } },
    },
  },
  {
    name = 'MultiheadAttention with other widths of keys and values',
    make = function()
      return nn.MultiheadAttention(4, 2, { kdim = 3, vdim = 5, bias = false, batch_first = true })
    end,
    input = function()
      return floats(2, 3, 4), ms.randn({ 2, 2, 3 }, { seed = 8 }),
        ms.randn({ 2, 2, 5 }, { seed = 9 })
    end,
    state = { { 'q_proj_weight', 4, 4 }, { 'k_proj_weight', 4, 3 }, { 'v_proj_weight', 4, 5 },
      { 'out_proj.weight', 4, 4 } },
    reference = function(sd, q, k, v) return multihead(sd, '', 2, q, k, v) end,
  },
  {
    name = 'MultiheadAttention of a sequence with itself, causal',
    sequences = true,
    make = function()
      return SelfAttention({ batch_first = true }, { is_causal = true, need_weights = false })
    end,
    input = function() return floats(2, 3, 4) end,
    state = { attention_state('attn.', 4) },
    reference = function(sd, x)
      return multihead(sd, 'attn.', 2, x, x, x, score_bias(x, 2, causal(3)))
    end,
  },
  {
    name = 'MultiheadAttention with masks and dropout',
    make = function()
      return SelfAttention({ batch_first = true, dropout = 0.3 }, { attn_mask = causal(3) })
    end,
    input = function() return floats(2, 3, 4), ids { { 0, 0, 1 }, { 0, 1, 0 } } end,
    state = { attention_state('attn.', 4) },
    random = true,
    reference = function(sd, x, keys)
      return multihead(sd, 'attn.', 2, x, x, x, score_bias(x, 2, causal(3), keys:gt(0)))
    end,
  },
  {
    name = 'TransformerEncoderLayer',
    sequences = true,
    make = function()
      return nn.TransformerEncoderLayer(4, 2, {
        dim_feedforward = 3, batch_first = true, norm_first = true, activation = 'gelu',
      })
    end,
    input = function() return floats(2, 3, 4) end,
    state = layer_state({}, '', 1, 4, 3),
    random = true,
    reference = function(sd, x)
      return transformer_layer(sd, '', 2, x, { norm_first = true, act = gelu })
    end,
    class = nn.TransformerEncoderLayer,
    refuses = {
      { 'ValueError', "'activation' is 'rel', expected one of gelu, relu", 4, 2,
        { activation = 'rel' } },
      { 'ValueError', "unknown option 'norm_firs', did you mean 'norm_first'?", 4, 2,
        { norm_firs = true } },
      { 'ValueError', 'embed_dim must be divisible by num_heads', 4, 3 },
    },
  },
  {
    name = 'TransformerDecoderLayer',
    sequences = true,
    make = function()
      return nn.TransformerDecoderLayer(4, 2,
        { dim_feedforward = 3, dropout = 0, batch_first = true, activation = ms.ops.tanh })
    end,
    input = function() return floats(2, 3, 4), ms.randn({ 2, 5, 4 }, { seed = 8 }) end,
    state = layer_state({}, '', 2, 4, 3),
    reference = function(sd, x, memory)
      return transformer_layer(sd, '', 2, x, { memory = memory, act = x.tanh })
    end,
  },
  {
    name = 'Transformer',
    make = function()
      return nn.Transformer {
        d_model = 4, nhead = 2, num_encoder_layers = 2, num_decoder_layers = 1,
        dim_feedforward = 3, dropout = 0,
      }
    end,
    input = function() return floats(4, 3, 4), ms.randn({ 2, 3, 4 }, { seed = 8 }) end,
    state = transformer_state(),
    reference = function(sd, src, tgt)
      local x = src:transpose(1, 2)
      for i = 0, 1 do
        x = transformer_layer(sd, ('encoder.layers.%d.'):format(i), 2, x, {})
      end
      local memory = layer_norm(x, sd['encoder.norm.weight'], sd['encoder.norm.bias'])
      x = transformer_layer(sd, 'decoder.layers.0.', 2, tgt:transpose(1, 2), { memory = memory })
      return layer_norm(x, sd['decoder.norm.weight'], sd['decoder.norm.bias']):transpose(1, 2)
    end,
    class = nn.Transformer,
    refuses = {
      { 'TypeError', "'d_model' is a string, expected a whole number", { d_model = 'x' } },
      { 'ValueError', "unknown option 'heads'", { heads = 3 } },
    },
  },
  {
    name = 'TransformerBlock',
    sequences = true,
    make = function() return nn.TransformerBlock(4, 2, { dropout = 0.1 }) end,
    input = function() return floats(2, 3, 4) end,
    state = {
      { 'ln_1.weight', 4 }, { 'ln_1.bias', 4 }, { 'attn.qkv.weight', 12, 4 },
      { 'attn.qkv.bias', 12 }, { 'attn.proj.weight', 4, 4 }, { 'attn.proj.bias', 4 },
      { 'ln_2.weight', 4 }, { 'ln_2.bias', 4 }, { 'mlp.fc.weight', 16, 4 }, { 'mlp.fc.bias', 16 },
      { 'mlp.out.weight', 4, 16 }, { 'mlp.out.bias', 4 },
    },
    random = true,
    reference = function(sd, x)
      x = x + attention(sd, layer_norm(x, sd['ln_1.weight'], sd['ln_1.bias']), 2, 'attn.')
      return x + feed_forward(sd, layer_norm(x, sd['ln_2.weight'], sd['ln_2.bias']), 'mlp.',
        gelu_tanh)
    end,
    class = nn.TransformerBlock,
  },
  {
    name = 'Sequential',
    make = function() return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)) end,
    input = function() return floats(2, 4) end,
    state = { { '0.weight', 3, 4 }, { '0.bias', 3 }, { '2.weight', 2, 3 }, { '2.bias', 2 } },
    reference = function(sd, x)
      x = linear(x, sd['0.weight'], sd['0.bias']):tanh()
      return linear(x, sd['2.weight'], sd['2.bias'])
    end,
    class = nn.Sequential,
    refuses = {
      { 'TypeError', "nn.Sequential takes an array of modules, got the key 'fc'",
        { fc = nn.ReLU() } },
      { 'TypeError', "child '1' of nn.Sequential is nil, expected a module", nn.ReLU(), nil,
        nn.ReLU() },
      { 'TypeError', "child '0' of nn.Sequential is the class nn.ReLU, expected a module",
        nn.ReLU },
    },
  },
  {
    name = 'ModuleList',
    make = function() return Stack() end,
    input = function() return floats(2, 4) end,
    state = { { 'layers.0.weight', 4, 4 }, { 'layers.0.bias', 4 }, { 'layers.1.weight', 4, 4 },
      { 'layers.1.bias', 4 } },
    reference = function(sd, x)
      x = linear(x, sd['layers.0.weight'], sd['layers.0.bias'])
      return linear(x, sd['layers.1.weight'], sd['layers.1.bias'])
    end,
  },
  {
    name = 'ModuleDict',
    make = function() return Named() end,
    input = function() return floats(2, 4) end,
    state = { { 'layers.second.weight', 4, 3 }, { 'layers.second.bias', 4 },
      { 'layers.first.weight', 3, 4 }, { 'layers.first.bias', 3 } },
    reference = function(sd, x)
      x = linear(x, sd['layers.first.weight'], sd['layers.first.bias'])
      return linear(x, sd['layers.second.weight'], sd['layers.second.bias']):tanh()
    end,
    class = nn.ModuleDict,
    refuses = {
      { 'TypeError', "child 'a' of nn.ModuleDict is a number, expected a module", { a = 1 } },
      { 'KeyError', "attribute 'keys' already exists", { keys = nn.ReLU() } },
    },
  },
  {
    name = 'ParameterList',
    make = function() return Scales():append({ 3 }, nn.init.ones()):append({ 1 }) end,
    input = function() return floats(2, 3) end,
    state = { { '0', 3 }, { '1', 1 } },
    reference = function(sd, x) return x * sd['0'] * sd['1'] end,
    class = nn.ParameterList,
    refuses = { { 'TypeError', "'tensors[1]' is a number, expected a tensor", { 3 } } },
  },
  {
    name = 'CrossEntropyLoss',
    make = function() return nn.CrossEntropyLoss { ignore_index = 7 } end,
    input = function() return floats(4, 3), ids { 2, 7, 0, 1 } end,
    result = 'f32',
    reference = function(_, logits, targets)
      local total, n = cross_entropy(logits, targets, 7)
      return total / n
    end,
  },
  {
    name = 'CrossEntropyLoss with a sum',
    sums = true,
    make = function() return nn.CrossEntropyLoss { reduction = 'sum' } end,
    input = function() return floats(4, 3), ids { 2, -100, 0, 1 } end,
    result = 'f32',
    reference = function(_, logits, targets) return (cross_entropy(logits, targets, -100)) end,
  },
  {
    name = 'CrossEntropyLoss with weights, smoothing and classes in dimension 2',
    make = function()
      return nn.CrossEntropyLoss {
        weight = ms.tensor { 0.5, 1, 2 }, label_smoothing = 0.2, ignore_index = 7,
      }
    end,
    input = function() return floats(2, 3, 4), ids { { 2, 7, 0, 1 }, { 1, 1, 0, 7 } } end,
    state = { { 'weight', 3 } },
    result = 'f32',
    reference = function(sd, logits, targets)
      local total, weights = 0, 0
      for i, row in ipairs(logits:transpose(2, 3):reshape(8, 3)) do
        local target = targets:reshape(-1)[i]:item()
        if target ~= 7 then
          local log = (row - row:exp():sum():log()) * sd.weight
          total = total - log[target + 1] * 0.8 - log:sum() * (0.2 / 3)
          weights = sd.weight[target + 1] + weights
        end
      end
      return total / weights
    end,
  },
  {
    name = 'CrossEntropyLoss of probabilities, unreduced',
    make = function() return nn.CrossEntropyLoss { reduction = 'none' } end,
    input = function() return floats(4, 3), ms.rand({ 4, 3 }, { seed = 8 }) end,
    result = 'f32',
    reference = function(_, logits, targets)
      return ((logits - logits:exp():sum(2, true):log()) * targets):sum(2):neg()
    end,
  },
  {
    name = 'NLLLoss',
    make = function() return nn.NLLLoss { weight = ms.tensor { 0.5, 1, 2 }, ignore_index = 7 } end,
    input = function() return floats(4, 3), ids { 2, 7, 0, 1 } end,
    state = { { 'weight', 3 } },
    result = 'f32',
    reference = function(sd, x)
      local w = sd.weight
      return (x[1][3] * w[3] + x[3][1] * w[1] + x[4][2] * w[2]):neg() / w:sum()
    end,
  },
  {
    name = 'BCEWithLogitsLoss',
    make = function()
      return nn.BCEWithLogitsLoss { weight = ms.tensor { 1, 2, 3 }, pos_weight = ms.tensor { 3 } }
    end,
    input = function() return floats(4, 3), ms.rand({ 4, 3 }, { seed = 8 }) end,
    state = { { 'weight', 3 }, { 'pos_weight', 1 } },
    result = 'f32',
    reference = function(sd, x, y)
      local s = 1 / (x:neg():exp() + 1)
      return ((y * s:log() * 3 + (1 - y) * (1 - s):log()) * sd.weight):neg():mean()
    end,
  },
  {
    name = 'L1Loss',
    sums = true,
    make = function() return nn.L1Loss { reduction = 'sum' } end,
    input = function() return floats(4, 3), ms.rand({ 4, 3 }, { seed = 8 }) end,
    result = 'f32',
    reference = function(_, x, y) return ops.maximum(x - y, y - x):sum() end,
  },
  {
    name = 'SmoothL1Loss',
    make = function() return nn.SmoothL1Loss { beta = 0.7, reduction = 'none' } end,
    input = function() return floats(4, 3), ms.rand({ 4, 3 }, { seed = 8 }) end,
    reference = function(_, x, y)
      local d = ops.maximum(x - y, y - x)
      return ms.where(d:lt(0.7), d * d / 1.4, d - 0.35)
    end,
    class = nn.SmoothL1Loss,
    refuses = { { 'TypeError', "'beta' is a string, expected a number", { beta = 'a' } } },
  },
  {
    name = 'HuberLoss',
    make = function() return nn.HuberLoss { delta = 0.7 } end,
    input = function() return floats(4, 3), ms.rand({ 4, 3 }, { seed = 8 }) end,
    result = 'f32',
    reference = function(_, x, y)
      local d = ops.maximum(x - y, y - x)
      return ms.where(d:lt(0.7), d * d / 2, (d - 0.35) * 0.7):mean()
    end,
  },
  {
    name = 'MSELoss',
    make = function() return nn.MSELoss() end,
    input = function() return floats(4, 3), ms.rand({ 4, 3 }, { seed = 8 }) end,
    result = 'f32',
    reference = function(_, x, y) return (x - y):square():sum() / x:numel() end,
    class = nn.MSELoss,
    refuses = {
      { 'ValueError', "'reduction' is 'men', expected one of mean, sum, none; did you mean 'mean'?",
        { reduction = 'men' } },
    },
  },
  {
    name = 'MSELoss with a sum',
    sums = true,
    make = function() return nn.MSELoss { reduction = 'sum' } end,
    input = function() return floats(4, 3), ms.rand({ 4, 3 }, { seed = 8 }) end,
    result = 'f32',
    reference = function(_, x, y) return (x - y):square():sum() end,
  },
}
