-- The prompt: `moonshard repl` and `luajit -i`
local scripts = require 'support.scripts'
local shell = require 'support.shell'

-- Output of a program that reads these lines from a terminal.
local function typed(program, lines)
  local path = os.tmpname()
  shell.write(path, table.concat(lines, '\n') .. '\n')
  local output, code = scripts.shell(("sh -c 'script -qec \"%s\" /dev/null <%s'"):format(program,
    path))
  os.remove(path)
  assert.equal(0, code, output)
  return output
end

describe('the prompt', function()
  it('prints what expressions give, and goes on after an error', function()
    for program, first in pairs {
      ['bindings/moonshard repl'] = 'x = 1', ['luajit -i'] = 'ms = require "moonshard"',
    } do
      local output = typed(program, { first, '=ms.ones(2, 2)', 'ms.error("ValueError", "odd")',
        'ms.zeroes(2)', '=ms.ones(3):sum():item() + 39' })
      assert.truthy(output:find('[1., 1.]]', 1, true), output)
      assert.truthy(output:find('ValueError: odd', 1, true), output)
      assert.truthy(output:find("did you mean 'zeros'?", 1, true), output)
      assert.truthy(output:find('42\r\n', 1, true), output)
    end
  end)

  it('shows expressions, and the contents of lists and shapes', function()
    local output = typed('bindings/moonshard repl', {
      't = { 1, { a = "b", [3] = true } }', 't', 'ms.ones(2, 3):shape()', '1 +', '2, nil -- both',
      'for i = 1, 2 do', 'print("step", i) end', 'nn.Linear(2, 3)', 'optim.SGD', 'x = = 2' })
    for _, line in ipairs {
      '{1, {[3] = true, a = "b"}}', '{2, 3}', '3\tnil', 'step\t2',
      'Linear(in_features=2, out_features=3, bias=true)', 'class optim.SGD(params, opts)',
      "stdin:1: unexpected symbol near '='" } do
      assert.truthy(output:find(line .. '\r\n', 1, true), line .. ' in:\n' .. output)
    end
  end)

  it('goes on after Ctrl-C', function()
    local output = typed('bindings/moonshard repl', {
      "pid = io.open('/proc/self/stat'):read('*n')",
      "k = io.popen('kill -INT ' .. pid) while true do end",
      "k = io.popen('kill -INT ' .. pid) while true do end", '=40 + 2' })
    assert.equal(2, select(2, output:gsub('interrupted!\r\n', '')), output)
    assert.truthy(output:find('42\r\n', 1, true), output)
  end)

  it('does not become several ranks', function()
    local output = typed('bindings/moonshard repl', { 'ms.dist.init { ranks = 2 }',
      '=ms.dist.init { ranks = 2 }', '=ms.dist.rank() + 41' })
    local _, refused = output:gsub('RuntimeError: dist.init: a prompt cannot go on as 2 ranks', '')
    assert.equal(2, refused, output)
    assert.truthy(output:find('41\r\n', 1, true), output)
  end)
end)

describe('Ctrl-C', function()
  it('ends a script with its traceback', function()
    scripts.with_script([[
      local ms = require 'moonshard'
      jit.off()
      io.popen('kill -INT ' .. io.open('/proc/self/stat'):read('*n'))
      ms.no_grad(function() while true do end end)
    ]], function(path)
      local output, code = scripts.shell('luajit ' .. path)
      assert.not_equal(0, code)
      assert.truthy(output:find('interrupted!\nstack traceback:', 1, true), output)
    end)
  end)
end)
