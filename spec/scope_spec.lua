-- lua/moonshard/internal/scope.lua: what is released when, and what the collector does
local B = require 'moonshard_ffi'
local ms = require 'moonshard'
local scope = require 'moonshard.internal.scope'
local checks = require 'support.checks'

describe('a scope', function()
  teardown(function()
    assert.equal(0, checks.live_handles())
  end)

  it('releases what was made in it, at once, and returns its results', function()
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

  it('names itself when a released tensor is used', function()
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

  it('hands results to the scope around it', function()
    local before = checks.live_handles()
    local inner
    ms.scope(function()
      inner = scope.run('inner', function() return ms.ones(2) end)
      assert.equal(2, inner:numel())
    end)
    assert.equal(before, ms.memory().live_handles)
    checks.raises('RuntimeError', 'released at the end of ms.scope', inner.numel, inner)
  end)

  it('leaves tensors from outside alone', function()
    local x = ms.ones(2)
    local same = ms.scope(function()
      x:add_(1)
      return x
    end)
    assert.equal(x, same)
    assert.same({ 2, 2 }, x:totable())
  end)

  it('returns nils in their places', function()
    local function count(...) return select('#', ...), ... end
    local n, a, b, c = count(ms.scope(function() return nil, 1, nil end))
    assert.equal(3, n)
    assert.is_nil(a)
    assert.equal(1, b)
    assert.is_nil(c)
  end)

  it('is closed by an error, which stays the same object', function()
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
    local x = ms.ones(1) -- made outside any scope again
    assert.equal(1, x:item())
  end)

  it('frees the memory of a tensor released early', function()
    local live = ms.memory().live_total
    local x = ms.zeros(1024)
    assert.is_true(ms.memory().live_total >= live + 4096)
    x:release()
    assert.equal(live, ms.memory().live_total)
    x:release()
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

  -- What `fn` raises in a coroutine of its own.
  local function in_coroutine(fn)
    return select(2, coroutine.resume(coroutine.create(function()
      return select(2, pcall(fn))
    end)))
  end

  it('cannot yield in the middle of a module call; nobody\'s tensors are lost', function()
    local Waits = nn.Module.extend('my.Waits')
    function Waits:forward(x)
      coroutine.yield('never seen')
      return x
    end
    local model = nn.Sequential(nn.Sequential(Waits()))
    local mine = ms.ones(2)
    local err = in_coroutine(function() return model(ms.ones(1)) end)
    assert.equal('RuntimeError', err.kind)
    assert.truthy(err.message:find('coroutine.yield inside a call of 0.0 (my.Waits)', 1, true),
      err.message)
    assert.equal(0, B.C.ms_scope_depth())
    local after = ms.ones(3)
    checks.close({ 1, 1 }, nn.Sequential(nn.ReLU())(mine))
    assert.equal(3, after:numel())
  end)

  it('cannot yield in what is put back on return', function()
    for name, fn in pairs {
      ['ms.scope'] = ms.scope, no_grad = ms.no_grad, enable_grad = ms.enable_grad,
    } do
      local err = in_coroutine(function() fn(coroutine.yield) end)
      assert.truthy(tostring(err):find('coroutine.yield inside ' .. name, 1, true), tostring(err))
      assert.is_true(ms.is_grad_enabled())
    end
  end)

  it('may yield between calls, and inside one that also resumes it', function()
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

  it('20,000 small tensors do not pile up', function()
    local before = checks.live_handles()
    for i = 1, 20000 do
      local _ = ms.full({ 4 }, i)
    end
    assert.equal(before, checks.live_handles())
  end)

  it('large tensors are collected long before their bytes count', function()
    local before, peak = ms.memory().live_total, 0
    for _ = 1, 64 do
      local _ = ms.empty(4 * 2 ^ 20) -- 16 MiB each, 1 GiB in all, 16 bytes of Lua
      peak = math.max(peak, ms.memory().live_total)
    end
    assert.is_true(peak - before <= (256 + 32) * 2 ^ 20, ('%d bytes'):format(peak - before))
  end)

  -- A parameter shows the memory of its unit now and a shard of its own then: its handle may hold
  -- other bytes when it dies than when it was made.
  it('their bytes come back, whatever parameters showed', function()
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
