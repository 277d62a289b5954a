dofile((arg[0]:match('^(.*)/') or '.') .. '/setup.lua')

--- Trains a small convolutional net to name shapes in noise, with sharded parameters.
---
---   luajit examples/classify.lua                       one rank per core, less than a minute
---   ./dev moonshard run -n 2 examples/classify.lua     the same under a launcher
---
--- Makes its images, prints the loss as it trains, and ends with the accuracy on images that it has
--- not trained on.

local ms = require 'moonshard'
local flags = require 'moonshard.tools.flags'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim

local CLASSES, SIZE = { 'square', 'cross', 'disc', 'stripes' }, 16

local count = { whole = true, from = 1 }
local spec = {
  flags.device,
  { 'ranks', 0, 'processes on this host (0: one per core, at most 8)', { whole = true, from = 0 } },
  { 'strategy', 'FULL_SHARD', 'FULL_SHARD, SHARD_GRAD_OP or NO_SHARD',
    { one_of = { 'FULL_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD' } } },
  { 'steps', 200, 'optimizer steps', count },
  { 'batch', 64, 'images of one step, over all ranks', count },
  { 'test', 512, 'images of the test, over all ranks', count },
  { 'noise', 0.5, 'deviation of the noise; shapes are 1 on 0', { from = 0 } },
  { 'lr', 0.05, 'learning rate', { from = 0 } },
  { 'seed', 1, 'of initial values and images', { whole = true, from = 0 } },
  { 'help', false, 'this text' },
}

local function fail(message)
  io.stderr:write('classify: ', message, '\n')
  os.exit(2)
end

local o = flags.read(spec, 'examples/classify.lua',
  'Trains a convolutional net on shapes in noise.', fail)

local world = ms.dist.init { ranks = o.ranks > 0 and o.ranks or nil }
local first = world.rank == 0
ms.manual_seed(o.seed)

for _, name in ipairs { 'batch', 'test' } do
  if o[name] % world.world_size ~= 0 then
    if first then
      io.stderr:write(('classify: --%s=%d cannot be dealt to %d ranks evenly\n'):format(name,
        o[name], world.world_size))
    end
    ms.dist.barrier()
    ms.dist.exit(2)
  end
end

-- -- the images ----------------------------------------------------------------------------------

-- Is the pixel at (y, x) from the shape's centre part of it? r: half of the shape's size.
local INSIDE = {
  function(y, x, r) return math.max(math.abs(y), math.abs(x)) == r end,
  function(y, x, r) return (y == 0 or x == 0) and math.max(math.abs(y), math.abs(x)) <= r end,
  function(y, x, r) return y * y + x * x <= r * r end,
  function(y, x, r) return y % 2 == 0 and math.max(math.abs(y), math.abs(x)) <= r end,
}

-- This rank's share of `n` images, a function of `seed`, and their classes: (n, 1, 16, 16), (n).
local function images(n, seed)
  local share = n / world.world_size
  local pixels, classes = {}, {}
  math.randomseed(seed * world.world_size + world.rank)
  for i = 1, share do
    local class, r = math.random(#CLASSES), math.random(3, 5)
    local cy, cx = math.random(r, SIZE - 1 - r), math.random(r, SIZE - 1 - r)
    for y = 0, SIZE - 1 do
      for x = 0, SIZE - 1 do
        pixels[#pixels + 1] = INSIDE[class](y - cy, x - cx, r) and 1 or 0
      end
    end
    classes[i] = class - 1 -- classes count from 0
  end
  local noise = ms.randn({ share, 1, SIZE, SIZE }, { seed = seed * world.world_size + world.rank })
  return ms.tensor(pixels):reshape(share, 1, SIZE, SIZE) + noise * o.noise,
    ms.tensor(classes, { dtype = ms.i64 })
end

-- -- the model -----------------------------------------------------------------------------------

-- On several ranks the statistics are those of the whole batch.
local Norm = world.world_size > 1 and nn.SyncBatchNorm or nn.BatchNorm2d

local Stage = nn.Module.extend('Stage')

function Stage:init(inputs, outputs)
  self.conv = nn.Conv2d(inputs, outputs, 3, { padding = 1, bias = false })
  self.norm = Norm(outputs)
  self.pool = nn.MaxPool2d(2)
end

function Stage:forward(x)
  return self.pool(self.norm(self.conv(x)):relu())
end

local model = fsdp.FSDP(nn.Sequential(
  Stage(1, 16),
  Stage(16, 32),
  nn.Flatten(),
  nn.Linear(32 * SIZE / 4 * SIZE / 4, #CLASSES)), {
  auto_wrap_policy = fsdp.ModuleWrapPolicy { Stage },
  sharding_strategy = o.strategy,
})
local opt = optim.SGD(model:parameters(), { lr = o.lr, momentum = 0.9 })
local lr_at = ms.schedule.cosine { lr = o.lr, warmup = 0, total = o.steps, final = 0 }

-- -- training ------------------------------------------------------------------------------------

local function over_ranks(value, reduction)
  return ms.dist.all_reduce(ms.full({ 1 }, value, { dtype = ms.f64 }), reduction):item()
end

local function train_step(step)
  opt:set_lr(lr_at(step - 1))
  local loss = ms.scope(function()
    local x, y = images(o.batch, o.seed + step)
    local l = ms.ops.cross_entropy(model(x), y)
    l:backward()
    return l:item()
  end)
  opt:step()
  opt:zero_grad()
  return over_ranks(loss, 'avg')
end

local begun = ms.time()
if first then
  print(('%d parameters on %d rank%s'):format(model:num_parameters(), world.world_size,
    world.world_size > 1 and 's' or ''))
end
for step = 1, o.steps do
  local loss = train_step(step)
  if first and (step % 20 == 0 or step == o.steps) then
    print(('step %d/%d  loss %.4f'):format(step, o.steps, loss))
    io.flush()
  end
end

-- -- the test ------------------------------------------------------------------------------------

-- Of this rank's images, how many have their class on top.
local function correct()
  local x, y = images(o.test, o.seed + o.steps + 1)
  local class = model(x):argmax(2) - 1 -- positions count from 1, classes from 0
  return class:eq(y):to('f32'):sum():item()
end

model:eval()
local right = over_ranks(ms.scope(function() return ms.no_grad(correct) end), 'sum')
if first then
  print(('accuracy %.1f %% on %d new images, %.1f s'):format(100 * right / o.test, o.test,
    ms.time() - begun))
end
ms.dist.exit(0)
