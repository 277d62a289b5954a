dofile((arg[0]:match('^(.*)/') or '.') .. '/setup.lua')

--- A wrap policy as a closure: decides module by module what becomes a unit of its own and how it
--- is sharded, and keeps a record of why.
---
---   luajit examples/custom_policy.lua
---
--- Prints the decisions and the units they made, then trains a few steps to show that the
--- strategies mix.

local ms = require 'moonshard'
local report = require 'moonshard.train.report'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim

local world = ms.dist.init { ranks = 2 }
ms.manual_seed(1)

--- Blocks before `keep_from` are gathered twice a step to save memory; later ones are used again
--- soon after forward, so they stay gathered until backward. Large layers are left to the unit they
--- lie in.
---@param paths table<ms.nn.Module, string>
---@param keep_from integer
---@param large integer  elements of a weight
---@param record table[]  gets a row { path, decision, why } for each block and large layer
local function make_policy(paths, keep_from, large, record)
  local n_blocks, in_block = 0, {}
  return fsdp.CustomPolicy(function(module)
    local decision, what, why = false, nil, nil
    if ms.is(module, nn.TransformerBlock) then
      n_blocks = n_blocks + 1
      for _, inner in ipairs(module:modules()) do
        in_block[inner] = true
      end
      if n_blocks >= keep_from then
        decision = { sharding_strategy = 'SHARD_GRAD_OP' }
        what, why = 'SHARD_GRAD_OP', 'late block: kept from forward to backward'
      else
        decision, what, why = true, 'as the root', 'early block: gathered again for backward'
      end
    elseif (module.in_features or 0) * (module.out_features or 0) >= large then
      what = 'no'
      why = in_block[module] and 'large, but part of a block that is a unit already'
        or 'large, but its weight is the token table: both stay in the root'
    end
    if why then
      record[#record + 1] = { paths[module], what, why }
    end
    return decision
  end)
end

local record = { { 'module', 'wrapped', 'why' } }
local model = ms.models.GPT { vocab = 256, layers = 4, heads = 4, width = 64, context = 32 }
local paths = {}
for path, module in model:named_modules() do
  paths[module] = path
end
model = fsdp.FSDP(model, {
  auto_wrap_policy = make_policy(paths, 3, 16384, record),
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
  print(report.table(record))
  print('the units that came of it:')
  local rows = { { 'unit', 'strategy', 'parameters', 'shard' } }
  for _, unit in ipairs(model:units()) do
    rows[#rows + 1] = {
      unit.name, unit.strategy, report.count(unit.numel), report.bytes(unit.shard_bytes),
    }
  end
  print(report.table(rows))
  print('five steps over them:')
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
