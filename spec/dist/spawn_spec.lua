-- lua/moonshard/dist/init.lua: functions run as ranks
local ms = require 'moonshard'
local dist = ms.dist
local checks = require 'support.checks'
local scripts = require 'support.scripts'

local shell, with_script = scripts.shell, scripts.with_script

describe('dist.spawn', function()
  teardown(function()
    assert.equal(0, checks.live_handles())
  end)

  it('runs a function on every rank, with its arguments', function()
    dist.spawn(2, function(rank, world_size, extra)
      assert(world_size == 2 and extra == 'x')
      assert(dist.rank() == rank and dist.world_size() == 2)
      assert(dist.info().launcher == 'fork' and dist.info().transport == 'shm')
      assert(tostring(dist.init()) == ('rank %d of 2 (launcher fork, transport shm)'):format(rank))
    end, 'x')
  end)

  it('raises CommError naming the rank that failed and its message', function()
    local err = checks.raises('CommError', 'rank 1 failed', dist.spawn, 2, function(rank)
      if rank == 1 then
        ms.error('ValueError', 'this rank is unhappy')
      end
      dist.barrier()
    end)
    assert.truthy(err.message:find('this rank is unhappy', 1, true))
    checks.raises('CommError', 'spawn_spec.lua', dist.spawn, 2, function(rank)
      return rank.no_field.at_all
    end)
  end)

  it('raises CommError when a rank leaves with a code', function()
    checks.raises('CommError', 'rank 0 exited with code 3', dist.spawn, 2, function(rank)
      if rank == 0 then
        ms.ops.site('x') -- the library is in use
        os.exit(3)
      end
      dist.barrier()
    end)
  end)

  it('gives each rank a copy of the tensors', function()
    local x = ms.ones(1)
    dist.spawn(2, function(rank)
      x:mul_(rank + 2)
      assert.equal(5, dist.all_reduce(x:clone()):item())
    end)
    assert.equal(1, x:item())
    checks.raises('ValueError', 'expected 1 or more', dist.spawn, 0, function() end)
  end)

  it('raises the traceback and process of the rank that failed', function()
    local err = checks.raises('CommError', 'rank 1 failed', dist.spawn, 2, function(rank)
      local function somewhere_deep()
        error('boom')
      end
      if rank == 1 then
        somewhere_deep()
      end
      dist.barrier()
    end)
    assert.truthy(err.message:find('^rank 1 failed: [^\n]*spawn_spec.lua:%d+: boom %(pid %d+%)\n'))
    assert.truthy(err.message:find("in function 'somewhere_deep'", 1, true), err.message)
  end)
end)

describe('dist.run', function()
  it('reports an error to the other ranks', function()
    with_script([[
      ms.dist.run({ ranks = 2 }, function(world)
        if world.rank == 1 then ms.error('ValueError', 'bad value here') end
        ms.dist.barrier()
      end)
    ]], function(path)
      local output, code = shell('timeout 10 luajit ' .. path)
      assert.equal(1, code, output)
      assert.truthy(output:find('moonshard: rank 1 failed: ', 1, true), output)
      assert.truthy(output:find('ValueError: bad value here', 1, true), output)
      assert.truthy(output:find('stack traceback', 1, true), output)
    end)
  end)

  it('returns what the function returns', function()
    with_script([[
      print(ms.dist.run({ ranks = 1 }, function(world, x) return world.world_size, x end, 'y'))
    ]], function(path)
      assert.equal('1\ty\n', (shell('luajit ' .. path)))
    end)
  end)
end)
