-- lua/moonshard/dist/init.lua: collectives on tensors
local ms = require 'moonshard'
local dist = ms.dist
local checks = require 'support.checks'

describe('collectives', function()
  it('give equal results on all ranks', function()
    dist.spawn(2, function(rank)
      local function same(expected, t)
        checks.close(expected, t)
      end
      local mine = ms.tensor { rank + 1, 10 * (rank + 1) }
      same({ 3, 30 }, dist.all_reduce(mine:clone()))
      same({ 1.5, 15 }, dist.all_reduce(mine:clone(), 'avg'))
      same({ 2, 20 }, dist.all_reduce(mine:clone(), 'max'))
      same({ 1, 10 }, dist.all_reduce(mine:clone(), 'min'))
      same({ 2, 20 }, dist.broadcast(mine:clone(), 1))
      local list = dist.all_gather(mine:reshape(2, 1))
      assert(#list == 2)
      same({ { 1 }, { 10 } }, list[1])
      same({ { 2 }, { 20 } }, list[2])
      assert(list[2]:dim() == 2)
      same({ 1, 10, 2, 20 }, dist.all_gather(ms.empty(4), mine))
      same({ 3 * 10 ^ rank }, dist.reduce_scatter(ms.empty(1), mine))
      dist.barrier()
      local counts = dist.counts()
      assert(counts.all_reduce == 4 and counts.broadcast == 1 and counts.barrier == 1)
      assert(counts.all_gather == 2 and counts.reduce_scatter == 1)
      assert(dist.wait_seconds() >= 0)
      assert(dist.stop_requested() == nil)
    end)
  end)

  it('refuse arguments of another kind', function()
    dist.spawn(1, function()
      local x = ms.ones(1)
      checks.raises('TypeError', "'t' is nil, expected a tensor", dist.all_reduce)
      checks.raises('TypeError', "'t' is a table, expected a tensor", dist.all_gather, { x })
      checks.raises('TypeError', "'root' is 0.5", dist.broadcast, x, 0.5)
      checks.raises('ValueError', 'root', dist.broadcast, x, 1)
      checks.raises('TypeError', "'group' is a table, expected a group of ranks", dist.counts, {})
      checks.raises('ValueError', "unknown reduction 'mean'", dist.all_reduce, x, 'mean')
    end)
  end)

  it('write into a tensor that requires grad inside no_grad only', function()
    dist.spawn(1, function()
      local p, x = ms.full({ 1 }, 2):requires_grad_(true), ms.ones(1)
      local calls = {
        all_reduce = function() return dist.all_reduce(p) end,
        broadcast = function() return dist.broadcast(p, 0) end,
        all_gather = function() return dist.all_gather(p, x) end,
        reduce_scatter = function() return dist.reduce_scatter(p, x) end,
      }
      for name, call in pairs(calls) do
        checks.raises('RuntimeError', name .. ': the tensor requires grad, and writing into it is '
          .. 'not differentiable', call)
        assert(p:version() == 0 and p:item() == 2)
      end
      for _, name in ipairs { 'all_reduce', 'broadcast' } do
        assert(ms.no_grad(calls[name]):item() == 2)
      end
      dist.all_gather(p:detach(), x)
      assert(p:version() == 3 and p:item() == 1)
      checks.close({ 1 }, dist.all_gather(p)[1]) -- which only reads it
    end)
  end)

  it('that differ between ranks are an error on all', function()
    checks.raises('CommError', 'rank', dist.spawn, 2, function(rank)
      if rank == 0 then
        dist.barrier()
      else
        dist.all_reduce(ms.ones(1))
      end
    end)
  end)
end)
