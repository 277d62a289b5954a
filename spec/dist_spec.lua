-- lua/moonshard/dist.lua: ranks from Lua
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
    assert.truthy(err.message:find('^rank 1 failed: [^\n]*dist_spec.lua:%d+: boom %(pid %d+%)\n'))
    assert.truthy(err.message:find("in function 'somewhere_deep'", 1, true), err.message)
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
      local x = ms.ones(1)
      checks.raises('ValueError', "unknown reduction 'mean'", dist.all_reduce, x, 'mean')
      checks.raises('TypeError', "'reduction' is a boolean", dist.all_reduce, x, false)
      checks.raises('TypeError', "'reduction' is a number", dist.reduce_scatter, x, x, 1)
    end)
  end)

  it('refuse what is no tensor, no rank and no group', function()
    dist.spawn(1, function()
      local x = ms.ones(1)
      checks.raises('TypeError', "'t' is nil, expected a tensor", dist.all_reduce)
      checks.raises('TypeError', "'t' is a table, expected a tensor", dist.all_gather, { x })
      checks.raises('TypeError', "'out' is a number, expected a tensor", dist.all_gather, 1, x)
      checks.raises('TypeError', "'t' is a boolean, expected a tensor", dist.all_gather, x, false)
      checks.raises('TypeError', "'input' is nil", dist.reduce_scatter, x)
      checks.raises('TypeError', "'root' is a string", dist.broadcast, x, '0')
      checks.raises('TypeError', "'root' is 0.5", dist.broadcast, x, 0.5)
      checks.raises('ValueError', "'root' is -1", dist.broadcast, x, -1)
      checks.raises('ValueError', 'root', dist.broadcast, x, 1)
      checks.raises('TypeError', "'group' is a table, expected a group of ranks", dist.counts, {})
      checks.raises('TypeError', "'group' is a tensor", dist.counts, x)
    end)
  end)

  it('write into what requires grad where other writes do', function()
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

describe('dist.functional', function()
  local functional = dist.functional

  -- A model's numbers, and those of its gradient.
  local function of_two(fn)
    dist.spawn(2, function(rank)
      local x = ms.tensor({ rank + 1, 10 * (rank + 1) }, { dtype = 'f64' }):requires_grad_(true)
      fn(x, function(expected, y, weights, gradient)
        checks.close(expected, y)
        y:mul(ms.tensor(weights[rank + 1], { dtype = 'f64' })):sum():backward()
        checks.close(gradient[rank + 1], x:grad())
        x:set_grad(nil)
      end, rank)
    end)
  end

  it('makes new tensors and differentiates them by collectives', function()
    of_two(function(x, try, rank)
      local w = { { 1, 2 }, { 3, 5 } } -- of either rank
      try({ 3, 30 }, functional.all_reduce(x), w, { { 4, 7 }, { 4, 7 } })
      try({ 1.5, 15 }, functional.all_reduce(x, 'avg'), w, { { 2, 3.5 }, { 2, 3.5 } })
      try({ 2, 20 }, functional.broadcast(x, 1), w, { { 0, 0 }, { 4, 7 } })
      try({ rank == 0 and 3 or 30 }, functional.reduce_scatter(x), { { 1 }, { 3 } },
        { { 1, 3 }, { 1, 3 } })
      try({ rank == 0 and 1.5 or 15 }, functional.reduce_scatter(x, 'avg'), { { 1 }, { 3 } },
        { { 0.5, 1.5 }, { 0.5, 1.5 } })
      try({ 1, 10, 2, 20 }, functional.all_gather(x), { { 1, 2, 3, 4 }, { 10, 20, 30, 40 } },
        { { 11, 22 }, { 33, 44 } })
      checks.close({ rank + 1, 10 * (rank + 1) }, x)
      local counts = dist.counts()
      assert(counts.all_reduce == 2 * 2 + 1 and counts.broadcast == 1)
      assert(counts.all_gather == 1 + 2 and counts.reduce_scatter == 2 + 1)
    end)
  end)

  it('has no gradient of a maximum, nor of a minimum', function()
    of_two(function(x, _, rank)
      for reduction, expected in pairs { max = { 2, 20 }, min = { 1, 10 } } do
        local constant = x:detach()
        checks.close(expected, functional.all_reduce(constant, reduction))
        checks.close({ expected[rank + 1] }, functional.reduce_scatter(constant, reduction))
        for _, name in ipairs { 'all_reduce', 'reduce_scatter' } do
          local message = "%s: '%s' has no gradient, and x requires one; give it x:detach()"
          checks.raises('NotImplementedError', message:format(name, reduction), functional[name], x,
            reduction)
        end
      end
    end)
  end)

  -- (rows, 3), of which two ranks see one half each.
  local function normalised(x, sums, n)
    local mean = sums(x:sum(1)) / n
    local centred = x - mean
    return centred * (sums((centred ^ 2):sum(1)) / n + 1e-5) ^ -0.5
  end

  -- Operands and results of one process, as numbers.
  local function of_one_batch()
    ms.manual_seed(3)
    local rows, weights = ms.randn(6, 3, { dtype = 'f64' }), ms.randn(6, 3, { dtype = 'f64' })
    rows:requires_grad_(true)
    local y = normalised(rows, function(t) return t end, 6)
    y:mul(weights):sum():backward()
    return {
      rows = rows:totable(), weights = weights:totable(), y = y:totable(),
      grad = rows:grad():totable(),
    }
  end

  it('normalises over the rows of all ranks as over one batch, gradients too', function()
    local all = of_one_batch()
    ms.collect()
    dist.spawn(2, function(rank)
      local function own(name)
        return ms.tensor(all[name], { dtype = 'f64' }):narrow(1, 3 * rank + 1, 3)
      end
      local x = own('rows'):clone():requires_grad_(true)
      local mine = normalised(x, functional.all_reduce, 6)
      checks.close(own('y'):totable(), mine, 1e-12)
      mine:mul(own('weights')):sum():backward()
      checks.close(own('grad'):totable(), x:grad(), 1e-12)
    end)
  end)

  it('works in groups of some ranks', function()
    dist.spawn(4, function(rank)
      local pair = dist.split(rank % 2)
      local x = ms.full({ 1 }, 10 ^ rank):requires_grad_(true)
      local sum = rank % 2 == 0 and 101 or 1010
      local y = functional.all_reduce(x, nil, pair)
      checks.close({ sum }, y)
      y:mul(rank + 1):sum():backward()
      checks.close({ rank % 2 == 0 and 4 or 6 }, x:grad())
      checks.close(rank % 2 == 0 and { 1, 100 } or { 10, 1000 }, functional.all_gather(x, pair))
      checks.close({ rank % 2 == 0 and 100 or 1000 }, functional.broadcast(x, 1, pair))
      checks.close({ sum }, functional.reduce_scatter(ms.full({ 2 }, 10 ^ rank), 'sum', pair))
    end)
  end)

  it('refuses what is no tensor, no reduction, no rank and no group', function()
    dist.spawn(1, function()
      local x = ms.ones(3)
      checks.raises('TypeError', "all_reduce: 'x' is nil, expected a tensor", functional.all_reduce)
      checks.raises('ValueError', "unknown reduction 'mean'", functional.all_reduce, x, 'mean')
      checks.raises('TypeError', "'group' is a table, expected a group of ranks",
        functional.all_gather, x, {})
      checks.raises('ValueError', "'root' is -1", functional.broadcast, x, -1)
      checks.raises('ValueError', 'broadcast: root is 1, expected 0 to 0', functional.broadcast, x,
        1)
      checks.raises('ValueError', 'reduce_scatter: x has shape (), expected a first size that 1 '
        .. 'divides', functional.reduce_scatter, x:sum())
      checks.raises('KeyError', 'write dist.functional.all_gather(x)', function()
        return functional.all_gather_tensor
      end)
    end)
  end)

  it('is an error on all ranks when one does not differentiate', function()
    checks.raises('CommError', 'all_reduce(f32 (1), sum)', dist.spawn, 2, function(rank)
      local y = functional.all_reduce(ms.ones(1):requires_grad_(true))
      if rank == 0 then
        y:sum():backward()
      end
      dist.barrier()
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

  it('warns a process that another launcher started as one of several', function()
    local plain = 'print(ms.dist.init({ ranks = %d }).world_size)'
    local shards = 'ms.fsdp.FSDP(ms.nn.Linear(2, 2)) print(1)'
    local function said(variables, code, start)
      local text
      with_script(code, function(path)
        text = shell(('env %s %s %s'):format(variables, start or 'luajit', path))
      end)
      return select(2, text:gsub('is no rank of a job', '')), text
    end
    local torchrun, srun = 'WORLD_SIZE=2 RANK=0', 'SLURM_NTASKS=4 SLURM_PROCID=1'
    for _, ranks in ipairs { 1, 2 } do
      local n, text = said(torchrun, plain:format(ranks))
      assert.equal(1, n, text)
      assert.truthy(text:find('WORLD_SIZE is 2 and RANK is 0, but', 1, true), text)
      assert.truthy(text:find('moonshard run -n 2\n', 1, true), text)
    end
    local n, text = said(srun, shards .. ' ' .. shards)
    assert.equal(1, n, text)
    assert.truthy(text:find('moonshard run -n 4\n', 1, true), text)
    assert.equal(1, (said(srun, 'ms.dist.spawn(2, function() ms.dist.init() end)')))
    for _, mpi in ipairs {
      'OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0', 'PMI_SIZE=2 PMI_RANK=1',
    } do
      assert.equal(1, (said(mpi, shards)), mpi)
    end

    assert.equal(0, (said(torchrun, 'print(ms.ones(2))')))
    assert.equal(0, (said('WORLD_SIZE=1 RANK=0', shards)))
    assert.equal(0, (said('WORLD_SIZE=2', shards)))
    assert.equal(0, (said('SLURM_NTASKS=4 SLURM_PROCID=0', shards))) -- as in a batch script
  end)

  it('and our own launcher, for all its ranks', function()
    local function said(variables)
      local text
      with_script('ms.dist.init() ms.fsdp.FSDP(ms.nn.Linear(2, 2)) print(1)', function(path)
        text = shell(('env %s bindings/moonshard run -n 2 %s'):format(variables, path))
      end)
      return text
    end
    for variables, what in pairs {
      ['SLURM_NTASKS=3 SLURM_PROCID=1 SLURM_NNODES=2 SLURM_NODEID=1'] =
        'SLURM_NTASKS is 3 and SLURM_PROCID is 1',
      ['WORLD_SIZE=3 RANK=1 LOCAL_RANK=1'] = 'WORLD_SIZE is 3 and RANK is 1',
    } do
      local text = said(variables)
      local _, times = text:gsub('is no rank of a job', '')
      assert.equal(1, times, text)
      assert.truthy(text:find('moonshard: UserWarning: ' .. what .. ', but', 1, true), text)
    end
    assert.is_nil(said('WORLD_SIZE=1 RANK=0'):find('is no rank of a job'))
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
      local cause = 'moonshard: rank 1 failed: ' .. path .. ':3: boom'
      assert.truthy(output:find(cause, 1, true), output)
    end)
  end)

  it('tells the other ranks and the summary what a script does not catch', function()
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

  it('ends with an error when ranks had said different things, however they left', function()
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

  it('prints a traceback once when all ranks raise the same, and each when they do not', function()
    for same = 0, 1 do
      with_script(([[
        local world = ms.dist.init{ ranks = 3 }
        local function somewhere_deep() error(%d == 1 and 'boom' or 'boom ' .. world.rank) end
        somewhere_deep()
      ]]):format(same), function(path)
        local output = shell('timeout 20 luajit ' .. path)
        local _, times = output:gsub("in function 'somewhere_deep'", '')
        assert.equal(same == 1 and 1 or 3, times, output)
      end)
    end
  end)

  it('prints lines of ranks when they are whole, though a pipe takes them', function()
    for _, start in ipairs { 'luajit', 'bindings/moonshard run -n 2',
      'bindings/moonshard run -n 2 --no-prefix' } do
      with_script([[
        local world = ms.dist.init{ ranks = 2 }
        if world.rank == 0 then
          print('a line')
          local last = ms.time() + 20
          local file
          repeat file = io.open(arg[1]) until file or ms.time() > last
          print(file and 'was read at once' or 'was read late')
        end
      ]], function(path)
        local pipe = io.popen(start .. ' ' .. path .. ' ' .. path .. '.read')
        local line = pipe:read('*l')
        io.open(path .. '.read', 'w'):close()
        local rest = pipe:read('*a')
        pipe:close()
        os.remove(path .. '.read')
        assert.truthy(line:find('a line', 1, true), line)
        assert.truthy(rest:find('was read at once', 1, true), rest)
      end)
    end
  end)

  it('refuses names that the module does not have', function()
    checks.raises('KeyError', "dist has no 'all_reduec', did you mean 'all_reduce'?", function()
      return dist.all_reduec
    end)
    checks.raises('KeyError', "dist has no 'get_rank'; write dist.rank", function()
      return dist.get_rank
    end)
  end)

  it('refuses another number of ranks than there are, and names both', function()
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

  it('lets a script whose ranks were asked to stop end by that signal', function()
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

  it('brings back no rank that has left', function()
    dist.spawn(2, function(rank)
      dist.leave()
      assert(dist.rank() == rank and not dist.info().initialized)
      for _, opts in ipairs { {}, { ranks = 2 } } do
        checks.raises('RuntimeError', 'dist.init: this rank has left its job', dist.init, opts)
      end
    end)
  end)

  it('is not needed to know the rank that a launcher gave', function()
    with_script('print(ms.dist.rank(), ms.dist.world_size())', function(path)
      local output = shell('bindings/moonshard run -n 2 ' .. path)
      assert.truthy(output:find('[rank 0] 0\t2\n', 1, true), output)
      assert.truthy(output:find('[rank 1] 1\t2\n', 1, true), output)
      assert.equal('0\t1\n', (shell('luajit ' .. path)))
    end)
  end)

  it('refuses unknown options', function()
    checks.raises('ValueError', "did you mean 'ranks'?", dist.init, { rank = 2 })
    checks.raises('ValueError', "'timeout' is no option; MS_COMM_TIMEOUT=SECONDS in the "
      .. 'environment', dist.init, { timeout = 30 })
  end)
end)

describe('an error that a script does not catch', function()
  -- By what rank 1 raises: what the summary says of it. All ranks print one line.
  local raised = {
    ['error(nil)'] = 'nil was raised',
    ['error({ 1 })'] = 'a table was raised, not a message',
    ["error(setmetatable({}, { __tostring = function() error('mute', 0) end }))"] =
      'a table was raised, which cannot be told: mute',
    ["error(('z'):rep(5e6), 0)"] = ('z'):rep(1500) .. '...',
    ["error('\\27[31mred\\r\\0end', 0)"] = '\\x1b[31mred\\x0d\\x00end',
    ["error(('z\\n'):rep(5e6), 0)"] = 'z',
  }

  it('reaches the summary whatever it is, and peers say so in a line', function()
    for _, start in ipairs { 'luajit', 'bindings/moonshard run -n 2 --no-prefix' } do
      for code, said in pairs(raised) do
        with_script(([[
          local world = ms.dist.init { ranks = 2 }
          if world.rank == 1 then %s end
          ms.dist.barrier()
        ]]):format(code), function(path)
          local output, status = shell('timeout 20 ' .. start .. ' ' .. path)
          assert.equal(1, status, output)
          local cause = 'moonshard: rank 1 failed: ' .. said .. ' (pid '
          local before, summary = output:match('^(.-)(' .. cause:gsub('%p', '%%%0') .. '.*)$')
          assert.truthy(summary, output:sub(1, 3000))
          assert.is_true(#summary < 4096)
          assert.equal(2, select(2, before:gsub('\n', '')), before)
          assert.falsy(output:find('[%z\1-\8\11-\31]'))
        end)
      end
    end
  end)

  it('reaches the summary though the stack has overflown', function()
    with_script([[
      local world = ms.dist.init { ranks = 2 }
      local function f() return 1 + f() end
      if world.rank == 1 then f() end
      ms.dist.barrier()
    ]], function(path)
      local output, code = shell('timeout 20 bindings/moonshard run -n 2 ' .. path)
      assert.equal(1, code, output)
      assert.truthy(output:find('moonshard: rank 1 failed: [^\n]*stack overflow %(pid '), output)
    end)
  end)

  it('reaches the summary though memory is out', function()
    with_script([[
      ms.dist.run({ ranks = 2 }, function(world)
        if world.rank == 1 then ('x'):rep(2 ^ 31 - 1) end -- more than Lua can have
        ms.dist.barrier()
      end)
    ]], function(path)
      for _, start in ipairs { 'luajit', 'bindings/moonshard run -n 2' } do
        local output, code = shell('timeout 20 ' .. start .. ' ' .. path)
        assert.equal(1, code, output)
        local cause = 'moonshard: rank 1 failed: not enough memory (pid '
        assert.truthy(output:find(cause, 1, true), output)
      end
    end)
  end)

  it('names the process that left though others needed it', function()
    with_script([[
      local world = ms.dist.init { ranks = 2 }
      if world.rank == 1 then os.exit(0) end
      ms.dist.barrier()
    ]], function(path)
      local output, code = shell('timeout 20 luajit ' .. path)
      assert.equal(1, code, output)
      local cause = 'moonshard: rank 1 left the job %(pid %d+%) while others needed it\n'
      assert.truthy(output:find(cause), output)
      assert.equal(2, select(2, output:gsub('\n', '')), output)
    end)
  end)

  it('in a forward is told once, with its stack', function()
    with_script([[
      local Bad = ms.nn.Module.extend('Bad')
      function Bad:forward() error('in the middle') end
      local world = ms.dist.init { ranks = 4 }
      if world.rank == 2 then Bad()(ms.ones(1)) end
      ms.dist.barrier()
    ]], function(path)
      local output, code = shell('timeout 20 luajit ' .. path)
      assert.equal(1, code, output)
      assert.equal(1, select(2, output:gsub('stack traceback:', '')), output)
      for line in output:match('^(.-)moonshard: rank 2 failed'):gmatch('[^\n]+') do
        assert.truthy(line:find('^moonshard: rank %d: '), output)
      end
    end)
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

describe('numbers that ranks note', function()
  it('are eight at most', function()
    local notes = require 'moonshard_ffi.notes'
    checks.raises('ValueError', "'n_numbers' is 9, expected at most 8", notes.numbers, dist.world(),
      'x', 'a', { 1, 2, 3, 4, 5, 6, 7, 8, 9 })
  end)
end)
