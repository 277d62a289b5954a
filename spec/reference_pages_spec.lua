-- docs/reference/ and ms.help(): entries of all public names, made from the annotations
local ms = require 'moonshard'
local checks = require 'support.checks'
local reference = require 'moonshard.reference'
local scripts = require 'support.scripts'
local shell = require 'support.shell'

reference.use(ms, 'moonshard.ms')

-- Names that scripts can reach from ms, and the methods of classes and tensors, as pages have them.
local function public_names(name, value, out)
  local meta = getmetatable(value)
  local is_class = type(value) == 'table' and type(rawget(value, '_name')) == 'string'
  if type(value) == 'table' and type(meta) == 'table' and rawget(meta, '_names') then
    for _, key in ipairs(meta._names()) do
      if not key:find '^_' then
        public_names(name == '' and key or name .. '.' .. key, value[key], out)
      end
    end
    return out
  end
  out[#out + 1] = name
  local hidden = { init = true, forward = true, extend = true, extra_repr = true }
  for key, method in next, is_class and value or {} do
    if type(method) == 'function' and not key:find '^_' and not hidden[key] then
      out[#out + 1] = ('%s:%s'):format(name, key)
    end
  end
  return out
end

describe('the reference', function()
  it('has current pages with every public name, and says something of each', function()
    local pages = {}
    for i, name in ipairs(reference.pages()) do
      pages[i] = shell.read(('docs/reference/%s.md'):format(name))
      assert.is_true(reference.page(name) == pages[i], name .. ': run ./dev docs')
      for _, entry in ipairs(reference.entries(name)) do
        assert.is_true(reference.is_described(entry), entry.name .. ' has no annotations')
      end
    end
    local text, names, found = table.concat(pages), public_names('', ms, {}), {}
    for key in next, require 'moonshard.tensor' do
      names[#names + 1] = 'Tensor:' .. key
    end
    for heading in text:gmatch '\n## ([^\n]+)' do
      for name in heading:gmatch '[^, ]+' do
        found[name] = true
      end
    end
    for name in text:gmatch '`([%a_][%w_.:]*)[`(:]' do
      found[name] = true
    end
    assert.is_true(#names > 600)
    for _, name in ipairs(names) do
      assert.is_true(found[name], 'no page has ' .. name)
    end
    for anchor in text:gmatch '%]%(%w+%.md#([%w_]+)%)' do
      assert.truthy(text:gsub('%.', ''):lower():find('\n## ' .. anchor .. '\n', 1, true), anchor)
    end
  end)

  it('has parameters, defaults, results and sources', function()
    for name, lines in pairs { -- order does not matter
      ['nn.Linear'] = {
        '`nn.Linear(in_features: integer, out_features: integer, opts?: nn.Linear.Options)`',
        'Shapes: x (..., in)', '- `bias?` (boolean): add a learned bias (default true)',
        '- called as `module(x: Tensor): Tensor`', 'Source: `lua/moonshard/nn/linear.lua`',
      },
      ['ms.ops.narrow'] = {
        '`ops.narrow(x: Tensor, dim: integer, start: integer, length: integer): Tensor`',
      },
      ['Tensor:cumsum'] = { '`Tensor:cumsum(dim: integer): Tensor` as `ops.cumsum(x, dim)`',
        'Cumulative sums along a dimension' },
      ['checkpoint.Manager:save'] = { 'save(opts: ', '- `step` (integer)', '- `optimizer?`' },
      ['fsdp.Options'] = { 'default: all ranks; a mesh of one dimension is its group' },
      ['optim.lr_scheduler'] = { '\noptim.lr_scheduler.StepLR(optimizer, opts)' },
      ['fsdp.FSDP'] = { '\nfsdp.FSDP:clip_grad_norm_(' },
      ['Error'] = { '- `kind` (string)' },
    } do
      local text = reference.help(name)
      for _, line in ipairs(lines) do
        assert.truthy(text:find(line, 1, true), ("no '%s' in:\n%s"):format(line, text))
      end
    end
    assert.is_nil(reference.help 'StateDict':find 'Tensor[:(]') -- its types are no parents
  end)

  it('is found by name, value, object and class, and gives an overview', function()
    local linear = reference.help 'nn.Linear'
    local Own = ms.nn.Linear.extend 'my.Own'
    for _, what in ipairs { 'ms.nn.Linear', ms.nn.Linear, ms.nn.Linear(2, 2), Own(2, 2) } do
      assert.equal(linear, reference.help(what))
    end
    assert.equal(reference.help 'ops.cumsum', reference.help(ms.ops.cumsum))
    assert.equal(reference.help 'Tensor', reference.help(ms.tensor(1)))
    assert.equal(reference.help 'optim.SGD',
      reference.help(ms.optim.SGD({ ms.ones(1, { requires_grad = true }) }, { lr = 1 })))
    assert.equal(reference.help 'optim', reference.help(ms.optim))
    local overview = reference.help()
    for _, name in ipairs { 'Tensor', 'nn', 'autograd', 'ema', 'device', 'schedule' } do
      assert.truthy(overview:find(('\n%s +%%u'):format(name)), name)
    end
    for name, near in pairs {
      ['nn.Linaer'] = "'nn.Linear'", cumsm = "'ops.cumsum', 'Tensor:cumsum'",
      FSPD = "'fsdp', 'fsdp.FSDP'", ['nn.MSE'] = "'nn.MSELoss', 'ops.mse_loss'",
      ['Tensor:bakward'] = "'Tensor:backward'",
    } do
      checks.raises('KeyError', ("nothing is called '%s', did you mean %s?"):format(name, near),
        ms.help, name)
    end
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
    assert.truthy(output:find('Source: `lua/moonshard/ops/init.lua`', 1, true), output)
  end)
end)
