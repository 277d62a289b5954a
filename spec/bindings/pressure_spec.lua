-- bindings/moonshard_ffi/init.lua: when the collector runs for memory of tensors and graphs
local B = require 'moonshard_ffi'
local ms = require 'moonshard'
local checks = require 'support.checks'
local runs = require 'support.runs'

local MIB = 2 ^ 20
local ALLOWED = 64 * MIB -- or half of the working set

local Tower = ms.nn.Module.extend('Tower')

-- Its graph holds `levels` times 4 MiB, its result is a scalar.
function Tower:init(levels)
  self.levels = levels
  self:param('w', { MIB }, ms.nn.init.ones())
end

function Tower:forward()
  local x = self.w
  for _ = 1, self.levels do
    x = x:relu()
  end
  return x:sum()
end

local function live()
  return ms.memory().live_total
end

-- Number of collections that the bindings ask for while `fn()` runs.
local function collections(fn)
  local collect, n = B.collect, 0
  B.collect = function()
    n = n + 1
    collect()
  end
  local ok, err = pcall(fn)
  B.collect = collect
  assert(ok, err)
  return n
end

-- Most bytes that `n` calls of `step(i)` held at the end of one, over what was held before.
local function most_held(n, step)
  ms.collect()
  local before, most = live(), 0
  for i = 1, n do
    step(i)
    most = math.max(most, live() - before)
  end
  return most
end

local function assert_bounded(most, graph)
  local bound = ALLOWED + 2 * graph
  assert(most <= bound,
    ('%.0f MiB were held, expected at most %.0f'):format(most / MIB, bound / MIB))
end

describe('a graph that nobody needs', function()
  teardown(function()
    assert.equal(0, checks.live_handles())
  end)

  it('is collected after a forward without a backward', function()
    local model = Tower(8):materialize()
    assert_bounded(most_held(20, function() assert(model():item() > 0) end), 32 * MIB)
  end)

  it('is collected after a skipped step', function()
    local model = Tower(16):materialize()
    local opt = ms.optim.SGD(model:parameters(), { lr = 0 })
    assert_bounded(most_held(20, function(i)
      local loss = model()
      if i % 2 == 0 then
        loss:backward()
        opt:step()
        opt:zero_grad()
      end
    end), 64 * MIB)
  end)

  it('is collected on every rank of a sharded model', function()
    local reports, cause = runs.reports(2, function()
      local model = ms.fsdp.FSDP(ms.nn.Sequential(Tower(8)), {
        auto_wrap_policy = ms.fsdp.ModuleWrapPolicy { Tower },
      })
      model()
      return ('%d'):format(most_held(20, function(i)
        local loss = model()
        if i % 4 == 0 then
          loss:backward()
          model:zero_grad()
        end
      end))
    end)
    assert.is_nil(cause)
    for rank = 0, 1 do
      assert_bounded(tonumber(reports[rank]), 32 * MIB)
    end
  end)
end)

describe('a step that needs as much as the one before', function()
  local function steady(levels)
    local model = Tower(levels):materialize()
    local opt = ms.optim.AdamW(model:parameters(), { lr = 1e-3 })
    local function steps(n)
      return collections(function()
        for _ = 1, n do
          model():backward()
          opt:step()
          opt:zero_grad()
        end
      end)
    end
    ms.collect()
    return steps(3), steps(5)
  end

  it('runs no collection', function()
    local first, later = steady(16)
    assert.is_true(first <= 2, first)
    assert.equal(0, later)
  end)

  it('runs no collection with evaluations in between', function()
    local model = Tower(80):materialize()
    local function round()
      model():backward()
      model:zero_grad()
      ms.no_grad(model)
    end
    for _ = 1, 3 do
      round()
    end
    assert.equal(0, collections(function()
      for _ = 1, 4 do
        round()
      end
    end))
  end)
end)
