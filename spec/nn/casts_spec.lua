-- lua/moonshard/nn/casts.lua: modules in another dtype. Tests with ranks come first: a process that
-- has opened its device cannot fork.
local ms = require 'moonshard'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim
local checks = require 'support.checks'
local runs = require 'support.runs'

local function model()
  ms.manual_seed(1)
  local m = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
  m:buffer('scale', ms.full({ 2 }, 1 / 3))
  m:buffer('count', ms.zeros(1, { dtype = 'i64' }))
  return m
end

local function values(m)
  local out = {}
  for i, p in ipairs(m:parameters()) do
    out[i] = p:detach():clone()
  end
  return out
end

describe('casting a module', function()
  teardown(function()
    assert.equal(0, checks.live_handles())
  end)

  it('comes before the first use of a wrapped model', function()
    local hash = runs.reports(1, function() return model():materialize():half():hash() end)[0]
    local reports = runs.reports(2, function()
      local m = fsdp.FSDP(model():materialize(), { use_orig_params = true })
      m:parameters() -- makes the units
      m:half()
      m(ms.ones(1, 3, { dtype = 'f16' })):sum():backward()
      local ok, err = pcall(m.double, m)
      return m:hash() .. ' ' .. tostring(ok) .. ' ' .. tostring(err)
    end)
    for rank = 0, 1 do
      assert.truthy(reports[rank]:find(hash .. ' false', 1, true), reports[rank])
      assert.truthy(reports[rank]:find('cast the model before its first use', 1, true),
        reports[rank])
    end
  end)

  it('casts parameters and floating buffers, and nothing else', function()
    local m = model():materialize()
    local before, params = values(m), m:parameters()
    for _, name in ipairs { 'double', 'half', 'bfloat16', 'float' } do
      local dtype = ({ double = 'f64', half = 'f16', bfloat16 = 'bf16', float = 'f32' })[name]
      assert.equal(m, m[name](m))
      for i, p in ipairs(m:parameters()) do
        assert.is_true(rawequal(params[i], p))
        assert.equal(dtype, p:dtype())
        assert.is_true(p:is_parameter() and p:requires_grad() and p:is_leaf())
        before[i] = before[i]:to(dtype)
        assert.equal(before[i]:hash(), p:hash())
      end
      assert.equal(dtype, m.scale:dtype())
      assert.equal('i64', m.count:dtype())
      assert.equal(dtype, m(ms.ones(1, 3, { dtype = dtype })):dtype())
    end
    checks.close(1 / 3, m.scale[1], 2e-3) -- as bf16 has it
  end)

  it("to() takes a dtype, a tensor, 'cpu', or a dtype and 'cpu'", function()
    local m = model():materialize()
    local weight = m[1].weight
    assert.equal(m, m:to 'cpu')
    assert.equal('f32', weight:dtype())
    assert.equal('f64', m:to('cpu', 'f64')[1].weight:dtype())
    assert.equal('f16', m:to('f16', 'cpu')[1].weight:dtype())
    assert.equal('bf16', m:to(ms.zeros(1, { dtype = 'bf16' }))[1].weight:dtype())
    checks.raises('TypeError', 'only accepts floating point dtypes, but got desired dtype=i64',
      m.to, m, 'i64')
    checks.raises('TypeError', "'dtype' is nil, expected a dtype such as ms.f16", m.to, m)
    checks.raises('TypeError', "got two dtypes, expected a dtype and 'cpu'", m.to, m, 'f16', 'f32')
    checks.raises('TypeError', 'got two devices', m.to, m, 'cpu', 'cpu')
    checks.raises('RuntimeError', "to: device = 'cuda', but the device of this process is 'cpu'",
      m.to, m, 'cuda')
    assert.equal('bf16', weight:dtype())
  end)

  it('gives the same values before and after materialize()', function()
    for _, dtype in ipairs { 'f16', 'bf16' } do
      local declared, drawn = model():to(dtype):materialize(), model():materialize():to(dtype)
      assert.equal(drawn:hash(), declared:hash())
    end
  end)

  it('casts gradients and works with an earlier optimizer', function()
    local m = model()
    local opt = optim.SGD(m:parameters(), { lr = 0.5 })
    m(ms.ones(1, 3)):sum():backward()
    local before, grads = values(m), {}
    for i, p in ipairs(m:parameters()) do
      grads[i] = p:grad():to('f64')
    end
    m:double()
    opt:step()
    for i, p in ipairs(m:parameters()) do
      assert.equal('f64', p:grad():dtype())
      checks.close((before[i]:to('f64') - grads[i] * 0.5):reshape(-1):totable(),
        p:detach():reshape(-1), 1e-15)
    end
  end)

  it('keeps ties', function()
    local m = nn.Sequential(nn.Linear(2, 2, { bias = false }), nn.Linear(2, 2, { bias = false }))
    m[2].weight = m[1].weight
    m:half()
    assert.is_true(rawequal(m[1].weight, m[2].weight))
    assert.equal(1, #m:parameters())
  end)

  it('is refused while a graph waits for its backward', function()
    local m = model():materialize()
    local out = m(ms.ones(1, 3))
    checks.raises('RuntimeError', 'a graph that waits for its backward holds 0.weight', m.half, m)
    assert.equal('f32', m[1].weight:dtype())
    assert.equal('f32', m.scale:dtype())
    out:sum():backward()
    m:half()
    m(ms.ones(1, 3, { dtype = 'f16' })) -- its graph is garbage
    m:float()
    assert.equal('f32', m[1].weight:dtype())
  end)
end)
