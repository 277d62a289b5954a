-- lua/moonshard/dist.lua: functions run as ranks
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
      checks.raises('KeyError', "the world has no 'wrold_size', did you mean 'world_size'?",
        function() return dist.info().wrold_size end)
    end, 'x')
  end)

  it('raises CommError naming the rank that failed and its message', function()
    checks.raises('CommError', 'rank 1 failed', dist.spawn, 2, function(rank)
      if rank == 1 then
        ms.error('ValueError', 'this rank is unhappy')
      end
      dist.barrier()
    end)
    checks.raises('CommError', 'this rank is unhappy', dist.spawn, 2, function(rank)
      if rank == 1 then
        ms.error('ValueError', 'this rank is unhappy')
      end
      dist.barrier()
    end)
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

  it('refuses while tensors are live, and a number of ranks that is none', function()
    local x = ms.ones(1)
    checks.raises('RuntimeError', '1 tensors are live', dist.spawn, 2, function() end)
    x:release()
    checks.raises('ValueError', 'expected 1 or more', dist.spawn, 0, function() end)
  end)

  it('refuses what is no number of ranks and no function before it starts any', function()
    local wrong = {
      { 'ValueError', "'ranks' is 0, expected 1 or more", 0 },
      { 'ValueError', "'ranks' is -1, expected 1 or more", -1 },
      { 'TypeError', "'ranks' is 1.5, expected a whole number", 1.5 },
      { 'TypeError', "'ranks' is a string, expected a whole number", '2' },
      { 'TypeError', "'ranks' is a boolean, expected a whole number", false },
      { 'ValueError', "'ranks' is 129, expected 1 to 128", 129 },
      { 'ValueError', "'ranks' is 1000000000, expected 1 to 128", 1e9 },
    }
    for _, case in ipairs(wrong) do
      checks.raises(case[1], case[2], dist.spawn, case[3], function() end)
      checks.raises(case[1], case[2], dist.init, { ranks = case[3] })
      checks.raises(case[1], case[2], dist.run, { ranks = case[3] }, function() end)
    end
    checks.raises('TypeError', "'fn' is nil, expected a function", dist.spawn, 2)
    checks.raises('TypeError', "'fn' is a string, expected a function", dist.run, {}, 'x')
    checks.raises('TypeError', 'options are a number, expected a table', dist.init, 2)
    checks.raises('ValueError', "'code' is 256, expected 0 to 255", dist.exit, 256)
    checks.raises('TypeError', "'code' is a string", dist.exit, '1')
  end)

  it('names the nearest method of a module', function()
    local _, err = pcall(dist.spawn, 2, function()
      ms.nn.ReLU():named_paramters()
    end)
    assert.truthy(err.message:find("attempt to call method 'named_paramters' (a nil value), did "
      .. "you mean 'named_parameters'?", 1, true), err.message)
  end)

  it('brings the traceback of the rank that failed, and its process', function()
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
  it('tells the other ranks what was raised', function()
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
