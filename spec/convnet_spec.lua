-- A small convolutional net trained by PyTorch (tests/fixtures/convnet.py): the same losses and
-- parameters, unsharded and on two ranks, of which rank r takes rows 4r .. 4r + 3 of 8.

local ms = require 'moonshard'
local numbers = require 'support.numbers'
local reference = require 'support.reference'
local nn, ops, fsdp, optim = ms.nn, ms.ops, ms.fsdp, ms.optim

local STEPS, BATCH = 10, 8

local function net(dtype)
  local model = nn.Sequential(
    nn.Conv2d(2, 6, 3, { padding = 1 }),
    nn.GroupNorm(2, 6),
    nn.MaxPool2d(2),
    nn.ReLU(),
    nn.Conv2d(6, 8, { 3, 2 }, { stride = 2, padding = 1, groups = 2 }),
    nn.ReLU(),
    nn.Conv2d(8, 8, 3, { padding = 'same', dilation = 2, groups = 8, bias = false }),
    nn.AvgPool2d(2, { ceil_mode = true }),
    nn.Flatten(),
    nn.Linear(16, 5)):to(dtype):materialize()
  for k, p in ipairs(model:parameters()) do
    local scale, shift = 0.1, k == 3 and 1 or 0
    if p:dim() > 1 then
      scale, shift = 0.4, 0
    end
    ms.no_grad(p.copy_, p, numbers.formula(p:shape(), k - 1, dtype, scale, shift))
  end
  return model
end

-- Rows [first, first + n) of step s, counted from 0.
local function batch(s, first, n, dtype)
  local classes = {}
  for b = 0, n - 1 do
    classes[b + 1] = (3 * (first + b) + s) % 5
  end
  local x = numbers.formula({ BATCH, 2, 9, 10 }, 100 + s, dtype)
  return x:narrow(1, first + 1, n), ms.tensor(classes, { dtype = 'i64' })
end

-- Train as rank `rank` of `size`; `wrap` shards the model, or leaves it.
local function run(dtype, rank, size, wrap)
  local model, wanted = wrap(net(dtype)), numbers.read('convnet')[dtype]
  local tolerance = numbers.TOLERANCE[dtype]
  local opt = optim.SGD(model:parameters(), { lr = 0.05, momentum = 0.9 })
  for s = 0, STEPS - 1 do
    local x, y = batch(s, rank * BATCH / size, BATCH / size, dtype)
    local loss = ops.cross_entropy(model(x), y, { label_smoothing = 0.1 })
    loss:backward()
    opt:step()
    opt:zero_grad()
    local mean = size == 1 and loss
      or ms.dist.all_reduce(ms.full({ 1 }, loss:item(), { dtype = 'f64' }), 'avg')
    numbers.near('loss of step ' .. s, mean:item(), wanted.losses[s + 1], tolerance)
  end
  local sd, n = model:state_dict(), 0
  for name, values in next, wanted.params do
    for i, value in ipairs(sd[name]:reshape(-1):totable()) do
      numbers.near(name, value, values[i], tolerance)
    end
    n = n + 1
  end
  assert(n == 9)
end

describe('a small convolutional net', function()
  for _, dtype in ipairs { 'f64', 'f32' } do
    it('trains as in PyTorch in ' .. dtype, function()
      ms.dist.spawn(1, function() -- so that this process opens no device: it forks below
        run(dtype, 0, 1, function(model) return model end)
      end)
    end)

    for _, strategy in ipairs(reference.STRATEGIES) do
      it(('trains as in PyTorch in %s on two ranks, %s'):format(dtype, strategy), function()
        ms.dist.spawn(2, function(rank)
          run(dtype, rank, 2, function(model)
            return reference.wrap(model, {
              sharding_strategy = strategy, auto_wrap_policy = fsdp.always_wrap_policy,
            })
          end)
        end)
      end)
    end
  end
end)
