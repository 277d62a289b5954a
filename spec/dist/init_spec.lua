-- lua/moonshard/dist/init.lua: scripts that become ranks
local scripts = require 'support.scripts'

local shell, with_script = scripts.shell, scripts.with_script

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

  it('makes a world of one for one rank', function()
    with_script([[
      local world = ms.dist.init{ ranks = 1 }
      print(world.rank, world.world_size, world.transport)
      ms.dist.barrier()
    ]], function(path)
      assert.equal('0\t1\tself\n', (shell('luajit ' .. path)))
    end)
  end)

  it('ends every rank when one raises', function()
    with_script([[
      local world = ms.dist.init{ ranks = 2 }
      if world.rank == 1 then error('boom') end
      ms.dist.barrier()
    ]], function(path)
      local output, code = shell('timeout 10 luajit ' .. path)
      assert.equal(1, code, output)
      assert.truthy(output:find('boom', 1, true), output)
      local cause = 'moonshard: rank 1 failed: ' .. path .. ':3: boom'
      assert.truthy(output:find(cause, 1, true), output)
    end)
  end)

  it('reports an uncaught error to the other ranks and in the summary', function()
    for _, start in ipairs { 'luajit', 'bindings/moonshard run -n 2',
      'bindings/moonshard run -n 2 --no-prefix luajit' } do
      with_script([[
        local world = ms.dist.init{ ranks = 2 }
        local function somewhere_deep() error('boom') end
        if world.rank == 1 then somewhere_deep() end
        local ok, err = pcall(ms.dist.barrier)
        io.stderr:write('told: ', err.message, '\n')
        error(err, 0)
      ]], function(path)
        local output, code = shell('timeout 20 ' .. start .. ' ' .. path)
        local line = 'rank 1 failed: ' .. path .. ':3: boom (pid '
        assert.equal(1, code, output)
        assert.truthy(output:find('told: ' .. line, 1, true), output)
        assert.truthy(output:find('moonshard: ' .. line, 1, true), output)
        local told = output:match('told: (.-)\n[^\n]*moonshard: rank 0: ')
        assert.truthy(told:find("in function 'somewhere_deep'", 1, true), output)
        assert.truthy(told:find('; this rank ', 1, true), output)
        -- once for who caught it, once in the summary: no rank prints it besides
        assert.equal(2, select(2, output:gsub("in function 'somewhere_deep'", '')), output)
      end)
    end
  end)

  it('fails a job whose ranks differ in dist.same, however they exit', function()
    for _, way in ipairs { '', 'os.exit(0)', 'os.exit(0, true)', 'ms.dist.exit()',
      'ms.dist.leave()' } do
      for same = 0, 1 do
        with_script(([[
          local world = ms.dist.init{ ranks = 2 }
          ms.dist.barrier()
          ms.dist.same('lr', %d == 1 and 0.1 or world.rank)
          %s
        ]]):format(same, way), function(path)
          local output, code = shell('timeout 20 luajit ' .. path)
          assert.equal(1 - same, code, way .. ': ' .. output)
          assert.equal(same == 1 and '' or 'moonshard: the ranks differ: lr is 0 on rank 0 and 1 '
            .. 'on rank 1 (found when they had left)\n', output)
        end)
      end
    end
  end)

  it('refuses another number of ranks than there are', function()
    for _, start in ipairs { 'luajit', 'bindings/moonshard run -n 2 --no-prefix' } do
      with_script([[
        local world = ms.dist.init { ranks = 2 }
        assert(ms.dist.init { ranks = 2 }.rank == world.rank)
        local ok, err = pcall(ms.dist.init, { ranks = 3 })
        if world.rank == 1 then print(err) end
      ]], function(path)
        local output, code = shell(start .. ' ' .. path)
        assert.equal(0, code, output)
        local text = "RuntimeError: dist.init: 'ranks' is 3, but this process is one of 2 already"
        assert.truthy(output:find(text, 1, true), output)
      end)
    end
    with_script([[
      ms.dist.barrier()
      print(pcall(ms.dist.run, { ranks = 2 }, print))
      print(pcall(ms.dist.spawn, 2, print))
      print(ms.dist.init { ranks = 1 }.world_size, ms.dist.init().world_size)
    ]], function(path)
      local output, code = shell('luajit ' .. path)
      assert.equal(0, code, output)
      local text = "false\tRuntimeError: dist.run: 'ranks' is 2, but this process is one of 1"
      assert.truthy(output:find(text, 1, true), output)
      assert.truthy(output:find('init comes first', 1, true), output)
      assert.truthy(output:find('rank 0 of 1 already, made so by a collective', 1, true), output)
      assert.truthy(output:find('\n1\t1\n', 1, true), output)
    end)
  end)

  it('ends by the signal that asked its ranks to stop', function()
    with_script([[
      local host = io.open('/proc/self/stat'):read('*n')
      ms.dist.spawn(2, function(rank)
        ms.dist.stop_requested() -- all catch signals from here on
        if rank == 0 then
          os.execute('kill -TERM ' .. host)
        end
        repeat until ms.dist.stop_requested()
        print('stopped')
      end)
      print('goes on')
    ]], function(path)
      local output, code = shell('luajit ' .. path)
      assert.equal(2, select(2, output:gsub('stopped\n', '')), output)
      assert.falsy(output:find('goes on', 1, true), output)
      assert.equal(128 + 15, code)
    end)
  end)

  it('cannot be used after ms.close()', function()
    with_script([[
      local ms = require 'moonshard'
      ms.dist.init { ranks = 2 }
      ms.dist.barrier()
      local t = ms.ones(1)
      ms.close()
      local _, released = pcall(t.item, t)
      assert(tostring(released):find("item: 't' was released by ms.close()", 1, true), released)
      local ok, e = pcall(ms.dist.all_reduce, ms.full({ 1 }, 1))
      assert(not ok and e.message:find('has left its job', 1, true))
      if ms.dist.rank() == 1 then
        error 'boom'
      end
    ]], function(path)
      local output, code = shell('luajit ' .. path .. ' 2>&1')
      assert.truthy(output:find('moonshard: rank 1: ', 1, true), output)
      assert.truthy(output:find('boom', 1, true), output)
      assert.equal(1, code)
    end)
  end)

  it('sends large data to other hosts by UCX with MS_NET=ucx', function()
    with_script([[
      local world = ms.dist.init()
      local t = ms.dist.all_reduce(ms.full({ 100000 }, world.rank + 1))
      print(world.transport, t:sum():item())
    ]], function(path)
      local command = 'env MS_TEST_HOSTS=2 MS_NET=ucx bindings/moonshard run -n 2 ' .. path
      local output, code = shell(command)
      if output:find('needs libmoonshard_ucx.so', 1, true) then
        return pending('libmoonshard_ucx.so is missing')
      end
      assert.equal(0, code, output)
      assert.truthy(output:find('shm+ucx\t300000\n', 1, true), output)
    end)
  end)

  it('meets on several hosts with standard input closed', function()
    with_script('print(ms.dist.init().transport)', function(path)
      assert.equal('shm+tcp\nshm+tcp\n',
        (shell(('sh -c "MS_TEST_HOSTS=2 luajit %s --ranks=2 <&-"'):format(path))))
    end)
  end)

  it('is not needed for rank() and world_size() under a launcher', function()
    with_script('print(ms.dist.rank(), ms.dist.world_size())', function(path)
      local output = shell('bindings/moonshard run -n 2 ' .. path)
      assert.truthy(output:find('%[rank 0[^\n]*%] 0\t2\n'), output)
      assert.truthy(output:find('%[rank 1[^\n]*%] 1\t2\n'), output)
      assert.equal('0\t1\n', (shell('luajit ' .. path)))
    end)
  end)
end)
