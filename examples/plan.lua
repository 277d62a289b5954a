dofile((arg[0]:match('^(.*)/') or '.') .. '/setup.lua')

--- What training a GPT over many ranks would hold and move, from numbers alone: no parameter gets
--- memory, and of the ranks none is there but this one.
---
---   luajit examples/plan.lua                     70 B parameters over 16,384 ranks
---   luajit examples/plan.lua --ranks=8 --layers=12 --width=768 --heads=12 --strategy=SHARD_GRAD_OP
---
--- Prints bytes of one rank by kind, exact for the ranks of one host, the slots that they share,
--- and what a rank reads of the others in a step. Activations come besides.

local ms = require 'moonshard'
local flags = require 'moonshard.tools.flags'
local report = require 'moonshard.train.report'
local nn, fsdp = ms.nn, ms.fsdp

local count = { whole = true, from = 1 }
local spec = {
  { 'ranks', 16384, 'ranks the model is sharded over', { whole = true, from = 1, below = 2 ^ 31 } },
  { 'rank', 0, 'the one that is planned', { whole = true, from = 0, below = 2 ^ 31 } },
  { 'layers', 86, 'transformer blocks', count },
  { 'width', 8192, 'channels', count },
  { 'heads', 64, 'attention heads', count },
  { 'vocab', 128256, 'tokens there are', count },
  { 'context', 8192, 'tokens the model sees', count },
  { 'strategy', 'FULL_SHARD', 'FULL_SHARD, SHARD_GRAD_OP or NO_SHARD',
    { one_of = { 'FULL_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD' } } },
  { 'dtype', 'bf16', 'compute dtype: bf16 or f32 (masters are f32)',
    { one_of = { 'bf16', 'f32' } } },
  { 'reduce-dtype', 'f32', 'dtype gradients are reduced in: f32 or bf16',
    { one_of = { 'f32', 'bf16' } } },
  { 'micro-batches', 1, 'backwards of a rank in a step; all but the last run in no_sync', count },
  { 'states', 2, 'values that the optimizer keeps of a parameter (AdamW: 2)',
    { whole = true, from = 0 } },
  { 'help', false, 'this text' },
}

-- With 2 for flags that are none, with 1 for a model or plan that there is not.
local function fail(message, code)
  io.stderr:write('plan.lua: ', tostring(message), '\n')
  os.exit(code)
end

local function read_flags()
  return flags.read(spec, 'examples/plan.lua', 'Plans training without memory or other ranks.',
    function(message) fail(message, 2) end)
end

local function wrapped(o)
  local gpt = ms.models.GPT {
    vocab = o.vocab, layers = o.layers, heads = o.heads, width = o.width, context = o.context,
  }
  return fsdp.FSDP(gpt, {
    process_group = ms.dist.fake { rank = o.rank, world = o.ranks },
    auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.TransformerBlock },
    sharding_strategy = o.strategy,
    mixed_precision = { param_dtype = o.dtype, reduce_dtype = o['reduce-dtype'] },
  })
end

local o = read_flags()
local ok, model, plan = pcall(function()
  local model = wrapped(o)
  return model, model:plan { micro_batches = o['micro-batches'], dry_run = true }
end)
if not ok then
  fail(model, 1)
end
local parameters, units = 0, model:units()
for _, unit in ipairs(units) do
  parameters = parameters + unit.numel
end

print(('%s parameters in %d units, rank %d of %d, %s, %s reduced in %s, %d micro-batch%s'):format(
  report.count(parameters), #units, o.rank, o.ranks, o.strategy, o.dtype, o['reduce-dtype'],
  o['micro-batches'], o['micro-batches'] == 1 and '' or 'es'))
local function slots(ring, homes)
  return ('%d that units take in turn, %d of one unit each'):format(ring, homes)
end

local function line(name, nbytes, note)
  print((('  %-22s %10s  %s'):format(name, report.bytes(nbytes), note):gsub('%s+$', '')))
end

print('held by this rank')
line('masters', plan.masters, o.strategy == 'NO_SHARD' and o.dtype ~= 'f32'
  and ('f32, and a copy in ' .. o.dtype) or 'f32')
line('gradients', plan.gradients, 'at most')
line('optimizer', o.states * plan.per_state, ('%d values a parameter'):format(o.states))
local own = plan.own_slots + plan.own_gradients
if own > 0 then
  line('slots of its own', own, 'into which it copies what the others hold')
end
print('shared by the ranks, were they of one host')
line('slots for parameters', plan.param_slots - plan.own_slots,
  slots(plan.param_ring, plan.param_homes))
line('slots for gradients', plan.gradient_slots - plan.own_gradients,
  slots(plan.gradient_ring, plan.gradient_homes) .. ', with a part for every rank')
line("a rank's part of them", (plan.arena - own) / o.ranks, '')
print('read of other ranks in a step')
line('parameters', plan.gathered, o.dtype)
line('gradients', plan.reduced, o['micro-batches'] > 1 and 'f32' or o['reduce-dtype'])
