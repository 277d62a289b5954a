-- How many operators run
local ms = require 'moonshard'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim
local checks = require 'support.checks'
local op_counts = require 'support.op_counts'
local wrap = require 'support.wrap'

-- Operators of one transformer block.
local BLOCK = { layer_norm = 2, linear = 3, attention_packed = 1, linear_gelu = 1, add = 2 }

local function ids(n)
  return ms.zeros(1, n, { dtype = 'i64' })
end

local function gpt(layers)
  return ms.models.GPT { vocab = 11, layers = layers, heads = 2, width = 8, context = 6 }
end

local function wrapped(model, strategy, classes)
  local out = wrap(model, {
    auto_wrap_policy = fsdp.ModuleWrapPolicy(classes or { nn.TransformerBlock, nn.Linear }),
    sharding_strategy = strategy,
    use_orig_params = true,
  })
  return out
end

-- Counts of operators of units, and of other operators, by name.
local function divided(ran)
  local units, others = {}, {}
  for name, n in pairs(ran) do
    local of_unit = name:match '^fsdp%.(.*)'
    if of_unit then
      units[of_unit] = n
    else
      others[name] = n
    end
  end
  return units, others
end

local function units_of(fn)
  return (divided((op_counts.of(fn))))
end

describe('the operators that run', function()
  teardown(function()
    assert.equal(0, checks.live_handles())
  end)

  it('of a TransformerBlock are those of its layers', function()
    local block = nn.TransformerBlock(8, 2)
    local x = ms.ones(1, 4, 8)
    assert.same(BLOCK, (op_counts.of(block, x)))
  end)

  it('are none in backward, clipping, step and zero_grad', function()
    local model = gpt(2)
    local opt = optim.AdamW(model:parameters(), { lr = 0.1 })
    local loss = model(ids(4), ids(4))
    assert.same({}, (op_counts.of(function()
      loss:backward()
      optim.clip_grad_norm_(model:parameters(), 1)
      opt:step()
      opt:zero_grad()
    end)))
  end)

  it('are the same for a wrapped model', function()
    local x, plain, model = ids(4), gpt(2), wrapped(gpt(2))
    for _ = 1, 2 do
      local expected = op_counts.of(plain, x, x)
      local loss
      local _, others = divided((op_counts.of(function()
        loss = ms.keep(model(x, x))
      end)))
      assert.same(expected, others)
      _, others = divided((op_counts.of(function()
        loss:backward()
      end)))
      assert.same({}, others)
    end
  end)

  -- A root unit and n blocks. A step unshards and reshards each unit once, and blocks of FULL_SHARD
  -- twice, since only these are resharded after forward. Units that stay unsharded after an
  -- evaluation are not gathered again by the next forward.
  local function count_units(n, strategy, blocks_twice)
    local all, again = n + 1, blocks_twice and n or 0
    local model = wrapped(gpt(n), strategy, { nn.TransformerBlock })
    local function step()
      model(ids(4), ids(4)):backward()
    end
    local function evaluate()
      ms.no_grad(model, ids(4), ids(4))
    end
    local function some(count)
      return count > 0 and count or nil
    end
    for _ = 1, 2 do
      assert.same({ unshard = all + again, reshard = all + again, reduce = all }, units_of(step))
    end
    assert.same({ unshard = all, reshard = some(again) }, units_of(evaluate))
    assert.same({ unshard = some(again), reshard = some(again) }, units_of(evaluate))
    assert.same({ unshard = some(2 * again), reshard = all + again, reduce = all }, units_of(step))
  end

  it('of units follow the strategy', function()
    for n = 1, 3 do
      count_units(n, 'FULL_SHARD', true)
      count_units(n, 'SHARD_GRAD_OP', false)
      count_units(n, 'NO_SHARD', false)
    end
  end)

  it('of units include no reduction inside no_sync', function()
    local model = wrapped(gpt(2), 'SHARD_GRAD_OP', { nn.TransformerBlock })
    local function step()
      model(ids(4), ids(4)):backward()
    end
    assert.same({ unshard = 3 }, units_of(function()
      model:no_sync(step)
    end))
    assert.same({}, units_of(function()
      model:no_sync(step)
    end))
    assert.same({ reshard = 3, reduce = 3 }, units_of(step))
  end)
end)
