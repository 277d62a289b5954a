-- The training runs that were measured with PyTorch (tests/fixtures/golden.json): the same losses,
-- gradient norms and parameters, on one rank without wrapping and on two ranks with every strategy.
-- Rank r takes rows 4r .. 4r + 3 of the batch of 8.

local ms = require 'moonshard'
local json = require 'moonshard.internal.json'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim

local TOLERANCE = { float64 = 1e-10, float32 = 1e-4 }
local DTYPE = { float64 = 'f64', float32 = 'f32' }

local function golden()
  local file = assert(io.open('tests/fixtures/golden.json', 'r'))
  local text = file:read('*a')
  file:close()
  return json.decode(text)
end

local function v(k, i)
  return (31 * i * i + 17 * i + 29 * k + 7) % 101 / 50 - 1
end

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

-- Rows [from, to) of step s.
local function rows(width, k, scale, dtype, from, to, s)
  local out = {}
  for b = from, to - 1 do
    local row = {}
    for j = 0, width - 1 do
      row[j + 1] = scale * v(k + s, b * width + j)
    end
    out[#out + 1] = row
  end
  return ms.tensor(out, { dtype = dtype })
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
}

-- -- one run -------------------------------------------------------------------------------------

local function first_values(model, params, dtype)
  local sd = {}
  for k, entry in ipairs(params) do
    local name, shape = entry[1], entry[2]
    local is_norm = name:find('ln', 1, true) and name:find('.weight', 1, true)
    local n, values = 1, {}
    for _, size in ipairs(shape) do
      n = n * size
    end
    for i = 0, n - 1 do
      values[i + 1] = (#shape > 1 and 0.4 or 0.1) * v(k - 1, i) + (is_norm and 1 or 0)
    end
    sd[#sd + 1] = name
    sd[name] = ms.tensor(values, { dtype = dtype }):reshape(shape)
  end
  if sd['a.weight'] then -- the tie stands under both its names
    sd[#sd + 1] = 'b.weight'
    sd['b.weight'] = sd['a.weight']
  end
  model:load_state_dict(sd)
end

local function close(what, actual, expected, tolerance)
  local near = math.abs(actual - expected) <= tolerance * (1 + math.abs(expected))
  if not near then -- NaN too
    error(('%s is %.17g, expected %.17g within %g'):format(what, actual, expected, tolerance), 0)
  end
end

local function check_params(model, expected, tolerance)
  local sd = model:state_dict()
  for name, facts in next, expected do
    local values, sum, squares = sd[name]:reshape(-1):totable(), 0, 0
    for _, x in ipairs(values) do
      sum, squares = sum + x, squares + x * x
    end
    assert(#values == facts.numel)
    close(name .. ' sum', sum, facts.sum, tolerance)
    close(name .. ' squares', squares, facts.sumsq, tolerance)
    for j = 0, 7 do
      local value = values[math.floor(j * (#values - 1) / 7) + 1]
      close(name .. ' sample', value, facts.samples[j + 1], tolerance)
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

-- Train as rank `rank` of `size`; `wrap` shards the model, or leaves it.
local function run(kind, entry, expected, optimizers, rank, size, wrap)
  local dtype, tolerance = DTYPE[expected.dtype], TOLERANCE[expected.dtype]
  local model = kind.class(dtype)
  first_values(model, entry.params, dtype)
  model = wrap and wrap(model) or model
  local make, opts = options_of(expected.optimizer, optimizers[expected.optimizer])
  local opt = make(model:parameters(), opts)
  local share = 8 / size
  for s = 0, 4 do
    local x, y = kind.batch(dtype, rank * share, (rank + 1) * share, s)
    local loss = model(x, y)
    loss:backward()
    local mean = loss:item()
    if wrap then
      mean = ms.dist.all_reduce(ms.full({ 1 }, mean, { dtype = 'f64' }), 'avg'):item()
    end
    close('loss of step ' .. s, mean, expected.loss[s + 1], tolerance)
    if wrap then -- a bound no gradient reaches: measures without clipping
      close('norm', model:clip_grad_norm_(1e9):item(), expected.norm2[s + 1], tolerance)
      local largest = model:clip_grad_norm_(1e9, math.huge):item()
      close('largest gradient', largest, expected.norminf[s + 1], tolerance)
    end
    opt:step()
    opt:zero_grad()
  end
  check_params(model, expected.params, tolerance)
end

local function each_run(name, fn)
  local data, n = golden(), 0
  for _, entry in ipairs(data.training) do
    if entry.name == name then
      for _, expected in ipairs(entry.runs) do
        fn(entry, expected, data.optimizers)
        n = n + 1
      end
    end
  end
  assert(n == 6)
end

describe('golden training runs', function()
  for _, name in ipairs { 'mlp_tied', 'gpt_tiny' } do
    it(name .. ' trains as in PyTorch, unsharded', function()
      each_run(name, function(entry, expected, optimizers)
        ms.dist.spawn(1, function() -- so that this process opens no device: it forks below
          run(models[name], entry, expected, optimizers, 0, 1)
        end)
      end)
    end)

    for _, strategy in ipairs { 'FULL_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD' } do
      for _, orig in ipairs { true, false } do
        local layout = orig and 'aligned' or 'flat'
        local title = ('%s trains as in PyTorch on two ranks, %s, %s'):format(
          name, strategy, layout)
        it(title, function()
          ms.collect()
          ms.dist.spawn(2, function(rank, size)
            each_run(name, function(entry, expected, optimizers)
              run(models[name], entry, expected, optimizers, rank, size, function(model)
                ms.capture_warnings(function()
                  model = fsdp.FSDP(model, {
                    auto_wrap_policy = models[name].policy,
                    sharding_strategy = strategy,
                    use_orig_params = orig,
                  })
                end)
                return model
              end)
            end)
          end)
        end)
      end
    end
  end
end)
