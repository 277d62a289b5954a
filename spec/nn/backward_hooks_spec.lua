-- Hooks on the backward of modules, alone and sharded. Values are PyTorch's.
local ms = require 'moonshard'
local nn, fsdp = ms.nn, ms.fsdp
local checks = require 'support.checks'
local reference = require 'support.reference'

local function leaf(...)
  return ms.ones(...):requires_grad_(true)
end

-- Entries as nested tables; false stays.
local function numbers(grads)
  local out = {}
  for i = 1, grads.n do
    out[i] = grads[i] and grads[i]:totable()
  end
  return out
end

-- Hooks triple what the first layer gets and double what the last one passes on. `log` gets what
-- they saw.
local function model_of(log, wrap)
  local model = nn.Sequential(nn.Linear(2, 3, { bias = false }), nn.Tanh(), nn.Linear(3, 2))
    :materialize()
  for i, p in ipairs(model:parameters()) do
    ms.no_grad(p.copy_, p, ms.arange(p:numel()):to('f32'):reshape(p:shape()) / 10 + i - 1)
  end
  model = wrap(model)
  model[1]:register_full_backward_pre_hook(function(_, out) return { out[1] * 3 } end)
  model[3]:register_full_backward_hook(function(_, into, out)
    log[#log + 1] = { numbers(into), numbers(out) }
    return into[1] * 2
  end)
  model:register_full_backward_hook(function(_, into) log[#log + 1] = numbers(into) end)
  return model
end

local function run(model, x)
  model(x):square():sum():backward()
  return x:grad():totable()
end

-- Units of the layers and of what is left, by a strategy of FSDP or in place.
local function sharded(model, strategy)
  if strategy == 'composable' then
    return fsdp.composable(model, { auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Linear } })
  end
  return reference.wrap(model, {
    sharding_strategy = strategy, auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Linear },
  })
end

describe('backward hooks of sharded modules', function()
  for _, strategy in ipairs { 'composable', unpack(reference.STRATEGIES) } do
    it('see and replace what those of the plain module do, with ' .. strategy, function()
      ms.dist.spawn(2, function()
        local plain_log, log = {}, {}
        local plain = model_of(plain_log, function(model) return model end)
        local expected = run(plain, leaf(2, 2))
        local model = model_of(log, function(model) return sharded(model, strategy) end)
        checks.close(expected, run(model, leaf(2, 2)))
        checks.close(plain_log, log)
        fsdp.summon_full_params(model, { with_grads = true }, function()
          local wrapped = model:named_parameters()
          for i, entry in ipairs(plain:named_parameters()) do
            checks.close(entry.tensor:grad():totable(), wrapped[i].tensor:grad())
          end
        end)
      end)
    end)
  end
end)

describe('backward hooks', function()
  teardown(function() assert.equal(0, checks.live_handles()) end)

  it('get gradients of arguments and results', function()
    local Two = nn.Module.extend 'Two'
    function Two:forward(a, b, k, c) return a * k, b * 2, 3, c:detach() end
    local module, seen = Two(), {}
    module:register_full_backward_pre_hook(function(m, out)
      assert.equal(module, m)
      seen.pre = numbers(out)
    end)
    module:register_full_backward_hook(function(m, into, out)
      assert.equal(module, m)
      seen.into, seen.out = numbers(into), numbers(out)
    end)
    local a, b = leaf(2), leaf(2)
    local x = module(a, b, 5, ms.ones(2))
    x:sum():backward()
    assert.same({ { 1, 1 }, false, false, false }, seen.pre)
    assert.same(seen.pre, seen.out)
    assert.same({ { 5, 5 }, { 0, 0 }, false, false }, seen.into)
    assert.same({ 5, 5 }, a:grad():totable())
    assert.same({ 0, 0 }, b:grad():totable())
  end)

  it('replace gradients, in order, until they are removed', function()
    local layer, seen = nn.Linear(2, 1, { bias = false, init = nn.init.ones() }), nil
    layer:register_full_backward_pre_hook(function(_, out) return { out[1] * 3 } end)
    layer:register_full_backward_hook(function(_, into, out)
      seen = { numbers(into), numbers(out) }
      return { false }
    end)
    local double = layer:register_full_backward_hook(function(_, into)
      return into[1] * 2
    end, { prepend = true })
    local x = leaf(3, 2)
    layer(x):sum():backward()
    assert.same({ { { { 6, 6 }, { 6, 6 }, { 6, 6 } } }, { { { 3 }, { 3 }, { 3 } } } }, seen)
    assert.same({ { 9, 9 } }, layer.weight:grad():totable())
    assert.is_nil(x:grad())
    double:remove()
    layer(x):sum():backward()
    assert.same({ { { 3, 3 }, { 3, 3 }, { 3, 3 } } }, seen[1])
  end)

  it('run once for each backward of a graph that is retained', function()
    local layer, kept = nn.Linear(2, 1), {}
    layer:register_full_backward_hook(function(_, into) kept[#kept + 1] = ms.keep(into[1]) end)
    local loss = layer(leaf(3, 2)):sum()
    loss:backward(nil, { retain_graph = true })
    loss:backward()
    assert.equal(2, #kept)
    assert.equal(kept[1]:hash(), kept[2]:hash())
  end)

  it('run for what a checkpoint computes again', function()
    local layer, n = nn.Linear(2, 1), 0
    layer:register_full_backward_hook(function() n = n + 1 end)
    nn.checkpoint(layer, leaf(3, 2)):sum():backward()
    assert.equal(1, n)
  end)

  it('get no gradients of arguments that require none', function()
    local layer, seen = nn.Linear(2, 1), nil
    layer:register_full_backward_hook(function(_, into, out)
      seen = { numbers(into), numbers(out) }
    end)
    local warnings = ms.capture_warnings(function() layer(ms.ones(3, 2)):sum():backward() end)
    assert.truthy(warnings[1].message:find('no inputs require gradients', 1, true))
    assert.same({ { false }, { { { 1 }, { 1 }, { 1 } } } }, seen)
    layer:register_full_backward_hook(function() return { ms.ones(3, 2) } end)
    local function backward() layer(ms.ones(3, 2)):sum():backward() end
    ms.capture_warnings(function()
      checks.raises('RuntimeError', 'should always return nil or false', backward)
    end)
  end)

  it('refuse other results', function()
    for text, result in pairs { -- in any order
      ['got 2, but expected 1'] = { ms.ones(3, 2), false }, ['returned a number'] = 5,
      ["'grad_input[1]' is a string"] = { 'x' }, ['expected f32 of shape (3, 2)'] = ms.ones(2, 2),
    } do
      local layer = nn.Linear(2, 1)
      layer:register_full_backward_hook(function() return result end)
      local ok, err = pcall(function() layer(leaf(3, 2)):sum():backward() end)
      assert.is_false(ok)
      assert.truthy(err.message:find(text, 1, true), err.message)
    end
  end)
end)
