-- lua/moonshard/dist/messages.lua: tensors from one rank to another
local ms = require 'moonshard'
local dist = ms.dist
local checks = require 'support.checks'

-- A value of every element, which rank p sends to q.
local function message(p, q, n)
  return ms.arange(n):to('f32') * 0.5 + 100 * p + 10 * q
end

describe('send and recv', function()
  it('move tensors of any size in order', function()
    dist.spawn(3, function(rank)
      for _, n in ipairs { 0, 1, 1000, 300000 } do
        if rank == 0 then
          dist.send(message(0, 1, n), 1)
          dist.send(message(0, 2, n), 1, { tag = 7 })
        elseif rank == 1 then
          local t = ms.zeros(n)
          assert.equal(0, dist.recv(t, 0))
          assert.is_true(ms.equal(message(0, 1, n), t))
          assert.equal(0, dist.recv(t, { tag = 7 })) -- from any rank
          assert.is_true(ms.equal(message(0, 2, n), t))
        end
      end
      local ids = ms.tensor({ rank }, { dtype = 'i64' })
      if rank == 2 then
        dist.send(ids, 0)
      elseif rank == 0 then
        assert.equal(2, dist.recv(ids))
        assert.equal(2, ids:item())
      end
    end)
  end)

  it('go on while this rank waits for another thing', function()
    dist.spawn(3, function(rank)
      local n, works, got = 100000, {}, {}
      for q = 0, 2 do -- all at once, whatever the order in which they are waited for
        if q ~= rank then
          works[#works + 1] = dist.isend(message(rank, q, n), q)
          got[q] = ms.zeros(n)
          works[#works + 1] = dist.irecv(got[q], q)
        end
      end
      checks.close({ 3 }, dist.all_reduce(ms.ones(1)))
      for i = #works, 1, -1 do
        assert.is_true(works[i]:wait())
        assert.is_true(works[i]:is_completed())
      end
      for q, t in pairs(got) do
        assert.is_true(ms.equal(message(q, rank, n), t))
      end
      assert.equal((rank + 1) % 3, works[rank == 1 and 4 or 2]:result())
    end)
  end)

  it('are polled by is_completed', function()
    dist.spawn(2, function(rank)
      local t = rank == 0 and message(0, 1, 200000) or ms.zeros(200000)
      local work = rank == 0 and dist.isend(t, 1) or dist.irecv(t, 0)
      while not work:is_completed() do end
      assert.is_true(ms.equal(message(0, 1, 200000), t))
    end)
  end)

  it('count places in a group', function()
    dist.spawn(3, function(rank)
      local group = dist.new_group { 0, 2 }
      if rank == 0 then
        dist.send(ms.ones(2), 1, group)
      elseif rank == 2 then
        local t = ms.zeros(2)
        assert.equal(0, dist.recv(t, 0, group))
        checks.close({ 1, 1 }, t)
      end
    end)
  end)

  it('that do not fit are an error that names both', function()
    for _, case in ipairs {
      { 'f32 (3), tag 0 to rank 1, which receives f32 (2), tag 0', {}, 2 },
      { 'f32 (3), tag 4 to rank 1, which receives f32 (3), tag 0', { tag = 4 }, 3 },
    } do
      checks.raises('CommError', 'message mismatch: rank 0 sends ' .. case[1], dist.spawn, 2,
        function(rank)
          if rank == 0 then
            dist.send(ms.ones(3), 1, case[2])
            dist.barrier()
          else
            dist.recv(ms.zeros(case[3]), 0)
          end
        end)
    end
    dist.spawn(2, function(rank)
      checks.raises('ValueError', 'send: rank is ' .. rank, dist.send, ms.ones(1), rank)
      checks.raises('ValueError', 'recv: rank is 2', dist.recv, ms.ones(1), 2)
      checks.raises('ValueError', 'with gaps', dist.send, ms.ones(2, 2):t(), 1 - rank)
      checks.raises('RuntimeError', 'requires grad', dist.recv,
        ms.ones(1):requires_grad_(true), 1 - rank)
    end)
  end)

  it('are an error within a second where the other rank died, or left', function()
    local before = os.time()
    for text, leave in pairs {
      ['rank 1 failed'] = function() error 'out of luck' end,
      ['rank 1 left the job'] = function() end,
    } do
      for _, call in ipairs { dist.recv, dist.send } do
        checks.raises('CommError', text, dist.spawn, 3, function(rank)
          if rank == 1 then
            return leave()
          elseif rank == 0 then
            call(ms.zeros(300000), 1)
          else
            os.execute 'sleep 2'
          end
        end)
      end
    end
    assert.is_true(os.time() - before <= 10)
  end)

  it('that wait for each other are an error', function()
    checks.raises('CommError', 'every rank waits for another', dist.spawn, 2, function(rank)
      dist.recv(ms.zeros(1), 1 - rank)
    end)
  end)
end)
