-- lua/moonshard/{dist,cli}.lua and bindings/moonshard: ranks from Lua
local ms = require 'moonshard'
local dist = ms.dist
local checks = require 'support.checks'

--- Run a command line; gives its output and exit code.
local function shell(command)
  local pipe = io.popen('(' .. command .. ') 2>&1; echo "code $?"')
  local output = pipe:read('*a')
  pipe:close()
  local text, code = output:match('^(.*)code (%d+)\n$')
  return text, tonumber(code)
end

local function with_script(code, fn)
  local path = os.tmpname()
  os.remove(path)
  path = path .. '.lua'
  local file = assert(io.open(path, 'w'))
  file:write("local ms = require 'moonshard'\n", code)
  file:close()
  local ok, err = pcall(fn, path)
  os.remove(path)
  if not ok then
    error(err, 0)
  end
end

describe('dist.spawn', function()
  teardown(function()
    assert.equal(0, checks.live_handles())
  end)

  it('runs a function on every rank, with its arguments', function()
    dist.spawn(2, function(rank, world_size, extra)
      assert(world_size == 2 and extra == 'x')
      assert(dist.rank() == rank and dist.world_size() == 2)
      assert(dist.info().launcher == 'fork' and dist.info().transport == 'shm')
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
    checks.raises('CommError', 'dist_spec.lua', dist.spawn, 2, function(rank)
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
    checks.raises('ValueError', 'expected a whole number from 1', dist.spawn, 0, function() end)
  end)
end)

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

  it('refuse an unknown reduction', function()
    dist.spawn(1, function()
      checks.raises('ValueError', "unknown reduction 'mean'", dist.all_reduce, ms.ones(1), 'mean')
    end)
  end)

  it('that differ between ranks end on all of them', function()
    checks.raises('CommError', 'rank', dist.spawn, 2, function(rank)
      if rank == 0 then
        dist.barrier()
      else
        dist.all_reduce(ms.ones(1))
      end
    end)
  end)
end)

describe('dist.init', function()
  it('forks a plainly started script into ranks', function()
    with_script([[
      local world = ms.dist.init{ ranks = 2 }
      local t = ms.dist.all_reduce(ms.full({ 1 }, world.rank + 1))
      print(world.rank, world.world_size, t:item(), ms.dist.init().rank)
    ]], function(path)
      local output, code = shell('luajit ' .. path)
      assert.equal(0, code, output)
      assert.truthy(output:find('0\t2\t3\t0\n', 1, true), output)
      assert.truthy(output:find('1\t2\t3\t1\n', 1, true), output)
    end)
  end)

  it('is a world of one for one rank', function()
    with_script([[
      local world = ms.dist.init{ ranks = 1 }
      print(world.rank, world.world_size, world.transport)
      ms.dist.barrier()
    ]], function(path)
      assert.equal('0\t1\tself\n', (shell('luajit ' .. path)))
    end)
  end)

  it('ends every rank when one raises, and leaves with its code', function()
    with_script([[
      local world = ms.dist.init{ ranks = 2 }
      if world.rank == 1 then error('boom') end
      ms.dist.barrier()
    ]], function(path)
      local output, code = shell('timeout 10 luajit ' .. path)
      assert.equal(1, code, output)
      assert.truthy(output:find('boom', 1, true), output)
      assert.truthy(output:find('moonshard: rank 1 exited with code 1', 1, true), output)
    end)
  end)

  it('refuses unknown options', function()
    checks.raises('ValueError', "did you mean 'ranks'?", dist.init, { rank = 2 })
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

describe('the moonshard command', function()
  it('runs a script on ranks, with a prefix on every line', function()
    with_script([[
      local world = ms.dist.init()
      print('hello', world.rank, world.launcher, arg[1])
    ]], function(path)
      local output, code = shell('bindings/moonshard run -n 2 ' .. path .. ' --flag')
      assert.equal(0, code, output)
      assert.truthy(output:find('[rank 0] hello\t0\trun\t--flag\n', 1, true), output)
      assert.truthy(output:find('[rank 1] hello\t1\trun\t--flag\n', 1, true), output)
      output = shell('bindings/moonshard run --ranks=1 --no-prefix ' .. path)
      assert.equal('hello\t0\trun\tnil\n', output)
    end)
  end)

  it('passes the exit code of the first failure through', function()
    with_script('ms.dist.init() os.exit(ms.dist.rank() == 1 and 7 or 0)', function(path)
      local output, code = shell('bindings/moonshard run -n 2 ' .. path)
      assert.equal(7, code, output)
      assert.truthy(output:find('moonshard: rank 1 exited with code 7', 1, true), output)
    end)
  end)

  it('refuses what it does not understand', function()
    local output, code = shell('bindings/moonshard run --rank 2 x.lua')
    assert.equal(2, code)
    assert.truthy(output:find('unknown flag --rank, did you mean --ranks?', 1, true), output)
    output, code = shell('bindings/moonshard run -n two x.lua')
    assert.equal(2, code)
    assert.truthy(output:find('expected a whole number from 1, got two', 1, true), output)
    output, code = shell('bindings/moonshard run -n 2')
    assert.equal(2, code)
    assert.truthy(output:find('no script given', 1, true), output)
    assert.equal(2, select(2, shell('bindings/moonshard frobnicate')))
  end)

  it('tells its version and what it found', function()
    assert.equal('moonshard 0.1.0\n', (shell('bindings/moonshard --version')))
    assert.truthy((shell('bindings/moonshard info')):find('kernels   x86%-64%-v[234]'))
  end)
end)
