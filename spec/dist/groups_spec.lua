-- lua/moonshard/dist/init.lua: groups of ranks as values and arguments.
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

  it('is the last argument of every collective', function()
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
    checks.raises('TypeError', 'all_reduce: the group comes before a string, expected last',
      dist.all_reduce, ms.ones(1), group, 'avg')
    checks.raises('TypeError', 'in a group write group:rank()', dist.rank, group)
  end)

  it('is refused when it is false or destroyed', function()
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
end)

describe('dist.new_group', function()
  it('has the listed ranks, in the order of the job', function()
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

  it('fails when the ranks list different ones', function()
    checks.raises('CommError', "the ranks differ: ranks of new_group is 0 on rank 0 and 1 on "
      .. 'rank 1', dist.spawn, 2, function(rank)
      dist.new_group { rank }
    end)
  end)
end)

describe('dist.destroy_process_group', function()
  -- Number of shared mappings and open files of this process.
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
      dist.barrier() -- connects hosts
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

  -- Objects that hold a group. Each function returns one that uses its object.
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
        dist.barrier() -- connects hosts
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

  it('need not be called: what nothing uses goes', function()
    scripts.with_script([[
      local dist = ms.dist
      local rank = dist.init { ranks = 2 }.rank
      local model, handle
      local x = ms.ones(1):requires_grad_(true)
      local y = dist.functional.all_reduce(x, dist.new_group())
      do
        local group = dist.split(0)
        model = ms.fsdp.FSDP(ms.nn.Linear(4, 4), { process_group = group })
        handle = rank == 0 and dist.isend(ms.ones(3), 1, dist.new_group())
          or dist.irecv(ms.zeros(3), 0, dist.new_group())
      end
      for i = 1, 1000 do
        local one, other = dist.new_group(), dist.split(rank)
        if i % 100 == 0 then dist.barrier(one) end
      end
      handle:wait()
      y:backward() -- gradients add over both ranks
      assert(x:grad():item() == 2)
      model(ms.ones(1, 4)):sum():backward()
      ms.collect()
      dist.barrier()
      print 'through'
    ]], function(path)
      local output = scripts.shell(("sh -c 'ulimit -n 200 && exec luajit %s'"):format(path))
      assert.truthy(output:find('through.*through'), output)
    end)
  end)

  it('leaves the job without a group or with dist.world()', function()
    for given = 1, 2 do
      dist.spawn(2, function()
        dist.destroy_process_group(given == 2 and dist.world() or nil)
        checks.raises('RuntimeError', 'has left its job', dist.barrier)
      end)
    end
  end)

  it('fails a later call of another rank', function()
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
  it('names the call that made the process a world of one', function()
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
