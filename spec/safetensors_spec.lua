-- lua/moonshard/checkpoint: full parameters and any tensors as safetensors files
local ms = require 'moonshard'
local nn, fsdp, checkpoint = ms.nn, ms.fsdp, ms.checkpoint
local checks = require 'support.checks'
local runs = require 'support.runs'
local shell = require 'support.shell'
local folder, write, lines, hash_of = runs.folder, runs.write, runs.lines, runs.hash_of

describe('a safetensors file', function()
  local path

  before_each(function() path = os.tmpname() end)
  after_each(function()
    os.remove(path)
    checks.close_library()
  end)

  it('is the same from sharded ranks as from one', function()
    local expected = runs.alone(function()
      ms.manual_seed(1)
      return hash_of(runs.gpt())
    end)
    ms.dist.spawn(2, function()
      ms.manual_seed(1)
      checkpoint.export(path, fsdp.FSDP(runs.gpt(),
        { auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.TransformerBlock } }))
    end)
    ms.manual_seed(3)
    local model = runs.gpt()
    checkpoint.import(path, model)
    assert.equal(expected, hash_of(model))
  end)

  it('fails on all ranks when rank 0 cannot write it', function()
    local out = folder()
    ms.dist.spawn(2, function()
      local model = fsdp.FSDP(nn.Linear(2, 2))
      local _, err = pcall(checkpoint.export, '/dev/null/x', model)
      write(out, tostring(err))
      checkpoint.export(path, model)
    end)
    local all = lines(out)
    assert.same({ all[1], all[1] }, all)
    assert.equal('IOError: rank 0: write /dev/null/x: Not a directory', all[1])
    assert.truthy(checkpoint.read_safetensors(path).weight)
  end)

  it('is not a file of torch.save', function()
    local layer = nn.Linear(2, 2)
    for head, name in pairs {
      ['PK\3\4\0\0\8\8\0\0'] = 'a zip archive, as torch.save writes',
      ['\128\2\138\10l\252\156F\249 '] = 'a pickle, as torch.save wrote before',
    } do
      shell.write(path, head .. ('x'):rep(100))
      checks.raises('FormatError', ('%s: is %s, expected a safetensors file (in Python: '
        .. 'safetensors.torch.save_file(state_dict, path))'):format(path, name), checkpoint.import,
        path, layer)
    end
  end)

  it('holds full parameters, tied ones once', function()
    ms.manual_seed(1)
    local a = runs.gpt():materialize()
    checkpoint.export(path, a)
    ms.manual_seed(2)
    local b = runs.gpt():materialize()
    assert.not_equal(hash_of(a), hash_of(b))
    checkpoint.import(path, b)
    assert.equal(hash_of(a), hash_of(b))
    local names = checkpoint.read_safetensors(path)
    assert.truthy(names['wte.weight'])
    assert.is_nil(names['lm_head.weight'])
  end)

  it('is refused when it has two values for a tied parameter', function()
    local model = runs.gpt():materialize()
    local before = hash_of(model)
    local sd = model:state_dict()
    sd['lm_head.weight'] = sd['wte.weight'] + 1
    checkpoint.write_safetensors(path, sd)
    checks.raises('ValueError', path .. ": 'wte.weight' and 'lm_head.weight' are one parameter of "
      .. 'the model, but have two values', checkpoint.import, path, model)
    assert.equal(before, hash_of(model))
    sd['lm_head.weight'] = sd['wte.weight'] + 0
    checkpoint.write_safetensors(path, sd)
    checkpoint.import(path, model)
    assert.equal(before, hash_of(model))
  end)

  it('holds any tensors by name', function()
    checkpoint.write_safetensors(path, { b = ms.arange(3), a = ms.ones(2, 2, { dtype = 'bf16' }) })
    local sd = checkpoint.read_safetensors(path)
    assert.equal('bf16', sd.a:dtype())
    assert.same({ 0, 1, 2 }, sd.b:totable())
  end)

  it('loads what fits of another model, in another dtype', function()
    local a = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))
    local b = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 5))
    checkpoint.export(path, a, { dtype = 'bf16' })
    assert.equal('bf16', checkpoint.read_safetensors(path)['0.weight']:dtype())
    checks.raises('RuntimeError', 'size mismatch for 1.weight', checkpoint.import, path, b)
    local report = checkpoint.import(path, b, { strict = false, ignore_mismatched_sizes = true })
    assert.same({ '1.weight', '1.bias' }, report.mismatched_keys)
    assert.same(report.mismatched_keys, report.missing_keys)
    checks.close(a[1].weight:totable(), b[1].weight, 1e-2)
    os.remove(path)
  end)
end)
