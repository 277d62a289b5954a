-- Groups of ranks in scripts: what they say, and where they stand among arguments.
local ms = require 'moonshard'
local checks = require 'support.checks'
local runs = require 'support.runs'
local scripts = require 'support.scripts'

local dist = ms.dist

describe('a group of ranks', function()
  it('says who it is', function()
    local reports = runs.reports(3, function(rank)
      return tostring(dist.split(rank == 1 and 1 or 0))
    end)
    assert.same({ [0] = 'Group(rank=0, size=2)', 'Group(rank=0, size=1)', 'Group(rank=1, size=2)' },
      reports)
    local fake = dist.fake { rank = 3, world = 16384 } -- from here on this process forks no ranks
    assert.equal('FakeGroup(rank=3, size=16384)', tostring(fake))
    assert.equal(3, fake:rank())
    assert.equal(16384, fake:size())
  end)

  it('says what it has not', function()
    local group = dist.fake { world = 2 }
    checks.raises('KeyError', "a group of ranks has no 'ranks', did you mean 'rank'?",
      function() return group.ranks end)
    checks.raises('KeyError', 'write group:size()', function() return group.world_size end)
    checks.raises('TypeError', "Group.rank: 'self' is nil, expected a group of ranks", group.rank)
    checks.raises('TypeError', "all_reduce: 'group' is a tensor, expected a group of ranks",
      dist.all_reduce, ms.ones(1), 'sum', ms.ones(1))
  end)

  it('stands last, behind what is not left out', function()
    local group, f = dist.fake { world = 3 }, dist.functional
    assert.equal(3, dist.all_reduce(ms.ones(1), group):item())
    assert.equal(1, dist.all_reduce(ms.ones(1), 'max', group):item())
    assert.equal(3, #dist.all_gather(ms.ones(2), group))
    assert.equal(3, #dist.all_gather(ms.ones(2), nil, group))
    assert.same({ 1, 1, 1 }, dist.all_gather(ms.zeros(3), ms.ones(1), group):totable())
    assert.equal(3, dist.reduce_scatter(ms.zeros(1), ms.ones(3), group):item())
    assert.equal(7, dist.broadcast(ms.full({ 1 }, 7), group):item())
    assert.equal(3, f.all_reduce(ms.ones(1), group):item())
    assert.same({ 3 }, f.all_gather(ms.ones(1), group):shape())
    assert.same({ 1 }, f.reduce_scatter(ms.ones(3), group):shape())
    assert.equal(7, f.broadcast(ms.full({ 1 }, 7), group):item())
    checks.raises('RuntimeError', 'make the smaller group a fake one, too', dist.split, 0, group)
  end)

  it('is refused where it is none, or none any more', function()
    local gone = dist.fake { world = 2 }
    for _, call in ipairs { 'all_reduce', 'all_gather', 'broadcast', 'reduce_scatter' } do
      checks.raises('ValueError', 'this rank is in none of the groups', function()
        return call == 'reduce_scatter' and dist[call](ms.ones(1), ms.ones(1), false)
          or dist[call](ms.ones(1), false)
      end)
    end
    ms.close()
    assert.equal('Group(gone)', tostring(gone))
    checks.raises('ValueError', "Group.size: 'self' is a group that is gone: close() ended it",
      gone.size, gone)
    checks.raises('ValueError', "FSDP: 'process_group' is a group that is gone", ms.fsdp.FSDP,
      ms.nn.Linear(2, 2), { process_group = gone })
  end)

  it('says what to write for names of PyTorch', function()
    for _, case in ipairs {
      { 'new_subgroups', 'KeyError', 'write dist.split(math.floor(dist.rank() / size))' },
      { 'ProcessGroup', 'KeyError', 'write dist.split(color, key)' },
      { 'group', 'KeyError', 'write nothing: all ranks are meant where no group is given' },
      { '_functional_collectives', 'KeyError', 'write dist.functional' },
      { 'destroy_process_group', 'NotImplementedError', 'write dist.leave()' },
      { 'get_global_rank', 'NotImplementedError', 'asking who is in a group is not supported yet' },
    } do
      checks.raises(case[2], case[3], function() return dist[case[1]] end)
    end
    checks.raises('ValueError', 'write dist.fake { rank = r, world = n }', dist.init,
      { backend = 'fake' })
  end)
end)

describe('dist.init', function()
  it('says what made the process a world of its own', function()
    for before, by in pairs { -- order does not matter
      ['ms.dist.fake { world = 4 }'] = 'dist.fake made',
      ['ms.dist.barrier()'] = 'a collective or an init before made',
    } do
      scripts.with_script(before .. '\nms.dist.init { ranks = 2 }\n', function(path)
        local output = scripts.shell('luajit ' .. path)
        assert.truthy(output:find("dist.init: 'ranks' is 2, but this process is one of 1 already: "
          .. by .. ' it a world of its own; init comes first', 1, true), output)
      end)
    end
  end)
end)
