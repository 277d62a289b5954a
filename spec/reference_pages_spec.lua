-- docs/reference/ and ms.help(): entries of all public names, made from the annotations
local ms = require 'moonshard'
local checks = require 'support.checks'
local reference = require 'moonshard.internal.reference'
local scripts = require 'support.scripts'
local shell = require 'support.shell'

describe('the reference', function()
  for _, name in ipairs(reference.PAGES) do
    it('of ' .. name .. ' describes every name, and its page is current', function()
      for _, entry in ipairs(reference.of_space(name, ms[name])) do
        assert.is_true(reference.is_described(entry), entry.name .. ' has no annotations')
      end
      assert.is_true(reference.page(name) == shell.read(('docs/reference/%s.md'):format(name)),
        'run ./dev docs')
    end)
  end

  it('has parameters, defaults, results, errors and sources', function()
    for name, lines in pairs { -- order does not matter
      ['nn.Linear'] = {
        'nn.Linear(in_features, out_features, opts?)', 'Shapes: x (..., in)',
        "  - `bias?` (boolean): add a learned bias (default true)", 'Called as `module(x)`:',
        'Source: `lua/moonshard/nn/linear.lua`',
      },
      ['ms.ops.narrow'] = {
        'ops.narrow(x, dim, start, length)', '- `IndexError: narrow: %d entries from %d exceed',
        '- ms.Tensor',
      },
      ['Tensor:cumsum'] = { 'Tensor:cumsum(x, dim)' },
      ['checkpoint.Manager:save'] = { 'checkpoint.Manager:save(opts)', '  - `step` (integer)' },
      ['ops.mm'] = { 'ops.mm(a, b)', 'a (M, K), b (K, N) -> (M, N)' },
      ['optim.lr_scheduler'] = { '\noptim.lr_scheduler.StepLR(optimizer, opts)' },
    } do
      local text = reference.help(name)
      for _, line in ipairs(lines) do
        assert.truthy(text:find(line, 1, true), ("no '%s' in:\n%s"):format(line, text))
      end
    end
    assert.equal(reference.help 'nn.Linear', reference.help(ms.nn.Linear))
    assert.equal(reference.help 'nn.Linear', reference.help(ms.nn.Linear(2, 2)))
    assert.equal(reference.help 'ops.cumsum', reference.help(ms.ops.cumsum))
    checks.raises('KeyError', "nothing is called 'nn.Linaer', did you mean 'nn.Linear'?", ms.help,
      'nn.Linaer')
    checks.raises('TypeError', "'what' is a number, expected a name", ms.help, 3)
  end)

  it('is shown at the prompt', function()
    assert.equal('class nn.Linear(in_features, out_features, opts)', tostring(ms.nn.Linear))
    local path = os.tmpname()
    shell.write(path, '=ms.ops.cumsum\n=print\nms.help("ops.cumsum")\n')
    local output = scripts.shell(("sh -c 'script -qec \"bindings/moonshard repl\" /dev/null <%s'")
      :format(path))
    os.remove(path)
    assert.truthy(output:find('function ops.cumsum(x, dim)', 1, true), output)
    assert.truthy(output:find('Source: `lua/moonshard/ops.lua`', 1, true), output)
  end)
end)
