--- The script of bench/fit.lua: trains a GPT with the options given, and prints a line of JSON from
--- rank 0: most bytes held, and for a target the processor seconds of the fastest step, which other
--- processes of the machine disturb least. With --rates=true it prints the rates that plans need
--- instead.

dofile((arg[0]:match('^(.*)/') or '.') .. '/../examples/setup.lua')

local ms = require 'moonshard'
local flags = require 'moonshard.tools.flags'
local json = require 'moonshard.base.json'
local nn, fsdp = ms.nn, ms.fsdp

local count = { whole = true, from = 1 }
local o, mistake = flags.parse(arg, {
  { 'strategy', 'FULL_SHARD', 'sharding strategy' },
  { 'wrap', 'block', 'units: block, or root (one unit)', { one_of = { 'block', 'root' } } },
  { 'recompute', 'none', 'none, or blocks', { one_of = { 'none', 'blocks' } } },
  { 'offload', 'no', 'parameters in host memory', { one_of = { 'no', 'yes' } } },
  { 'micro', 1, 'rows of a micro-batch', count },
  { 'rows', 4, 'rows of a rank in a step', count },
  { 'layers', 4, 'blocks', count },
  { 'width', 256, 'channels', count },
  { 'context', 128, 'tokens of a row', count },
  { 'dtype', 'f32', 'of parameters in forward and backward' },
  { 'steps', 5, 'steps; the first one is not timed', { whole = true, from = 2 } },
  { 'rates', 'false', 'true: measure products and collectives' },
})
if not o then
  io.stderr:write('fit_script: ', mistake, '\n')
  os.exit(2)
end
local world = ms.dist.init()

local function answer(record)
  if world.rank == 0 then
    print(json.encode(record))
  end
end

-- Processor seconds of the fastest of n calls, each after all ranks have arrived.
local function fastest(n, fn)
  local least = math.huge
  for _ = 1, n do
    ms.dist.barrier()
    local began = os.clock()
    fn()
    least = math.min(least, os.clock() - began)
  end
  return least
end

-- The product is that of an MLP's first layer, the sum one of its activations, and the gathered
-- bytes are a block's.
local function rates()
  local m, k, n = o.micro * o.context, o.width, 4 * o.width
  local a, b = ms.ones({ m, k }, { dtype = o.dtype }), ms.ones({ k, n }, { dtype = o.dtype })
  local product = fastest(30, function() ms.scope(function() ms.matmul(a, b) end) end)
  local c = ms.ones({ m, n }, { dtype = o.dtype })
  local sum = fastest(30, function() ms.scope(function() return c + c end) end)
  local shard = ms.ones({ 12 * o.width * o.width / world.world_size }, { dtype = o.dtype })
  local gather = fastest(30, function() ms.scope(function() ms.dist.all_gather(shard) end) end)
  local size = o.dtype == 'f32' and 4 or 2
  answer {
    flops = 2 * m * k * n / product, memory = 3 * m * n * size / sum,
    host_link = shard:numel() * size * (world.world_size - 1) / gather,
  }
end

local function sharded(model)
  if o.recompute == 'blocks' then
    nn.checkpoint(model, { policy = function(m) return ms.is(m, nn.TransformerBlock) end })
  end
  return fsdp.FSDP(model, {
    auto_wrap_policy = o.wrap == 'block' and fsdp.ModuleWrapPolicy {
      o.recompute == 'blocks' and nn.checkpoint_wrapper or nn.TransformerBlock,
    } or nil,
    sharding_strategy = o.strategy, cpu_offload = { offload_params = o.offload == 'yes' },
    mixed_precision = { param_dtype = o.dtype, reduce_dtype = 'f32' },
  })
end

local function train()
  local model = sharded(ms.models.GPT {
    vocab = 256, layers = o.layers, heads = 4, width = o.width, context = o.context,
  })
  local opt = ms.optim.AdamW(model:parameters(), { lr = 1e-3 })
  local ids = ms.zeros({ o.micro, o.context }, { dtype = 'i64' })
  local batches = {}
  for i = 1, o.rows / o.micro do
    batches[i] = { ids, ids }
  end
  local function step()
    ms.train.forward_backward(model, batches, function(m, x, y) return m(x, y) * ids:numel() end)
    opt:step()
    opt:zero_grad()
  end
  step()
  local seconds = fastest(o.steps - 1, step)
  answer { peak = ms.memory().peak_total, seconds = seconds / (o.rows * o.context) }
end

if o.rates == 'true' then
  rates()
else
  train()
end
