-- Activation checkpointing: the same bits with less memory.
local ms = require 'moonshard'
local nn, fsdp = ms.nn, ms.fsdp
local checks = require 'support.checks'
local wrap = require 'support.wrap'
local runs = require 'support.runs'
local scripts = require 'support.scripts'

local function net()
  ms.manual_seed(1)
  return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.GELU(), nn.Linear(8, 4)):materialize()
end

local function is_linear(m) return ms.is(m, nn.Linear) end

-- Hashes of everything that a backward gives.
local function gradients(module, call)
  ms.manual_seed(3)
  local x = ms.randn(6, 4):requires_grad_(true)
  local y = call(x * 2)
  y:square():sum():backward()
  local hashes = { x:grad():hash(), y:hash() }
  for p in module:parameters() do
    hashes[#hashes + 1] = p:grad():hash()
  end
  return hashes
end

describe('a checkpoint', function()
  it('gives the same bits, with dropout and tensors from outside', function()
    local m = net()
    local expected = gradients(m, m)
    local other = net()
    assert.same(expected, gradients(other, function(x) return nn.checkpoint(other, x) end))
    other = net()
    assert.same(expected, gradients(other, function(x)
      return nn.checkpoint(function() return other(x) end)
    end))
    other = nn.checkpoint(net(), { policy = is_linear })
    assert.same(expected, gradients(other, other))
    nn.checkpoint(other, { policy = is_linear }) -- they are wrapped already
    assert.same({ '0.weight', '0.bias', '3.weight', '3.bias' }, { unpack(other:state_dict()) })
    other[1].width = 8
    assert.equal(8, other[1].module.width)
    assert.is_true(ms.is(other[1].module, nn.Linear))
  end)

  it('gives the result that its function keeps', function()
    local m, keep = net(), {}
    local function call(x)
      keep.y = m(x)
      return keep.y
    end
    local y = nn.checkpoint(call, ms.ones(2, 4))
    assert.equal(y, keep.y)
    y:sum():backward()
    checks.raises('RuntimeError', 'run again by backward; return it or ms.keep it', function()
      return keep.y:sum()
    end)
  end)

  it('nests, and runs again over a retained graph', function()
    local m, other = net(), net()
    local function twice(module, call)
      ms.manual_seed(3)
      local y = call(ms.ones(2, 4)):sum()
      y:backward(nil, { retain_graph = true })
      y:backward()
      return module[1].weight:grad():hash()
    end
    local function nested(x)
      return nn.checkpoint(function() return nn.checkpoint(other, x) * 1 end)
    end
    assert.equal(twice(m, m), twice(other, nested))
  end)

  it('takes less memory', function()
    local function peak(checkpointed)
      local layers = {}
      for i = 1, 8 do
        layers[i] = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8), nn.Tanh())
        layers[i] = checkpointed and nn.checkpoint_wrapper(layers[i]) or layers[i]
      end
      local m = nn.Sequential(layers):materialize()
      collectgarbage()
      ms.reset_peak_memory()
      m(ms.ones(4096, 8)):sum():backward()
      return ms.memory().peak.activation
    end
    local whole = peak(false)
    assert.is_true(peak(true) < 0.6 * whole)
  end)

  it('takes known options, and may keep arguments in host memory', function()
    scripts.with_script([[
      local nn = ms.nn
      local function run(offloads)
        ms.manual_seed(2)
        local layers = {}
        for i = 1, 6 do
          layers[i] = nn.checkpoint_wrapper(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)),
            { offload_to_cpu = offloads })
        end
        local x = ms.ones(4096, 8):requires_grad_(true)
        local y = nn.Sequential(layers)(x):square():sum()
        ms.collect()
        local held, pinned = ms.memory().live.activation, ms.memory().pinned
        y:backward(nil, { retain_graph = true })
        y:backward()
        assert(ms.memory().pinned < 4096 * 8 * 4) -- the matrix library may have scratch there
        return x:grad():hash() .. layers[1][1].weight:grad():hash(), held, pinned
      end
      local expected, whole = run(false)
      local on_device = ms.ones(1):device() ~= 'cpu'
      local found, held, pinned = run(true)
      assert(found == expected)
      if on_device then
        assert(pinned >= 6 * 4096 * 8 * 4 and held < 0.5 * whole)
      end
      print 'through'
    ]], function(path)
      for _, place in ipairs { 'cpu', 'fake' } do
        local output = scripts.shell(('env MS_DEVICE=%s luajit %s'):format(place, path))
        assert.truthy(output:find 'through', output)
      end
    end)
    checks.raises('ValueError', "checkpoint_wrapper: unknown option 'offload_to_gpu', did you mean "
      .. "'offload_to_cpu'?", nn.checkpoint_wrapper, net(), { offload_to_gpu = true })
  end)

  it('works inside and around FSDP units', function()
    local function is_block(m) return ms.is(m, nn.TransformerBlock) end
    local function hash(model, rank)
      local opt = ms.optim.SGD(model:parameters(), { lr = 0.1, momentum = 0.9 })
      local ids = ms.tensor({ { 1, 2, 3, 4 }, { 4, 3, 2, rank } }, { dtype = 'i64' })
      ms.manual_seed(5)
      for _ = 1, 2 do
        model(ids, ids):backward()
        opt:step()
        opt:zero_grad()
      end
      return model:hash()
    end
    local function gpt()
      ms.manual_seed(1)
      return runs.gpt()
    end
    ms.dist.spawn(2, function(rank)
      local function wrapped(module, policy)
        return wrap(module, { auto_wrap_policy = fsdp.CustomPolicy(policy) })
      end
      local expected = hash(wrapped(gpt(), is_block), rank)
      local inside = nn.checkpoint(gpt(), { policy = is_block })
      assert.equal(expected, hash(wrapped(inside, function(m)
        return ms.is(m, nn.checkpoint_wrapper)
      end), rank))
      local around = wrapped(gpt(), is_block)
      nn.checkpoint(around.module, { policy = function(m) return ms.is(m, fsdp.FSDP) end })
      assert.equal(expected, hash(around, rank))
    end)
  end)

  it('wraps modules of an FSDP model before and after its first use', function()
    ms.dist.spawn(2, function(rank)
      for n = 0, 3 do
        local policy = n % 2 == 1 and fsdp.ModuleWrapPolicy { nn.Linear } or nil
        local norms = {}
        for when = 0, 2 do
          local module, runs_of = net(), 0
          module[1]:register_forward_hook(function() runs_of = runs_of + 1 end)
          local model = wrap(module, { auto_wrap_policy = policy, use_orig_params = n > 1 })
          for step = 1, 2 do
            if step == when then
              nn.checkpoint(model, { policy = is_linear })
            end
            runs_of = 0
            model:zero_grad()
            ms.manual_seed(3)
            model(ms.ones(6, 4) * (rank + 1)):square():sum():backward()
          end
          assert.equal(when > 0 and 2 or 1, runs_of)
          norms[when + 1] = model:clip_grad_norm_(math.huge):item()
        end
        assert.same({ norms[1], norms[1], norms[1] }, norms)
      end
    end)
  end)

  it('refuses written arguments and a forward that uses other parameters', function()
    local x, n, layers = ms.ones(2, 4):requires_grad_(true), 0, { nn.Linear(4, 4), nn.Linear(4, 4) }
    local h = x * 1
    local y = nn.checkpoint(layers[1], h)
    ms.no_grad(h.add_, h:detach(), 1)
    checks.raises('RuntimeError', 'argument 1 was modified by an in-place operation',
      y.backward, y:sum())
    y = nn.checkpoint(function(z)
      n = n + 1
      return layers[n](z)
    end, x * 1)
    checks.raises('RuntimeError', 'uses weight, which the forward did not', y.backward, y:sum())
  end)
end)
