-- Groups of ranks in scripts: what they say, and where they stand among arguments.
local ms = require 'moonshard'
local lfs = require 'lfs'
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

  it('refuses the backend fake of PyTorch', function()
    for _, given in ipairs { { backend = 'fake' }, 'fake' } do
      checks.raises('ValueError', 'write dist.fake { rank = r, world = n }', dist.init, given,
        given == 'fake' and { rank = 0, world_size = 4 } or nil)
    end
    checks.raises('ValueError', "dist.fake: unknown option 'ranks', did you mean 'world'?",
      dist.fake, { ranks = 4 })
  end)
end)

describe('dist.new_group', function()
  it('has the ranks that are listed, in the order of the job', function()
    local reports, cause = runs.reports(4, function(rank)
      local group = dist.new_group { 3, 0, 2 }
      assert(dist.get_rank(group) == (rank == 1 and -1 or ({ [0] = 0, [2] = 1, [3] = 2 })[rank]))
      assert(dist.get_world_size(group) == (rank == 1 and -1 or 3))
      assert(dist.get_rank() == rank and dist.get_world_size() == 4)
      local all = dist.new_group()
      assert(dist.get_rank(all) == rank and dist.get_world_size(all) == 4)
      if not group then
        return 'none'
      end
      assert(dist.get_global_rank(group, 1) == 2 and dist.get_group_rank(group, 3) == 2)
      checks.raises('ValueError', 'Group rank 3 is not part of group Group(rank=',
        dist.get_global_rank, group, 3)
      checks.raises('ValueError', 'Global rank 1 is not part of group Group(rank=',
        dist.get_group_rank, group, 1)
      return ('%s: %d'):format(table.concat(dist.get_process_group_ranks(group), ' '),
        dist.all_reduce(ms.full({ 1 }, 10 ^ rank), group):item())
    end)
    assert.is_nil(cause)
    assert.same({ [0] = '0 2 3: 1101', 'none', '0 2 3: 1101', '0 2 3: 1101' }, reports)
  end)

  it('is told when the ranks list different ones', function()
    checks.raises('CommError', "the ranks differ: ranks of new_group is 0 on rank 0 and 1 on "
      .. 'rank 1', dist.spawn, 2, function(rank)
      dist.new_group { rank }
    end)
  end)

  it('refuses ranks that are none', function()
    dist.spawn(1, function()
      for _, case in ipairs {
        { 'ValueError', "ranks[2] is 1; the new group's rank should be within the world size, "
          .. 'which is 1', { 0, 1 } },
        { 'ValueError', 'ranks[1] is -1', { -1 } },
        { 'ValueError', 'rank 0 stands twice', { 0, 0 } },
        { 'ValueError', "'ranks' is an empty list", {} },
        { 'TypeError', "'ranks' is a number, expected a list of ranks", 3 },
        { 'TypeError', "'ranks[1]' is 0.5, expected a whole number", { 0.5 } },
      } do
        checks.raises(case[1], case[2], dist.new_group, case[3])
      end
      checks.raises('ValueError', 'in none of the groups', dist.get_process_group_ranks, false)
      checks.raises('TypeError', 'expected a group of ranks', dist.get_rank, 3)
    end)
  end)
end)

describe('dist.destroy_process_group', function()
  -- This process's maps of what ranks share, and its descriptors.
  local function shared()
    local n = 0
    for line in io.lines('/proc/self/maps') do
      n = n + (line:find('moonshard-segment', 1, true) and 1 or 0)
    end
    for _ in lfs.dir('/proc/self/fd') do
      n = n + 1
    end
    return n
  end

  it('ends a group and gives its memory back', function()
    local _, cause = runs.reports(2, function()
      local before = shared()
      for _ = 1, 50 do
        local group = dist.new_group()
        assert(shared() > before)
        dist.barrier(group)
        dist.destroy_process_group(group)
        checks.raises('ValueError', "all_reduce: 'group' is a group that is gone: "
          .. 'destroy_process_group() ended it', dist.all_reduce, ms.ones(1), group)
        assert(tostring(group) == 'Group(gone)')
      end
      assert(shared() == before)
      return ''
    end)
    assert.is_nil(cause)
  end)

  it('has nothing to end on a rank that is no member', function()
    dist.spawn(2, function(rank)
      local group = dist.new_group { 0 }
      assert((group == false) == (rank == 1))
      dist.destroy_process_group(group)
      assert(dist.all_reduce(ms.ones(1)):item() == 2)
    end)
  end)

  it('takes no later group at the same place for the one that is gone', function()
    dist.spawn(1, function()
      for _ = 1, 50 do
        local gone = dist.fake { world = 2 }
        dist.destroy_process_group(gone)
        local later = dist.fake { world = 3 }
        checks.raises('ValueError', 'is a group that is gone', gone.size, gone)
        dist.destroy_process_group(later)
      end
    end)
  end)

  -- Each takes a group, and gives what is to go on without another that holds it.
  local HOLDERS = {
    loader = function(group)
      local loader = ms.data.Loader { tokens = ms.arange(64), batch = 1, context = 4,
        process_group = group }
      return function() loader:next() end
    end,
    ['model that has not run'] = function(group)
      local model = ms.fsdp.FSDP(ms.nn.Linear(4, 4), { process_group = group })
      return function() model(ms.ones(1, 4)):sum():backward() end
    end,
    optimizer = function(group)
      local model = ms.fsdp.FSDP(ms.nn.Linear(4, 4), { process_group = group })
      local opt = ms.optim.SGD(model:parameters(), { lr = 0.1 })
      return function()
        model(ms.ones(1, 4)):sum():backward()
        opt:step()
        opt:zero_grad()
      end
    end,
  }

  for name, holder in pairs(HOLDERS) do -- order does not matter
    it(('lets a %s go on that holds the group'):format(name), function()
      local _, cause = runs.reports(2, function()
        local before, group = shared(), dist.new_group()
        local go_on = holder(group)
        dist.destroy_process_group(group)
        go_on()
        go_on()
        dist.barrier(group) -- as long as it is there
        go_on = nil -- luacheck: ignore
        dist.barrier()
        ms.collect()
        checks.raises('ValueError', 'is a group that is gone', dist.barrier, group)
        assert(shared() == before)
        return ''
      end)
      assert.is_nil(cause)
    end)
  end

  it('leaves the job without a group, or with that of all ranks', function()
    for given = 1, 2 do
      dist.spawn(2, function()
        dist.destroy_process_group(given == 2 and dist.world() or nil)
        checks.raises('RuntimeError', 'has left its job', dist.barrier)
      end)
    end
  end)

  it('is told to who calls in it later', function()
    checks.raises('CommError', 'rank 1 freed the group', dist.spawn, 2, function(rank)
      local group = dist.new_group()
      if rank == 1 then
        dist.destroy_process_group(group)
      else
        dist.barrier(group)
      end
      dist.barrier()
    end)
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
