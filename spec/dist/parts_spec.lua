-- lua/moonshard/dist: collectives with a root or a part for each rank, values of Lua, handles.
local ms = require 'moonshard'
local dist = ms.dist
local checks = require 'support.checks'

describe('scatter, gather, reduce and all_to_all', function()
  it('move parts between ranks', function()
    dist.spawn(3, function(rank)
      local mine = ms.tensor { rank + 1, 10 * (rank + 1) }
      local root = rank == 2
      local out = ms.zeros(2, 1)
      local list = root and { ms.ones(2), ms.full({ 2 }, 2), ms.full({ 2 }, 3) } or nil
      checks.close({ { rank + 1 }, { rank + 1 } }, dist.scatter(out, list, 2))
      checks.close({ { rank }, { rank + 3 } },
        dist.scatter(out, rank == 0 and ms.tensor { 0, 3, 1, 4, 2, 5 } or nil))
      local all = dist.gather(mine, 2)
      assert.equal(root, all ~= nil)
      for r, t in ipairs(all or {}) do
        checks.close({ r, 10 * r }, t)
      end
      checks.close(root and { 6, 60 } or mine:totable(), dist.reduce(mine:clone(), 2))
      checks.close(rank == 0 and { 3, 30 } or mine:totable(), dist.reduce(mine:clone(), 0, 'max'))
      local parts = {}
      for q = 0, 2 do -- q + rank rows for rank q
        parts[q + 1] = ms.full({ q + rank, 2 }, 10 * rank + q)
      end
      for p, t in ipairs(dist.all_to_all(parts)) do
        assert.same({ p - 1 + rank, 2 }, t:shape())
        checks.close(ms.full({ p - 1 + rank, 2 }, 10 * (p - 1) + rank):totable(), t)
      end
      checks.close({ rank, 10 + rank, 20 + rank }, dist.all_to_all_single(ms.empty(3),
        ms.tensor { 10 * rank, 10 * rank + 1, 10 * rank + 2 }))
      checks.close(rank == 0 and { 0, 1, 2 } or {}, dist.all_to_all_single(
        ms.empty(rank == 0 and 3 or 0), ms.tensor { rank },
        rank == 0 and { 1, 1, 1 } or { 0, 0, 0 }, { 1, 0, 0 }))
    end)
  end)

  it('work in groups, with places in them as roots', function()
    dist.spawn(3, function(rank)
      local group = dist.new_group { 0, 2 }
      if not group then
        return
      end
      local t = ms.tensor { rank + 1 }
      checks.close(rank == 2 and { 4 } or { 1 }, dist.reduce(t:clone(), 1, group))
      local list = dist.gather(t, 1, group)
      assert.equal(rank == 2, list ~= nil)
      checks.close({ 7 + rank },
        dist.scatter(t, rank == 2 and ms.tensor { 7, 9 } or nil, 1, group))
      assert.same({ n = 2, 'of 0', 'of 2' }, dist.all_gather_object('of ' .. rank, group))
      assert.equal('of 2', dist.broadcast_object('of ' .. rank, 1, group))
    end)
  end)

  it('refuse parts that do not fit', function()
    dist.spawn(2, function(rank)
      checks.raises('CommError', 'rank 1 sends 2 rows to rank 0, which expects 1',
        dist.all_to_all_single, ms.empty(2), ms.ones(rank + 2), { 1, 1 }, { rank + 1, 1 })
      checks.raises('ValueError', 'input_split_sizes has 1 numbers, expected one for each of 2',
        dist.all_to_all_single, ms.empty(2), ms.ones(2), { 1, 1 }, { 2 })
      checks.raises('ValueError', 'scatter_list has 1 tensors', dist.scatter, ms.empty(1),
        { ms.ones(1) }, rank)
      checks.raises('ValueError', 'gather: root is 2, expected 0 to 1', dist.gather, ms.ones(1), 2)
      checks.raises('ValueError', "did you mean 'async_op'?", dist.reduce, ms.ones(1), 0,
        { async_o = true })
    end)
  end)

  it('that differ between ranks are an error that names both', function()
    local calls = {
      { 'gather%(f32 %(1%), root 1%)', function(rank) dist.gather(ms.ones(1), rank) end },
      { 'reduce%(f32 %(1%), root 1, sum%)', function(rank) dist.reduce(ms.ones(1), rank) end },
      { 'scatter%(f32 %(2%), root 0%)', function(rank)
        dist.scatter(ms.ones(1 + rank), ms.ones(2))
      end },
      { 'all_to_all%(f32 %(4%)%)', function(rank)
        dist.all_to_all_single(ms.ones(2 + 2 * rank), ms.ones(2 + 2 * rank))
      end },
    }
    for _, call in ipairs(calls) do
      local _, err = pcall(dist.spawn, 2, call[2])
      assert.matches('rank 1 calls ' .. call[1], tostring(err))
    end
  end)

  it('are an error within a second where a rank died', function()
    local before = os.time()
    for _, call in ipairs {
      function() dist.gather(ms.ones(1)) end, function() dist.reduce(ms.ones(1)) end,
      function() dist.scatter(ms.ones(1), ms.ones(2)) end,
      function() dist.all_to_all_single(ms.ones(2), ms.ones(2), { 1, 1 }, { 1, 1 }) end,
    } do
      checks.raises('CommError', 'rank 1 failed', dist.spawn, 2, function(rank)
        if rank == 1 then
          error 'out of luck'
        end
        call()
      end)
    end
    assert.is_true(os.time() - before <= 5)
  end)
end)

describe('values of Lua', function()
  it('are the same on every rank', function()
    dist.spawn(2, function(rank)
      local value = { 1, 'zwei\0', { [0.5] = true, deep = { 1 / 3, -math.huge } }, n = false,
        [true] = 2 ^ 60, ['a;b:{}'] = '' }
      assert.same(value, dist.broadcast_object(rank == 0 and value or nil))
      assert.is_nil(dist.broadcast_object(nil, 1))
      local text = dist.broadcast_object(('x'):rep(300000 * rank), 1)
      assert.equal(300000, #text)
      local all = dist.all_gather_object { rank = rank, value = rank == 1 and value or nil }
      assert.same({ n = 2, { rank = 0 }, { rank = 1, value = value } }, all)
      local nan = dist.broadcast_object(0 / 0)
      assert.is_true(nan ~= nan)
      checks.raises('TypeError', "'value'[a] is a tensor", dist.all_gather_object,
        { a = ms.ones(1) })
      checks.raises('TypeError', "'value' is a function", dist.all_gather_object, print)
      local round = {}
      round[1] = round
      checks.raises('ValueError', 'or one in itself', dist.all_gather_object, round)
    end)
  end)
end)

describe('async_op = true', function()
  it('gives a handle', function()
    dist.spawn(2, function(rank)
      local t, async = ms.tensor { rank + 1 }, { async_op = true }
      for _, work in ipairs {
        dist.all_reduce(t:clone(), 'sum', nil, async), dist.all_reduce(t:clone(), async),
        dist.reduce(t:clone(), rank * 0, async), dist.broadcast(t:clone(), 1, async),
        dist.barrier(async), dist.gather(t, async), dist.all_gather(t, async),
        dist.all_to_all({ t, t }, async), dist.scatter(t:clone(), ms.ones(2), 0, async),
        dist.reduce_scatter(ms.empty(1), ms.ones(2), async),
      } do
        assert.is_true(work:wait())
        assert.is_true(work:is_completed())
      end
      checks.close({ 3 }, dist.all_reduce(t:clone(), async):result())
    end)
  end)
end)
