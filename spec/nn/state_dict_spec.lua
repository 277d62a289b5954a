-- lua/moonshard/nn/state_dict.lua: state_dict and load_state_dict
local ms = require 'moonshard'
local nn = ms.nn
local checks = require 'support.checks'
local RunningMean = require 'support.running_mean'

local function model()
  local m = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1, { bias = false }))
  m:buffer('count', ms.zeros(1))
  m:buffer('scratch', ms.zeros(1), { persistent = false })
  return m
end

describe('a state dict', function()
  teardown(function()
    assert.equal(0, checks.live_handles())
  end)

  it('lists names in order and tensors by name', function()
    local sd = model():state_dict()
    assert.same({ 'count', '0.weight', '0.bias', '1.weight' }, { unpack(sd) })
    assert.same({ 1, 2 }, sd['1.weight']:shape())
    assert.is_false(sd['0.weight']:requires_grad())
  end)

  it('shares memory with a plain module', function()
    local m = model()
    m:state_dict()['0.bias']:fill_(3)
    checks.close({ 3, 3 }, m[1].bias)
  end)

  it('lists a tied parameter under every name', function()
    local m = nn.Sequential(nn.Linear(2, 2, { bias = false }))
    m:append(nn.Linear(2, 2, { bias = false, weight = m[1].weight }))
    assert.same({ '0.weight', '1.weight' }, { unpack(m:state_dict()) })
  end)

  it('lists buffers of a shared module under every name, and loads them', function()
    local norm = nn.BatchNorm1d(2)
    local m = nn.Sequential(norm, norm)
    local sd = m:state_dict()
    assert.same({ -- of torch.nn.Sequential(norm, norm)
      '0.weight', '0.bias', '0.running_mean', '0.running_var', '0.num_batches_tracked',
      '1.weight', '1.bias', '1.running_mean', '1.running_var', '1.num_batches_tracked',
    }, { unpack(sd) })
    sd['1.running_var'] = ms.full({ 2 }, 3)
    m:load_state_dict(sd)
    checks.close({ 3, 3 }, norm.running_var)
  end)

  it('loads the state dict of another module', function()
    ms.manual_seed(1)
    local a = model():materialize()
    a.count:fill_(5)
    ms.manual_seed(2)
    local b = model():materialize()
    assert.not_equal(a:state_dict()['0.weight']:hash(), b:state_dict()['0.weight']:hash())
    local report = b:load_state_dict(a:state_dict())
    assert.same({ missing_keys = {}, unexpected_keys = {} }, report)
    assert.equal(a:state_dict()['0.weight']:hash(), b:state_dict()['0.weight']:hash())
    checks.close({ 5 }, b.count)
  end)

  it('is refused whole when an entry is missing, unexpected or misshapen', function()
    local m = model()
    local before = m:state_dict()['0.weight']:clone()
    local err = checks.raises('RuntimeError', 'error(s) in loading state dict for nn.Sequential',
      m.load_state_dict, m, {
        ['0.weight'] = ms.ones(2, 2), ['1.weight'] = ms.ones(3, 2), ['count'] = ms.ones(1),
        ['zebra'] = ms.ones(1),
      })
    assert.truthy(err.message:find('missing key(s) in state dict: 0.bias;', 1, true))
    assert.truthy(err.message:find('unexpected key(s) in state dict: zebra;', 1, true))
    assert.truthy(err.message:find('size mismatch for 1.weight: copying a parameter with shape '
      .. '(3, 2), the shape in the current model is (1, 2)', 1, true))
    assert.equal(before:hash(), m:state_dict()['0.weight']:hash())
  end)

  it('reports missing and unexpected keys with strict = false', function()
    local m = model()
    local report = m:load_state_dict({ ['0.bias'] = ms.full({ 2 }, 4), x = ms.ones(1) },
      { strict = false })
    assert.same({ 'count', '0.weight', '1.weight' }, report.missing_keys)
    assert.same({ 'x' }, report.unexpected_keys)
    checks.close({ 4, 4 }, m[1].bias)
  end)

  it('can be renamed in place', function()
    local m, sd = model(), {}
    for i, name in ipairs(m:state_dict()) do
      sd[i], sd['module.' .. name] = 'module.' .. name, m:state_dict()[name] + 1
    end
    local expected = sd['module.1.weight']:totable()
    for _, name in ipairs(sd) do
      sd[name:gsub('^module%.', '')], sd[name] = sd[name], nil
    end
    assert.same({ missing_keys = {}, unexpected_keys = {} }, m:load_state_dict(sd))
    assert.same(expected, m[2].weight:totable())
  end)

  describe('loads a buffer', function()
    it('that forward replaced', function()
      local m = RunningMean()
      for _ = 1, 2 do
        m(ms.ones(4, 2)):sum():backward()
      end
      local sd = { weight = ms.ones(2, 2), bias = ms.ones(2), mean = ms.tensor { 5, 6 } }
      m:load_state_dict(sd)
      checks.close({ 5, 6 }, m.mean)
      checks.close({ 1, 1 }, m.bias)
      sd.mean:fill_(0) -- does not share memory with the buffer
      checks.close({ 5, 6 }, m:state_dict()['mean'])
      m(ms.ones(4, 2)):sum():backward()
      checks.close({ 5 * 0.9 + 0.3, 6 * 0.9 + 0.3 }, m.mean)
    end)

    it('that requires grad, and keeps that', function()
      local m = model()
      m.count = ms.ones(1, { requires_grad = true })
      m:load_state_dict({ count = ms.full({ 1 }, 3) }, { strict = false })
      checks.close({ 3 }, m.count)
      assert.is_true(m.count:requires_grad() and m.count:is_leaf())
    end)
  end)

  it('changes nothing when one entry cannot be loaded', function()
    local m = model()
    m:materialize()
    local before = m:hash()
    checks.raises('RuntimeError', 'load_state_dict: the source of shape (2, 2) overlaps the tensor '
      .. 'of shape (2, 2)', m.load_state_dict, m, {
        ['0.bias'] = ms.ones(2), ['0.weight'] = m[1].weight:t(), ['1.weight'] = ms.ones(1, 2),
        count = ms.ones(1),
      })
    assert.equal(before, m:hash())
    checks.close({ 0 }, m.count)
  end)
end)
