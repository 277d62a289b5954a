-- The training runs that were measured with PyTorch (tests/fixtures/golden.json): the same losses,
-- gradients, gradient norms, parameters and buffers, on one rank without wrapping and on two ranks
-- with every strategy. Rank r takes rows 4r .. 4r + 3 of the batch of 8.

local ms = require 'moonshard'
local numbers = require 'support.numbers'
local reference = require 'support.reference'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim

local STEPS = 5
local TOLERANCE = { float64 = 1e-10, float32 = 1e-4 }
local DTYPE = { float64 = 'f64', float32 = 'f32' }

-- -- models --------------------------------------------------------------------------------------

local Mlp = nn.Module.extend('MlpTied')

function Mlp:init(dtype)
  self:child('a', nn.Linear(8, 8, { dtype = dtype }))
  self:child('b', nn.Linear(8, 8, { dtype = dtype, weight = self.a.weight }))
  self:child('c', nn.Linear(8, 3, { dtype = dtype }))
end

function Mlp:forward(x, y)
  return ms.ops.mse_loss(self.c(self.b(self.a(x):tanh()):tanh()), y)
end

local Block = nn.Module.extend('Block')

function Block:init(dtype)
  local o = { dtype = dtype }
  self:child('ln1', nn.LayerNorm(8, o))
  self:child('qkv', nn.Linear(8, 24, { dtype = dtype, bias = false }))
  self:child('proj', nn.Linear(8, 8, o))
  self:child('ln2', nn.LayerNorm(8, o))
  self:child('fc', nn.Linear(8, 32, o))
  self:child('out', nn.Linear(32, 8, o))
end

function Block:forward(x)
  x = x + self.proj(ms.ops.attention_packed(self.qkv(self.ln1(x)), 2, { causal = true }))
  return x + self.out(ms.ops.gelu(self.fc(self.ln2(x)), 'tanh'))
end

local Gpt = nn.Module.extend('GptTiny')

function Gpt:init(dtype)
  local o = { dtype = dtype }
  self:child('tok', nn.Embedding(13, 8, o))
  self:child('pos', nn.Embedding(6, 8, o))
  self:child('h', nn.ModuleList { Block(dtype), Block(dtype) })
  self:child('lnf', nn.LayerNorm(8, o))
  self:child('head', nn.Linear(8, 13, { dtype = dtype, bias = false }))
end

function Gpt:forward(x, y)
  local h = self.tok(x) + self.pos(ms.arange(6, { dtype = 'i64' }))
  for i = 1, 2 do
    h = self.h[i](h)
  end
  return ms.ops.cross_entropy(self.head(self.lnf(h)), y)
end

local MlpBatchNorm = nn.Module.extend('MlpBatchNorm')

function MlpBatchNorm:init(dtype)
  self:child('l1', nn.Linear(6, 8, { dtype = dtype, bias = false }))
  self:child('bn', nn.BatchNorm1d(8, { dtype = dtype }))
  self:child('l2', nn.Linear(8, 3, { dtype = dtype }))
end

function MlpBatchNorm:forward(x, y)
  return ms.ops.mse_loss(self.l2(ms.ops.relu(self.bn(self.l1(x)))), y)
end

-- Rows [from, to) of step s.
local function rows(width, k, scale, dtype, from, to, s)
  return numbers.formula({ 8, width }, k + s, dtype, scale):narrow(1, from + 1, to - from)
end

local function tokens(shift, from, to, s)
  local out = {}
  for b = from, to - 1 do
    local row = {}
    for t = shift, 5 + shift do
      row[#row + 1] = (7 * b + 3 * t + 5 * s + b * t) % 13
    end
    out[#out + 1] = row
  end
  return ms.tensor(out, { dtype = 'i64' })
end

local models = {
  mlp_tied = {
    class = Mlp,
    batch = function(dtype, from, to, s)
      return rows(8, 100, 1, dtype, from, to, s), rows(3, 200, 0.5, dtype, from, to, s)
    end,
    policy = fsdp.CustomPolicy(function(m)
      return ms.is(m, nn.Linear) and m.out_features == 3
    end),
  },
  gpt_tiny = {
    class = Gpt,
    batch = function(_, from, to, s)
      return tokens(0, from, to, s), tokens(1, from, to, s)
    end,
    policy = fsdp.ModuleWrapPolicy { Block },
  },
  mlp_batchnorm = {
    class = MlpBatchNorm,
    batch = function(dtype, from, to, s)
      return rows(6, 100, 1, dtype, from, to, s), rows(3, 200, 0.5, dtype, from, to, s)
    end,
    policy = fsdp.ModuleWrapPolicy { nn.Linear },
  },
}

-- -- one run -------------------------------------------------------------------------------------

local function set_first_values(model, params, dtype)
  for k, entry in ipairs(model:materialize():named_parameters()) do
    local name, shape = unpack(params[k])
    assert(entry.name == name)
    local is_norm = name:find '^bn%.weight' or name:find 'ln.*%.weight'
    ms.no_grad(entry.tensor.copy_, entry.tensor, numbers.formula(shape, k - 1, dtype,
      #shape > 1 and 0.4 or 0.1, is_norm and 1 or 0))
  end
end

local function check_tensor(name, t, facts, tolerance)
  local values, sum, squares = t:detach():reshape(-1):totable(), 0, 0
  for _, x in ipairs(values) do
    sum, squares = sum + x, squares + x * x
  end
  assert(#values == facts.numel)
  numbers.near(name .. ' sum', sum, facts.sum, tolerance)
  numbers.near(name .. ' squares', squares, facts.sumsq, tolerance)
  for j = 0, 7 do
    local value = values[math.floor(j * (#values - 1) / 7) + 1]
    numbers.near(name .. ' sample', value, facts.samples[j + 1], tolerance)
  end
end

local function check_gradients(model, expected, tolerance)
  local n = 0
  for name, p in model:named_parameters() do
    check_tensor('gradient of ' .. name, p:grad(), expected[name], tolerance)
    n = n + 1
  end
  assert(n > 4)
end

local function check_buffers(buffers, expected, tolerance)
  for name, wanted in next, expected do
    wanted = type(wanted) == 'table' and wanted or { wanted }
    for i, value in ipairs(buffers[name]:reshape(-1):totable()) do
      numbers.near(name, value, wanted[i], tolerance)
    end
  end
end

local function options_of(name, o)
  if name == 'sgd' then
    return optim.SGD,
      { lr = o.lr, momentum = o.momentum, nesterov = o.nesterov, weight_decay = o.weight_decay }
  end
  return name == 'adam' and optim.Adam or optim.AdamW,
    { lr = o.lr, betas = o.betas, eps = o.eps, weight_decay = o.weight_decay }
end

local function copies(model)
  local buffers = {}
  for name, t in model:named_buffers() do
    buffers[name] = t:clone()
  end
  return buffers
end

-- Train as rank `rank` of `size`; `wrap` shards the model, or leaves it. A plain model computes the
-- parts of the batch one by one, each with buffers of its own.
local function run(kind, entry, expected, optimizers, rank, size, wrap)
  local dtype, tolerance = DTYPE[expected.dtype], TOLERANCE[expected.dtype]
  local model = kind.class(dtype)
  set_first_values(model, entry.params, dtype)
  model = wrap and wrap(model) or model
  local make, opts = options_of(expected.optimizer, optimizers[expected.optimizer])
  local opt = make(model:parameters(), opts)
  local parts, buffers = wrap and 1 or expected.parts, {}
  local share = 8 / size / parts
  for part = 1, parts do
    buffers[part] = copies(model)
  end
  for s = 0, STEPS - 1 do
    local mean = 0
    for part = 1, parts do
      for name, t in next, buffers[part] do
        model.bn:set_buffer(name:match '[^.]*$', t)
      end
      local from = (rank + part - 1) * share
      local loss = model(kind.batch(dtype, from, from + share, s))
      loss:backward(ms.full({}, 1 / parts, { dtype = dtype }))
      mean, buffers[part] = mean + loss:item() / parts, copies(model)
    end
    if wrap then
      mean = ms.dist.all_reduce(ms.full({ 1 }, mean, { dtype = 'f64' }), 'avg'):item()
    end
    numbers.near('loss of step ' .. s, mean, expected.loss[s + 1], tolerance)
    if s == 0 and expected.grads_step0 then
      if wrap then
        fsdp.summon_full_params(model, { with_grads = true }, check_gradients, model,
          expected.grads_step0, tolerance)
      else
        check_gradients(model, expected.grads_step0, tolerance)
      end
    end
    -- A bound that no gradient reaches: measures without clipping.
    local params = model:parameters()
    numbers.near('norm', optim.clip_grad_norm_(params, 1e9):item(), expected.norm2[s + 1],
      tolerance)
    numbers.near('largest gradient', optim.clip_grad_norm_(params, 1e9, math.huge):item(),
      expected.norminf[s + 1], tolerance)
    opt:step()
    opt:zero_grad()
  end
  local sd = model:state_dict()
  for name, facts in next, expected.params do
    check_tensor(name, sd[name], facts, tolerance)
  end
  for part, wanted in ipairs(expected.buffers or {}) do
    if not wrap or part == rank + 1 then
      check_buffers(wrap and sd or buffers[part], wanted, tolerance)
    end
  end
end

-- Runs of a model; of those that computed parts of the batch apart, only those with `parts`, if
-- given.
local function each_run(name, parts, fn)
  local data, n = numbers.read 'golden', 0
  for _, entry in ipairs(data.training) do
    if entry.name == name then
      for _, expected in ipairs(entry.runs) do
        if not parts or not expected.buffers or expected.parts == parts then
          fn(entry, expected, data.optimizers)
          n = n + 1
        end
      end
    end
  end
  assert(n >= 6)
end

describe('golden training runs', function()
  for _, name in ipairs { 'mlp_tied', 'gpt_tiny', 'mlp_batchnorm' } do
    it(name .. ' trains as in PyTorch, unsharded', function()
      ms.dist.spawn(1, function() -- so that this process opens no device: it forks below
        each_run(name, nil, function(entry, expected, optimizers)
          run(models[name], entry, expected, optimizers, 0, 1)
        end)
      end)
    end)

    for _, strategy in ipairs(reference.STRATEGIES) do
      for _, orig in ipairs { true, false } do
        local layout = orig and 'aligned' or 'flat'
        local title = ('%s trains as in PyTorch on two ranks, %s, %s'):format(
          name, strategy, layout)
        it(title, function()
          ms.collect()
          ms.dist.spawn(2, function(rank, size)
            each_run(name, size, function(entry, expected, optimizers)
              run(models[name], entry, expected, optimizers, rank, size, function(model)
                return reference.wrap(model, {
                  auto_wrap_policy = models[name].policy,
                  sharding_strategy = strategy,
                  use_orig_params = orig,
                })
              end)
            end)
          end)
        end)
      end
    end
  end
end)
