-- Groups of ranks in scripts: what they say, and where they stand among arguments.
local ms = require 'moonshard'
local checks = require 'support.checks'
local runs = require 'support.runs'
local scripts = require 'support.scripts'

local dist = ms.dist

describe('a group of ranks', function()
  it('lists its ranks, in its order', function()
    local reports = runs.reports(4, function(rank)
      local group = dist.split(rank % 2, -rank)
      return table.concat(group:ranks(), ' ') .. ', ' .. tostring(group)
    end)
    for rank = 0, 3 do
      local odd = rank % 2
      assert.equal(('%d %d, Group(rank=%d, size=2, ranks={%d, %d})'):format(2 + odd, odd,
        rank < 2 and 1 or 0, 2 + odd, odd), reports[rank])
    end
  end)

  it('says who it is', function()
    local reports = runs.reports(3, function(rank)
      return tostring(dist.split(rank == 1 and 1 or 0))
    end)
    assert.same({ [0] = 'Group(rank=0, size=2, ranks={0, 2})',
      'Group(rank=0, size=1, ranks={1})', 'Group(rank=1, size=2, ranks={0, 2})' }, reports)
    local fake = dist.fake { rank = 3, world = 16384 } -- from here on this process forks no ranks
    assert.equal('FakeGroup(rank=3, size=16384)', tostring(fake))
    assert.equal(3, fake:rank())
    assert.equal(16384, fake:size())
    assert.same({ 0, 1, 2 }, dist.fake { world = 3 }:ranks())
  end)

  it('says what it has not', function()
    local group = dist.fake { world = 2 }
    checks.raises('KeyError', "a group of ranks has no 'rnks', did you mean 'ranks'?",
      function() return group.rnks end)
    checks.raises('KeyError', 'write group:size()', function() return group.world_size end)
    checks.raises('KeyError', 'write group:rank()', function() return group:get_rank() end)
    checks.raises('KeyError', 'write dist.barrier(..., group), where it stands last',
      function() group:barrier() end)
    checks.raises('KeyError', "a group of ranks takes no field 'x'", function() group.x = 1 end)
    for _, case in ipairs {
      { 'its size is group:size()', function() return #group end },
      { 'its ranks are ipairs(group:ranks())', function() return ipairs(group) end },
      { 'it is not called', function() group() end },
      { 'it is no number', function() return group + 1 end },
    } do
      checks.raises('TypeError', 'a group of ranks cannot do this: ' .. case[1], case[2])
    end
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

  it('is asked itself for a place, and stands in front of nothing', function()
    local group = dist.fake { world = 2 }
    checks.raises('TypeError', 'dist.rank() is of all ranks, but got a group of ranks; in a group '
      .. 'write group:rank()', dist.rank, group)
    checks.raises('TypeError', 'write group:size()', dist.world_size, group)
    checks.raises('TypeError', 'all_reduce: the group stands in front of a string, expected last',
      dist.all_reduce, ms.ones(1), group, 'avg')
  end)

  it('is not what init gives', function()
    local said = "is the world itself (the group of all ranks is dist.world(), or left out), "
    local world = dist.info()
    checks.raises('TypeError', "all_reduce: 'group' " .. said .. 'expected a group of ranks',
      dist.all_reduce, ms.ones(1), 'sum', world)
    checks.raises('TypeError', "FSDP: 'process_group' " .. said, ms.fsdp.FSDP, ms.nn.Linear(2, 2),
      { process_group = world })
  end)

  it('has a color', function()
    for _, color in ipairs { 'nil', true } do
      checks.raises('TypeError', 'expected a whole number (-1: this rank joins none)', dist.split,
        color ~= 'nil' and color or nil)
    end
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
      { 'get_global_rank', 'KeyError', 'write group:ranks()[rank + 1]' },
    } do
      checks.raises(case[2], case[3], function() return dist[case[1]] end)
    end
    for _, given in ipairs { { backend = 'fake' }, 'fake' } do
      checks.raises('ValueError', 'write dist.fake { rank = r, world = n }', dist.init, given,
        given == 'fake' and { rank = 0, world_size = 4 } or nil)
    end
    checks.raises('TypeError', 'dist.init(opts): a table is one argument too many', dist.init, {},
      {})
    checks.raises('ValueError', "dist.fake: unknown option 'ranks', did you mean 'world'?",
      dist.fake, { ranks = 4 })
  end)
end)

describe('dist.init', function()
  it('says what made the process a world of its own', function()
    for before, by in pairs { -- order does not matter
      ['ms.dist.fake { world = 4 }'] = 'dist.fake made',
      ['ms.dist.barrier()'] = 'a collective, dist.split, FSDP or an init before made',
    } do
      scripts.with_script(before .. '\nms.dist.init { ranks = 2 }\n', function(path)
        local output = scripts.shell('luajit ' .. path)
        assert.truthy(output:find("dist.init: 'ranks' is 2, but this process is one of 1 already: "
          .. by .. ' it a world of its own; init comes first', 1, true), output)
      end)
    end
  end)
end)
