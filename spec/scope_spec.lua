-- lua/moonshard/base/scope.lua: when tensors are released and collected
local B = require 'moonshard_ffi'
local ms = require 'moonshard'
local scope = require 'moonshard.base.scope'
local checks = require 'support.checks'

describe('a scope', function()
  teardown(function()
    assert.equal(0, checks.live_handles())
  end)

  it('releases tensors made inside, except results', function()
    local before = checks.live_handles()
    local inside
    local result, n = ms.scope(function(k)
      assert.equal(1, B.C.ms_scope_depth())
      local x = ms.ones(2)
      local y = x + x
      inside = ms.memory().live_handles
      return y * y, k
    end, 5)
    assert.equal(0, B.C.ms_scope_depth())
    assert.equal(before + 2, inside)
    assert.equal(before + 1, ms.memory().live_handles)
    assert.same({ 4, 4 }, result:totable())
    assert.equal(5, n)
  end)

  it('is named when a released tensor is used', function()
    local x
    scope.run('h.0.attn', function() x = ms.ones(2) end)
    checks.raises('RuntimeError',
      "item: 't' was released at the end of h.0.attn; return it or ms.keep it", x.item, x)
    checks.raises('RuntimeError', "add: 'a' was released at the end of h.0.attn",
      function() return x + x end)
    checks.raises('RuntimeError', 'released at the end of h.0.attn', x.backward, x)
    assert.equal('tensor(released at the end of h.0.attn)', tostring(x))
  end)

  it('keeps what ms.keep names', function()
    local kept
    ms.scope(function() kept = ms.keep(ms.full({ 2 }, 3)) end)
    assert.same({ 3, 3 }, kept:totable())
  end)

  it('keeps results inside tables, also nested and circular ones', function()
    local out = ms.scope(function()
      local t = { ms.ones(1), { deep = ms.ones(2) } }
      t.self = t
      return t
    end)
    assert.equal(1, out[1]:numel())
    assert.equal(2, out[2].deep:numel())
  end)

  it('keeps any number of results', function()
    local list = ms.scope(function()
      local t = {}
      for i = 1, 200 do
        t[i] = ms.full({ 1 }, i)
      end
      return t
    end)
    for i = 1, 200 do
      assert.equal(i, list[i]:item())
    end
  end)

  it('is closed by an error', function()
    local before, thrown = checks.live_handles(), {}
    local ok, err = pcall(ms.scope, function()
      ms.scope(function()
        local _ = ms.ones(2)
        error(thrown)
      end)
    end)
    assert.is_false(ok)
    assert.equal(thrown, err)
    assert.equal(before, ms.memory().live_handles)
    local x = ms.ones(1) -- no scope owns this one
    assert.equal(1, x:item())
  end)

  it('keeps the graph behind a result', function()
    local w = ms.tensor({ 3 }, { requires_grad = true })
    local loss = ms.scope(function()
      local h = w * w
      return (h * 2):sum()
    end)
    loss:backward()
    assert.equal(12, w:grad():item())
  end)
end)

describe('a coroutine', function()
  local nn = ms.nn

  teardown(function()
    assert.equal(0, checks.live_handles())
  end)

  it('may yield between module calls', function()
    local Counts = nn.Module.extend('my.Counts')
    function Counts:forward(x)
      for i in coroutine.wrap(function()
        for i = 1, 3 do
          coroutine.yield(i)
        end
      end) do
        x = x + i
      end
      return x
    end
    local steps = coroutine.wrap(function()
      for _ = 1, 2 do
        coroutine.yield(Counts()(ms.zeros(1)))
      end
    end)
    local a, b = steps(), steps()
    checks.close({ 6 }, a)
    checks.close({ 6 }, b)
  end)
end)

describe('outside scopes', function()
  teardown(function()
    assert.equal(0, checks.live_handles())
  end)

  it('small tensors do not pile up', function()
    local before = checks.live_handles()
    for i = 1, 20000 do
      local _ = ms.full({ 4 }, i)
    end
    assert.equal(before, checks.live_handles())
  end)

  it('large tensors are collected early', function()
    local before, peak = ms.memory().live_total, 0
    for _ = 1, 64 do
      local _ = ms.empty(4 * 2 ^ 20) -- 16 MiB each, 1 GiB in all, 16 bytes of Lua
      peak = math.max(peak, ms.memory().live_total)
    end
    assert.is_true(peak - before <= (256 + 32) * 2 ^ 20, ('%d bytes'):format(peak - before))
  end)

  -- A parameter's handle may show other memory when it is freed than when it was made.
  it('the memory of models is freed', function()
    local function live()
      checks.live_handles()
      local bytes = ms.memory().live
      bytes.scratch = nil -- kept for the next product
      return bytes
    end
    local before = live()
    for _, strategy in ipairs({ 'FULL_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD' }) do
      local plain = ms.nn.Linear(30, 20)
      plain(ms.ones(2, 30)):sum():backward()
      ms.capture_warnings(function() -- of one rank
        local model = ms.fsdp.FSDP(ms.nn.Sequential(ms.nn.Linear(30, 20), ms.nn.ReLU(),
          ms.nn.Linear(20, 1)), { sharding_strategy = strategy,
          auto_wrap_policy = ms.fsdp.ModuleWrapPolicy { ms.nn.Linear } })
        local opt = ms.optim.AdamW(model:parameters(), { lr = 0.1 })
        for _ = 1, 3 do
          model(ms.ones(2, 30)):sum():backward()
          opt:step()
          opt:zero_grad()
        end
      end)
      plain = nil -- luacheck: ignore
      assert.same(before, live())
    end
  end)
end)
