-- Collectives of a model of three units without parameters in the root, as PyTorch counts them.

local ms = require 'moonshard'
local nn, fsdp = ms.nn, ms.fsdp
local wrap = require 'support.wrap'

-- all_gather, reduce_scatter, all_reduce of each phase. PyTorch's full state dict of SHARD_GRAD_OP
-- uses the unsharded parameters of the evaluation before it; ours always gathers the masters.
local PHASES = {
  'forward', 'backward', 'forward and backward in no_sync', 'forward after it',
  'backward after it', 'clip', 'evaluation', 'evaluation again', 'full state dict',
}
local COUNTS = {
  FULL_SHARD = {
    { 3, 0, 0 }, { 3, 3, 0 }, { 6, 0, 0 }, { 3, 0, 0 }, { 3, 3, 0 }, { 0, 0, 1 },
    { 3, 0, 0 }, { 3, 0, 0 }, { 3, 0, 0 },
  },
  SHARD_GRAD_OP = {
    { 3, 0, 0 }, { 0, 3, 0 }, { 3, 0, 0 }, { 0, 0, 0 }, { 0, 3, 0 }, { 0, 0, 1 },
    { 3, 0, 0 }, { 0, 0, 0 }, { 3, 0, 0 },
  },
  NO_SHARD = {
    { 0, 0, 0 }, { 0, 0, 3 }, { 0, 0, 0 }, { 0, 0, 0 }, { 0, 0, 3 }, { 0, 0, 0 },
    { 0, 0, 0 }, { 0, 0, 0 }, { 0, 0, 0 },
  },
}

-- Phases of a model, with the functions that tell apart how it was sharded.
local function run_phases(model, without_sync, clip)
  local x, loss = ms.ones(2, 4)
  local function forward() loss = model(x):sum() end
  local function backward() loss:backward() end
  local function evaluate() ms.no_grad(model, x) end
  return {
    forward, backward,
    function()
      without_sync(function()
        forward()
        backward()
      end)
    end,
    forward, backward, clip,
    function()
      model:eval()
      evaluate()
    end,
    evaluate,
    function() model:state_dict() end,
  }
end

-- Compare the counts of the phases that `expected` has.
local function check(expected, model, ...)
  model(ms.ones(2, 4)):sum():backward() -- the first use compares the ranks
  for i, run in ipairs(run_phases(model, ...)) do
    local before = ms.dist.counts()
    run()
    local after = ms.dist.counts()
    local got = {}
    for k, kind in ipairs { 'all_gather', 'reduce_scatter', 'all_reduce' } do
      got[k] = after[kind] - before[kind]
    end
    assert.same(expected[i] or got, got, PHASES[i])
  end
end

local function three_layers()
  return nn.Sequential { nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4) }
end

-- Of fully_shard, by reshard_after_forward; without state dicts, which PyTorch's are sharded.
local FULLY = {
  { value = nil, 3, 3, 6, 3, 3, 0, 3, 3 }, { value = true, 3, 3, 6, 3, 3, 0, 3, 3 },
  { value = 2, 3, 3, 6, 3, 3, 0, 3, 3 }, { value = false, 3, 0, 3, 3, 0, 0, 3, 0 },
}

describe('collectives', function()
  for strategy, expected in pairs(COUNTS) do -- order does not matter: each is a test
    it('of every phase are as many as in PyTorch, with ' .. strategy, function()
      ms.dist.spawn(2, function()
        local model = wrap(three_layers(), {
          auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Linear }, sharding_strategy = strategy,
        })
        check(expected, model, function(fn) model:no_sync(fn) end,
          function() model:clip_grad_norm_(1) end)
      end)
    end)
  end

  it('of every phase are as many as in PyTorch, with fully_shard', function()
    for _, case in ipairs(FULLY) do
      ms.dist.spawn(2, function()
        local model, opts = three_layers(), { reshard_after_forward = case.value }
        for _, layer in ipairs(model:children()) do
          fsdp.fully_shard(layer, opts)
        end
        fsdp.fully_shard(model, opts)
        local expected = {}
        for i, gathers in ipairs(case) do
          expected[i] = { gathers, (i == 2 or i == 5) and 3 or 0, 0 }
        end
        check(expected, model, function(fn)
          model:set_requires_gradient_sync(false)
          fn()
          model:set_requires_gradient_sync(true)
        end, function() end)
      end)
    end
  end)
end)
