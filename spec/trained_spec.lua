-- A transformer with masks and a net with batch normalisation, trained by PyTorch
-- (tests/fixtures/trained.py): the same losses, parameters and buffers. The transformer is also
-- trained on two ranks, of which rank r takes rows 4r .. 4r + 3 of 8.

local ms = require 'moonshard'
local numbers = require 'support.numbers'
local reference = require 'support.reference'
local nn, ops, fsdp, optim = ms.nn, ms.ops, ms.fsdp, ms.optim

local STEPS, BATCH, SRC, TGT, WORDS = 10, 8, 6, 5, 11

local Translator = nn.Module.extend('Translator')

function Translator:init()
  self.src = nn.Embedding(WORDS, 16)
  self.tgt = nn.Embedding(WORDS, 16)
  self.transformer = nn.Transformer {
    d_model = 16, nhead = 4, num_encoder_layers = 2, num_decoder_layers = 2, dim_feedforward = 24,
    dropout = 0, batch_first = true, activation = 'gelu',
  }
  self.out = nn.Linear(16, WORDS)
end

function Translator:forward(src, tgt, src_padding, tgt_padding)
  local y = self.transformer(self.src(src), self.tgt(tgt:narrow(2, 1, TGT)), {
    tgt_mask = ms.ones(TGT, TGT):triu(1):gt(0), tgt_is_causal = true,
    src_key_padding_mask = src_padding, tgt_key_padding_mask = tgt_padding,
    memory_key_padding_mask = src_padding,
  })
  return ops.cross_entropy(self.out(y), tgt:narrow(2, 2, TGT))
end

-- Rows [first, first + n) of fn(b, t), which both count from 0.
local function grid(first, n, width, fn)
  local rows = {}
  for b = first, first + n - 1 do
    local row = {}
    for t = 0, width - 1 do
      row[t + 1] = fn(b, t)
    end
    rows[#rows + 1] = row
  end
  return ms.tensor(rows, { dtype = 'i64' })
end

local function translations(s, first, n)
  return grid(first, n, SRC, function(b, t) return (7 * b + 3 * t + 5 * s + b * t) % WORDS end),
    grid(first, n, TGT + 1, function(b, t) return (5 * b + 2 * t + s + b * t) % WORDS end),
    grid(first, n, SRC, function(b, t) return t >= SRC - b % 3 and 1 or 0 end):gt(0),
    grid(first, n, TGT, function(b, t) return t >= TGT - b % 2 and 1 or 0 end):gt(0)
end

local Normalised = nn.Sequential.extend('Normalised')

function Normalised:init()
  nn.Sequential.init(self,
    nn.Conv2d(2, 4, 3, { padding = 1, bias = false }), nn.BatchNorm2d(4), nn.ReLU(),
    nn.AvgPool2d(2), nn.Flatten(),
    nn.Linear(16, 6), nn.BatchNorm1d(6, { momentum = 0.3 }), nn.Tanh(), nn.Linear(6, 3))
end

function Normalised:forward(x, y)
  return ops.mse_loss(nn.Sequential.forward(self, x), y)
end

local function images(s, first, n, dtype)
  return numbers.formula({ BATCH, 2, 4, 5 }, 100 + s, dtype):narrow(1, first + 1, n),
    numbers.formula({ BATCH, 3 }, 200 + s, dtype):narrow(1, first + 1, n)
end

-- Train as rank `rank` of `size`; `wrap` shards the model, or leaves it.
local function run(name, Net, batch, dtype, rank, size, wrap)
  local wanted, tolerance = numbers.read('trained')[name][dtype], numbers.TOLERANCE[dtype]
  local model = Net():to(dtype):materialize()
  for k, entry in ipairs(model:named_parameters()) do
    local p = entry.tensor
    local is_scale = p:dim() == 1 and entry.name:find 'weight$'
    ms.no_grad(p.copy_, p, numbers.formula(p:shape(), k - 1, dtype, p:dim() > 1 and 0.4 or 0.1,
      is_scale and 1 or 0))
  end
  model = wrap(model)
  local function loss_of(s)
    local n = BATCH / size
    local loss = model(batch(s, rank * n, n, dtype))
    local mean = size == 1 and loss
      or ms.dist.all_reduce(ms.full({ 1 }, loss:item(), { dtype = 'f64' }), 'avg')
    numbers.near('loss of step ' .. s, mean:item(), wanted.losses[s + 1], tolerance)
    return loss
  end
  local opt = optim.SGD(model:parameters(), { lr = 0.05, momentum = 0.9 })
  for s = 0, STEPS - 1 do
    loss_of(s):backward()
    opt:step()
    opt:zero_grad()
  end
  model:eval()
  ms.no_grad(loss_of, STEPS)
  local sd, n = model:state_dict(), 0
  for key, entry in next, wanted.state do
    numbers.close(key, sd[key], entry, tolerance)
    n = n + 1
  end
  assert.equal(n, #sd)
end

for _, dtype in ipairs { 'f64', 'f32' } do
  describe('trains as in PyTorch in ' .. dtype .. ':', function()
    for _, net in ipairs {
      { 'transformer', Translator, translations }, { 'batch_norm', Normalised, images },
    } do
      local name, Net, batch = unpack(net)
      it(name, function()
        ms.dist.spawn(1, function() -- so that this process opens no device: it forks below
          run(name, Net, batch, dtype, 0, 1, function(model) return model end)
        end)
      end)
    end

    for _, strategy in ipairs(reference.STRATEGIES) do
      it('transformer on two ranks, ' .. strategy, function()
        ms.dist.spawn(2, function(rank)
          run('transformer', Translator, translations, dtype, rank, 2, function(model)
            return reference.wrap(model, {
              sharding_strategy = strategy,
              auto_wrap_policy = fsdp.ModuleWrapPolicy {
                nn.TransformerEncoderLayer, nn.TransformerDecoderLayer,
              },
            })
          end)
        end)
      end)
    end
  end)
end
