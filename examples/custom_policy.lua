dofile((arg[0]:match('^(.*)/') or '.') .. '/setup.lua')

--- A wrap policy as a closure: decides module by module what becomes a unit of its own and how it
--- is sharded, and keeps a record of why. Prints the decisions and the units they made, then trains
--- a few steps to show that the strategies mix.

local ms = require 'moonshard'
local report = require 'report'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim

local world = ms.dist.init { ranks = 2 }
ms.manual_seed(1)

--- Blocks before `keep_from` are gathered twice a step to save memory; later ones are used again
--- soon after forward, so they stay gathered until backward. Large layers inside a block are left
--- to it.
local function make_policy(keep_from, large, record)
  local n_blocks = 0
  return fsdp.CustomPolicy(function(module)
    local decision, why = false, nil
    if ms.is(module, nn.TransformerBlock) then
      n_blocks = n_blocks + 1
      if n_blocks >= keep_from then
        decision = { sharding_strategy = 'SHARD_GRAD_OP' }
        why = 'late block: kept from forward to backward'
      else
        decision, why = true, 'early block: gathered again for backward'
      end
    elseif ms.is(module, nn.Linear) and module.in_features * module.out_features >= large then
      why = 'large, but part of a block that is a unit already'
    end
    if why then
      record[#record + 1] = { module = module._name, wrapped = decision ~= false, why = why }
    end
    return decision
  end)
end

local record = {}
local model = ms.models.GPT { vocab = 256, layers = 4, heads = 4, width = 64, context = 32 }
model = fsdp.FSDP(model, {
  auto_wrap_policy = make_policy(3, 16384, record),
  mixed_precision = { param_dtype = ms.bf16, reduce_dtype = ms.f32 },
  use_orig_params = true,
})

local opt = optim.SGD(model:parameters(), { lr = 0.1, momentum = 0.9 })
local ids = ms.tensor({
  { 73, 110, 32, 116, 104, 101, 32, 98 },
  { 101, 103, 105, 110, 110, 105, 110, 103 },
}, { dtype = 'i64' })

if world.rank == 0 then
  print('what the policy was asked and said:')
  local rows = { { 'module', 'wrapped', 'why' } }
  for _, entry in ipairs(record) do
    rows[#rows + 1] = { entry.module, tostring(entry.wrapped), entry.why }
  end
  print(report.table(rows))
  print('the units that came of it:')
  rows = { { 'unit', 'strategy', 'parameters', 'shard' } }
  for _, unit in ipairs(model:units()) do
    rows[#rows + 1] = {
      unit.name, unit.strategy, report.count(unit.numel), report.bytes(unit.shard_bytes),
    }
  end
  print(report.table(rows))
else
  model:units() -- collective the first time
end
for step = 1, 5 do
  local loss = model(ids, ids)
  loss:backward()
  model:clip_grad_norm_(1.0)
  opt:step()
  opt:zero_grad()
  if world.rank == 0 then
    print(('step %d  loss %.4f'):format(step, loss:item()))
  end
end
ms.dist.exit(0)
