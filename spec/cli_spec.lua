-- lua/moonshard/tools/cli.lua, rank.lua and bindings/moonshard: the command
local B = require 'moonshard_ffi'
local files = require 'support.shell'
local scripts = require 'support.scripts'

local shell, with_script = scripts.shell, scripts.with_script

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
      output = shell('bindings/moonshard run -n2 ' .. path .. ' -n 3')
      assert.truthy(output:find('[rank 1] hello\t1\trun\t-n\n', 1, true), output)
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

  it('refuses unknown flags and commands', function()
    local output, code = shell('bindings/moonshard run --rank 2 x.lua')
    assert.equal(2, code)
    assert.equal('moonshard: run: unknown flag --rank, did you mean --ranks?\n', output)
    local refused = {
      ['run --no-prefx x.lua'] = 'unknown flag --no-prefx, did you mean --no-prefix?',
      ['run --no-prefix=yes x.lua'] = '--no-prefix takes no value, got yes',
      ['run -n two x.lua'] = '-n is two, expected a whole number from 1 to 128',
      ['run -n'] = '-n is given nothing, expected a whole number from 1 to 128',
      ['run -n 2'] = 'no script given',
      ['rum -n 2 x.lua'] = 'unknown command rum, did you mean run?',
      ['run -n0 x.lua'] = '-n is 0, expected a whole number from 1 to 128',
      ['run README.md'] = 'run: README.md is no Lua script (.lua), nor a program on PATH',
      ['x.lua -n 2'] = 'unknown command x.lua: a script is started by moonshard run x.lua',
      ['run -n 2 /nowhere/x.lua'] = 'run: cannot read /nowhere/x.lua: No such file or directory',
      ['run --nnodes 2 x.lua'] = 'run: unknown flag --nnodes, ',
      ['repl x.lua'] = 'repl: unexpected word x.lua',
    }
    for words, message in pairs(refused) do
      output, code = shell('bindings/moonshard ' .. words)
      assert.equal(2, code, words)
      assert.truthy(output:find(message, 1, true), output)
      assert.equal(1, select(2, output:gsub('\n', '')), output)
    end
  end)

  it('has help for each command', function()
    for words, text in pairs {
      ['--help'] = 'moonshard COMMAND --help', ['-h'] = 'moonshard COMMAND --help',
      ['run --help'] = 'MS_COMM_TIMEOUT=600 ', ['run -n 2 -h x.lua'] = '--ranks RANKS',
      ['info --help'] = 'usage: moonshard info', ['doctor --help'] = 'usage: moonshard doctor',
      ['repl -h'] = 'usage: moonshard repl',
    } do
      local output, code = shell('bindings/moonshard ' .. words)
      assert.equal(0, code, output)
      assert.truthy(output:find(text, 1, true), output)
    end
    local output, code = shell('bindings/moonshard')
    assert.equal(2, code)
    assert.truthy(output:find('usage: moonshard run', 1, true), output)
  end)

  it('runs a script as luajit does', function()
    with_script([[
      print(arg[0], #arg, arg[1], arg[-1] ~= nil, select('#', ...), (...), debug.getinfo(1).source)
    ]], function(path)
      local words = path .. ' one two'
      local expected = shell('luajit ' .. words)
      assert.equal(expected, (shell('bindings/moonshard run -n 1 --no-prefix ' .. words)))
    end)
  end)

  it('names the signal that stopped it', function()
    local script = [[
      local ms = require 'moonshard'
      jit.off() -- compiled loops do not see what luajit makes of a SIGINT
      if ms.dist.init({ ranks = 2 }).rank == 0 then
        local stat = assert(io.open '/proc/self/stat'):read '*a'
        local reaper = stat:match('^%d+ %b() %S (%d+)')
        local of_reaper = assert(io.open('/proc/' .. reaper .. '/stat')):read '*a'
        ms.dist.barrier()
        io.popen('kill -SIGNAL ' .. of_reaper:match('^%d+ %b() %S (%d+)'))
      else
        ms.dist.barrier()
      end
      while true do
        ms.dist.barrier()
      end
    ]]
    for signal, told in pairs {
      TERM = { 143, '15 (Terminated)' }, INT = { 130, '2 (Interrupt)' },
    } do
      with_script(script:gsub('SIGNAL', signal), function(path)
        for _, command in ipairs { 'bindings/moonshard run -n 2 ', 'luajit ' } do
          local output, code = shell(command .. path)
          assert.equal(told[1], code, output)
          local cause = ('moonshard: stopped by signal %s, which ended rank '):format(told[2])
          assert.truthy(output:find(cause, 1, true), output)
          assert.is_nil(output:find('traceback', 1, true), output)
        end
      end)
    end
  end)

  it('starts ranks that cannot start others', function()
    with_script("print 'once' ms.dist.spawn(2, print)", function(path)
      local output, code = shell('bindings/moonshard run -n 2 ' .. path)
      assert.equal(1, code, output)
      assert.truthy(output:find('RuntimeError: cannot start ranks: this process is rank %d of 2 '
        .. 'already, started by moonshard run; run a script that starts its own with plain luajit'),
        output)
      assert.equal(0, select(2, output:gsub('%] %d\t2', '')), output)
      output = shell('bindings/moonshard run -n 1 ' .. path)
      assert.truthy(output:find('rank 0 of 1 already, started by moonshard run;', 1, true), output)
    end)
  end)

  it('reports errors of a script before dist.init', function()
    with_script('local x = = 3', function(path)
      local output, code = shell('bindings/moonshard run -n 2 ' .. path)
      assert.equal(1, code, output)
      assert.truthy(output:find('moonshard: rank %d failed: [^\n]*:2: unexpected symbol'), output)
    end)
    local output, code = shell('bindings/moonshard run -n 2 /nowhere/at-all')
    assert.equal(127, code)
    assert.truthy(output:find('cannot run /nowhere/at%-all: No such file or directory'), output)
  end)

  it('warns once of each wrong environment variable', function()
    local odd = {
      MS_LOG = { 'debug', "is 'debug', expected warn, info or trace; it is ignored" },
      MS_ONEDNN = { 'off', "is 'off', expected 0 or 1; it is ignored" },
      MS_SLOTS = { 'push', "is 'push', expected auto, shared, pull or nccl; it is ignored" },
      MS_PLUGIN_DIR = { '/nowhere', "is '/nowhere': /nowhere/libmoonshard_onednn.so: " },
      MS_CPU_ISA = { 'avx', '=avx: this machine has no such kernels (v2, v3, v4), using ' },
      MS_COMM_TIMEOUT = { '1h', "is '1h', expected a whole number; using 600" },
    }
    local variables = {}
    for name, case in pairs(odd) do
      variables[#variables + 1] = name .. '=' .. case[1]
    end
    with_script([[
      ms.dist.init { ranks = 2 }
      ms.dist.all_reduce(ms.matmul(ms.ones(64, 64), ms.ones(64, 64)))
      ms.fsdp.FSDP(ms.nn.Linear(2, 2))(ms.ones(1, 2))
    ]], function(path)
      for _, start in ipairs { 'luajit', 'bindings/moonshard run -n 2' } do
        local output, code = shell(('env %s %s %s'):format(table.concat(variables, ' '), start,
          path))
        assert.equal(0, code, output)
        for name, case in pairs(odd) do
          local said = 'moonshard: UserWarning: ' .. name .. (case[2]:find('^=') and '' or ' ')
            .. case[2]
          assert.truthy(output:find(said, 1, true), said .. '\n' .. output)
          assert.equal(1, select(2, output:gsub(name, '')), output)
        end
      end
    end)
  end)

  it('refuses an unknown MS_DEVICE', function()
    with_script('ms.dist.init { ranks = 2 } ms.ones(2)', function(path)
      for _, start in ipairs { 'luajit', 'bindings/moonshard run -n 2' } do
        local output, code = shell(('env MS_DEVICE=gpu %s %s'):format(start, path))
        assert.equal(1, code, output)
        assert.truthy(output:find("DeviceError: MS_DEVICE is 'gpu', expected cpu, cuda, plan or "
          .. 'fake', 1, true), output)
      end
    end)
  end)

  it('runs from an installed prefix', function()
    local prefix = os.tmpname()
    os.remove(prefix)
    local made = shell(('cmake --install %s --prefix %s'):format(B.folder, prefix))
    local bare = ('env -C / -i PATH=/usr/bin:/bin LD_PRELOAD="%s" ASAN_OPTIONS="%s" ')
      :format(os.getenv('LD_PRELOAD') or '', os.getenv('ASAN_OPTIONS') or '')
    local link = prefix .. '/moonshard'
    shell(('ln -s %s/bin/moonshard %s'):format(prefix, link))
    with_script([[
      local world = ms.dist.init()
      local x = ms.dist.all_reduce(ms.matmul(ms.ones(64, 64), ms.ones(64, 64)))
      print(world.rank, x:sum():item())
    ]], function(path)
      for _, program in ipairs { prefix .. '/bin/moonshard', link } do
        for _, script in ipairs { path, 'luajit ' .. path } do
          local output, code = shell(bare .. program .. ' run -n 2 ' .. script)
          assert.equal(0, code, made .. output)
          assert.truthy(output:find('[rank 0] 0\t524288\n', 1, true), output)
          assert.truthy(output:find('[rank 1] 1\t524288\n', 1, true), output)
        end
      end
      local output = shell(bare .. link .. ' info')
      assert.truthy(output:find('library   ' .. prefix .. '/lib\n', 1, true), output)
      local pages = prefix .. '/share/doc/moonshard/'
      for _, page in ipairs { 'README.md', 'SECURITY.md', 'LICENSE', 'docs/architecture.md' } do
        assert.equal(files.read(page), files.read(pages .. page))
      end
      local function pkg_config(words)
        return (shell(('env PKG_CONFIG_PATH=%s/lib/pkgconfig pkg-config %s moonshard'):format(
          prefix, words)):gsub('%s+$', ''))
      end
      local headers, lib = pkg_config '--variable=includedir', pkg_config '--variable=libdir'
      assert.equal(files.read 'runtime/include/moonshard.h', files.read(headers .. '/moonshard.h'))
      assert.truthy(io.open(lib .. '/libmoonshard.so'))
      assert.equal(('-I%s -L%s -lmoonshard'):format(headers, lib), pkg_config '--cflags --libs')
      assert.equal('0.1.0', pkg_config '--modversion')
      local found = ('LUA_PATH="%s/share/lua/5.1/?.lua;%s/share/lua/5.1/?/init.lua;;" ')
        :format(prefix, prefix)
      local sum = [[luajit -e 'print(require("moonshard").ones(2):sum():item())']]
      assert.equal('2\n', (shell(bare .. found .. sum)))
      shell(('mv %s/lib/lua %s/lib/elsewhere'):format(prefix, prefix))
      assert.equal('2\n', (shell(('%s%s LUA_CPATH="%s/lib/elsewhere/5.1/?.so;;" %s'):format(bare,
        found, prefix, sum))))
      local lost = shell(bare .. found .. sum)
      assert.truthy(lost:find('luajit: moonshard_lua.so is neither in ' .. prefix
        .. "/lib/lua/5.1 nor found by LUA_CPATH, expected '<its folder>/?.so;;' in LUA_CPATH\n", 1,
        true), lost)
    end)
    shell('rm -r ' .. prefix)
  end)

  it('prints its version and libraries', function()
    assert.equal('moonshard 0.1.0\n', (shell('bindings/moonshard --version')))
    assert.truthy((shell('bindings/moonshard info')):find('kernels   x86%-64%-v[234]'))
  end)
end)
