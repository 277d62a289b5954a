-- lua/moonshard/repl.lua: the prompt
local scripts = require 'support.scripts'
local shell = require 'support.shell'

-- What the prompt says to these lines, behind its greeting.
local function typed(lines, program)
  local path = os.tmpname()
  shell.write(path, table.concat(lines, '\n') .. '\n')
  local output, code = scripts.shell(("sh -c '%s <%s'"):format(
    program or 'bindings/moonshard repl', path))
  os.remove(path)
  assert.equal(0, code, output)
  return output:gsub('^[^\n]*\n', '', 1)
end

-- What a prompt prints that reads what `before` writes, is interrupted, and then gets a last line.
local function interrupted(before, last)
  return scripts.shell(([[sh -c '
    out=$(mktemp)
    { %s
      for i in $(seq 100); do grep -q interrupted $out && break; sleep 0.05; done
      echo "%s"
    } | bindings/moonshard repl >$out
    cat $out; rm $out']]):format(before, last))
end

describe('the prompt', function()
  it('prints what expressions give, and keeps globals', function()
    assert.equal('> > 3\n> 4\n> 5\tx\n> > nil\n> \n',
      typed { 'x = 3', 'x', '=x + 1', 'x + 2, "x"', 'local y = 1', 'y' })
  end)

  it('shows what is in a table', function()
    assert.equal('> { 3, 4 }\n> { a = 1, b = { x, {  } } }\n> 1\tnil\n> \n', typed {
      'ms.ones(3, 4):shape()', '{ b = { "x", {} }, a = 1 }', '1, nil',
    })
    local output = typed { 't = {} for i = 1, 30 do t[i] = i end', 't', 't.me = t', 't' }
    assert.truthy(output:find('^> > { 1, 2, .*, 20, ... }\n> > {'), output)
  end)

  it('reads on until a chunk is whole', function()
    assert.equal('> >> >> 1\n2\n> \n', typed { 'for i = 1, 2 do', '  print(i)', 'end' })
    assert.equal('> >> \n', typed { 'for i = 1, 2 do' })
  end)

  it('says in one line what is wrong, and goes on', function()
    assert.equal("> ValueError: size mismatch\n> stdin:1: attempt to index global 'nothing' (a nil "
      .. "value)\n> stdin:1: unexpected symbol near '='\n> 1\n> \n",
      typed { "ms.error('ValueError', 'size mismatch')", 'nothing.x = 1', 'x = = 3', '1' })
    assert.equal("> stdin:1: unexpected symbol near 'char(27)'\n> 1\n> \n",
      typed { '\27[Ax = 1', '1' })
    assert.equal("> > stdin:1: attempt to call method 'paramters' (a nil value), did you mean "
      .. "'parameters'?\n> \n", typed { 'm = ms.nn.ReLU()', 'm:paramters()' })
    local output = typed { 'l = ms.nn.Linear(3, 4)', 'l(ms.ones(2, 5))' }
    assert.truthy(output:find('^> > %a+Error: [^\n]*in forward of nn.Linear[^\n]*\n> \n$'), output)
  end)

  it('says what is wrong with a value that cannot be printed, or with such an error', function()
    assert.equal('> > stdin:1: boo\n> a table was raised, which cannot be told: stdin:1: boo\n'
      .. "> 1\n> \n", typed {
      "x = setmetatable({}, { __tostring = function() error('boo') end })", 'x', 'error(x)', '1',
    })
    assert.equal("> > stdin:1: attempt to call global 'print' (a nil value)\n> 1\n> \n",
      typed { 'print, tostring, io.write = nil', 'print(1)', '1' })
  end)

  it('ends when it cannot read any more', function()
    local path = os.tmpname()
    shell.write(path, 'string.match = nil\n1\n')
    local output, code = scripts.shell(("sh -c 'bindings/moonshard repl <%s'"):format(path))
    os.remove(path)
    assert.equal(1, code, output)
    assert.truthy(output:find("moonshard: [^\n]*attempt to call method 'match' %(a nil value%)\n$"),
      output)
  end)

  local pid = "pid = io.open('/proc/self/stat'):read('*n')"
  local kill = "k = io.popen('kill -INT ' .. pid)"

  it('goes on after an interrupt, as often as one comes', function()
    -- both while C runs: what is written goes out when it is closed, which waits for the shell
    local twice = "k = io.popen('read go; kill -INT ' .. pid .. '; kill -INT ' .. pid, 'w') "
      .. "k:write('go\\n') k:close() while true do end"
    assert.equal('> > ' .. ('> \ninterrupted\n'):rep(2) .. '> > \ninterrupted\n> 2\n> \n', typed {
      pid, 'x = 1', kill .. ' while true do end', twice,
      'function loop() for i = 1, 1e15 do ms.ones(2) end end', kill .. ' loop()', 'x + 1',
    })
  end)

  it('gives up what is being typed at an interrupt, and loses no line after it', function()
    local output = interrupted([[
      echo "x = 1"
      echo "k = io.popen(\"sleep 0.1; kill -INT \" .. io.open(\"/proc/self/stat\"):read(\"*n\"))"
      echo "function f("]], 'x + 41')
    assert.truthy(output:find('\n> > > >> \ninterrupted\n> 42\n> \n$'), output)
  end)

  it('goes on after an interrupt of what prints, and of a forward', function()
    assert.equal('> > > > > \ninterrupted\n> \ninterrupted\n> 1\n> \n', typed {
      pid, 'function loop() ' .. kill .. ' while true do end end',
      'x = setmetatable({}, { __tostring = loop })',
      "m = ms.nn.Module.extend('my.Loop')() m.forward = loop", 'x', 'm(ms.ones(1))', '1',
    })
  end)

  it('takes an error of the same text for what it is', function()
    assert.equal('> stdin:1: interrupted!\n> interrupted!\n> \n',
      typed { "error('interrupted!')", "error('interrupted!', 0)" })
  end)

  it('reads on after an interrupt of what reads', function()
    local output = interrupted([[
      echo "pid = io.open(\"/proc/self/stat\"):read(\"*n\")"
      echo "k = io.popen(\"sleep 0.1; kill -INT \" .. pid) io.read(\"*l\")"]], '41 + 1')
    assert.truthy(output:find('\n> > \ninterrupted\n> 42\n> \n$'), output)
  end)

  it('is ended by no interrupt that comes between two turns', function()
    scripts.with_script([[
      local interrupt = require 'moonshard_ffi.interrupt'
      local raise = require('ffi').C.raise
      jit.off()
      local function get(x) return x end
      print(interrupt.pcall(get, 1))
      raise(2)
      print(get 'outside')
      local ok, err = interrupt.pcall(get, 2)
      print(ok, interrupt.is(err), interrupt.pcall(get, 3))
    ]], function(path)
      local output, code = scripts.shell('luajit ' .. path)
      assert.equal(0, code, output)
      assert.equal('true\t1\noutside\nfalse\ttrue\ttrue\t3\n', output)
    end)
  end)

  it('has words for who seeks the way out', function()
    for _, word in ipairs { 'exit', 'quit', 'exit()', ' quit ; ' } do
      assert.equal('> ', typed { word, 'never' })
    end
    assert.truthy(typed { 'help' }:find('quit or Ctrl-D leaves', 1, true))
    assert.equal('> > 3\n> \n', typed { 'help = 3', 'help' })
  end)

  it('does not become several ranks, nor does that of luajit', function()
    for program, greeting in pairs {
      ['bindings/moonshard repl'] = '', luajit = 'ms = require "moonshard"\n',
    } do
      local path = os.tmpname()
      shell.write(path, greeting .. 'ms.dist.init { ranks = 2 }\nprint(ms.dist.rank() + 41)\n')
      local output, code = scripts.shell(("sh -c 'script -qec \"%s\" /dev/null <%s'"):format(
        program, path))
      os.remove(path)
      assert.equal(0, code, output)
      local text = 'RuntimeError: dist.init: a prompt cannot go on as 2 ranks'
      assert.truthy(output:find(text, 1, true), output)
      assert.truthy(output:find('> 41\r\n', 1, true), output)
    end
    assert.equal('> RuntimeError: dist.init: a prompt cannot go on as 2 ranks; put the script into '
      .. 'a file, or give dist.spawn a function\n> 41\n> \n',
      typed { 'ms.dist.init { ranks = 2 }', 'ms.dist.rank() + 41' })
  end)
end)
