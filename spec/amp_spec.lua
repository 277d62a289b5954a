-- lua/moonshard/amp, lua/moonshard/fsdp/sharded_grad_scaler.lua: gradient scalers. Tests with ranks
-- come first: a process that has opened its device cannot fork.
local ms = require 'moonshard'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim
local checks = require 'support.checks'
local runs = require 'support.runs'
local wrap = require 'support.wrap'

local function leaf(dtype, ...)
  local values = { ... }
  return ms.tensor(values, { dtype = dtype or 'f32', requires_grad = true })
end

local function with_gradient(opt, p, ...)
  opt:zero_grad()
  p:set_grad(ms.tensor({ ... }, { dtype = p:dtype() }))
end

-- Trains in f16 with four micro-batches a step over w ranks; one loss of step 3 overflows. Returns
-- for each step whether it was made and the scale, and the hash of the model.
local function train(rank, w)
  ms.manual_seed(1)
  local said, m = {}, 4 / w
  local model = wrap(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)), {
    mixed_precision = { param_dtype = ms.f16, reduce_dtype = ms.f32 }, use_orig_params = true,
  })
  model:set_gradient_factor(0.25)
  local opt = optim.AdamW(model:parameters(), { lr = 1e-2 })
  local scaler = fsdp.ShardedGradScaler { init_scale = 1024, growth_interval = 2 }
  for step = 1, 6 do
    local function backward(k)
      local leaf_index = rank * m + k
      local out = model(ms.full({ 2, 8 }, (leaf_index + 1) / 8 + step / 16))
      local loss = (out * out):mean()
      if step == 3 and leaf_index == 0 then
        loss = loss * 60000
      end
      scaler:scale(loss):backward()
    end
    if m > 1 then
      model:no_sync(function()
        for k = 0, m - 2 do
          backward(k)
        end
      end)
    end
    backward(m - 1)
    scaler:unscale_(opt)
    local stepped = scaler:step(opt)
    scaler:update()
    opt:zero_grad()
    said[#said + 1] = ('%s %g'):format(tostring(stepped), scaler:get_scale())
  end
  return table.concat(said, ', ') .. ' ' .. model:hash()
end

describe('a gradient scaler', function()
  teardown(function()
    assert.equal(0, checks.live_handles())
  end)

  it('trains in f16 to the same bits on 1, 2 and 4 ranks', function()
    local one = runs.reports(1, function(rank) return train(rank, 1) end)[0]
    assert.truthy(one:find('true 1024, true 2048, nil 1024, true 1024, true 2048, true 2048', 1,
      true), one)
    for _, w in ipairs { 2, 4 } do
      local reports = runs.reports(w, function(rank) return train(rank, w) end)
      for rank = 0, w - 1 do
        assert.equal(one, reports[rank])
      end
    end
  end)

  it('is an error when ranks have different scales', function()
    local reports = runs.reports(2, function(rank)
      local model = ms.fsdp.FSDP(ms.nn.Linear(2, 1))
      local opt = ms.optim.SGD(model:parameters(), { lr = 1 })
      local scaler = ms.amp.GradScaler { init_scale = rank == 0 and 4 or 1024 }
      scaler:scale(model(ms.ones(1, 2)):sum()):backward()
      return tostring(select(2, pcall(scaler.step, scaler, opt)))
    end)
    for rank = 0, 1 do
      assert.truthy(reports[rank]:find('state of amp.GradScaler', 1, true), reports[rank])
    end
  end)

  it('skips a step on all ranks when one has an infinite gradient', function()
    local reports = runs.reports(2, function(rank)
      local model = fsdp.FSDP(nn.Linear(1, 1, { bias = false }), { use_orig_params = true })
      local opt = optim.SGD(model:parameters())
      local scaler = ms.amp.GradScaler()
      scaler:scale(model(ms.ones(1, 1)):sum()):backward()
      local grad = model:parameters()[1]:grad()
      if rank == 0 then
        grad:fill_(1 / 0)
      end
      local stepped = scaler:step(opt)
      scaler:update()
      return ('%s %s %g'):format(tostring(grad and grad:numel() or 0), tostring(stepped),
        scaler:get_scale())
    end)
    assert.equal('1 nil 32768', reports[0])
    assert.equal('0 nil 32768', reports[1])
  end)

  it('scales tensors and nested lists, in their dtype', function()
    local scaler = ms.amp.GradScaler { init_scale = 2 }
    assert.equal(2, scaler:get_scale())
    local out = scaler:scale { ms.tensor({ 4 }), { ms.tensor({ 8 }, { dtype = 'f16' }) } }
    assert.equal(8, out[1]:item())
    assert.equal(16, out[2][1]:item())
    assert.equal('f16', out[2][1]:dtype())
    checks.raises('TypeError', "scale: 'outputs' is a number, expected a tensor or a list",
      scaler.scale, scaler, 3)
    local round = {}
    round[1] = round
    checks.raises('ValueError', 'stands in too many others', scaler.scale, scaler, round)
    checks.raises('ValueError', 'a list that is empty', scaler.scale, scaler, {})
  end)

  it('unscales gradients once before a step', function()
    for _, dtype in ipairs { 'f16', 'bf16', 'f32', 'f64' } do
      local p = leaf(dtype, 1, 2)
      local opt = optim.SGD({ p }, { lr = 0.5 })
      local scaler = ms.amp.GradScaler { init_scale = 65536 }
      with_gradient(opt, p, 16384, -32768)
      scaler:unscale_(opt)
      checks.close({ 0.25, -0.5 }, p:grad())
      checks.raises('RuntimeError', 'unscale_() has already been called on this optimizer',
        scaler.unscale_, scaler, opt)
      assert.is_true(scaler:step(opt))
      checks.close({ 0.875, 2.25 }, p:detach())
      checks.raises('RuntimeError', 'unscale_() is being called after step().', scaler.unscale_,
        scaler, opt)
      checks.raises('RuntimeError', 'step() has already been called since the last update().',
        scaler.step, scaler, opt)
      scaler:update()
      scaler:unscale_(opt)
    end
  end)

  it('skips a step with a gradient that is not finite and halves its scale', function()
    local p = leaf('f32', 1, 2)
    local opt = optim.SGD({ p }, { lr = 0.5 })
    local scaler = ms.amp.GradScaler { init_scale = 8, growth_interval = 2, growth_factor = 4 }
    for _, odd in ipairs { 1 / 0, -1 / 0, 0 / 0 } do
      with_gradient(opt, p, 8, odd)
      local before = scaler:get_scale()
      assert.is_nil(scaler:step(opt))
      checks.close({ 1, 2 }, p:detach())
      scaler:update()
      assert.equal(before / 2, scaler:get_scale())
    end
    for i, scale in ipairs { 1, 4, 4, 16, 16 } do
      with_gradient(opt, p, 0, 0)
      assert.is_true(scaler:step(opt))
      scaler:update()
      assert.equal(scale, scaler:get_scale(), i)
    end
    with_gradient(opt, p, 0, 0 / 0) -- one step from growing
    scaler:step(opt)
    scaler:update()
    with_gradient(opt, p, 0, 0)
    scaler:step(opt)
    scaler:update()
    assert.equal(8, scaler:get_scale())
    scaler:update(3)
    assert.equal(3, scaler:get_scale())
  end)

  it('skips the step of one optimizer of several', function()
    local a, b = leaf('f32', 1), leaf('f32', 1)
    local first, second = optim.SGD({ a }, { lr = 1 }), optim.SGD({ b }, { lr = 1 })
    local scaler = ms.amp.GradScaler { init_scale = 4 }
    with_gradient(first, a, 1 / 0)
    with_gradient(second, b, 4)
    assert.is_nil(scaler:step(first))
    assert.is_true(scaler:step(second))
    scaler:update()
    assert.equal(1, a:item())
    assert.equal(0, b:item())
    assert.equal(2, scaler:get_scale())
  end)

  it('does nothing when it is not enabled', function()
    local p = leaf('f32', 1)
    local opt = optim.SGD({ p }, { lr = 1 })
    local scaler = ms.amp.GradScaler { enabled = false }
    assert.is_true(rawequal(p, scaler:scale(p)))
    with_gradient(opt, p, 1)
    scaler:unscale_(opt)
    assert.is_true(scaler:step(opt))
    scaler:update()
    assert.equal(0, p:item())
    assert.equal(1, scaler:get_scale())
    assert.same({}, scaler:state_dict())
    assert.is_false(scaler:is_enabled())
  end)

  it('continues from its state dict', function()
    local p = leaf('f32', 1)
    local opt = optim.SGD({ p })
    local scaler = ms.amp.GradScaler { init_scale = 4, growth_interval = 2 }
    with_gradient(opt, p, 0)
    scaler:step(opt)
    scaler:update()
    local sd = scaler:state_dict()
    assert.same({ scale = 4, growth_factor = 2, backoff_factor = 0.5, growth_interval = 2,
      _growth_tracker = 1 }, sd)
    local other = ms.amp.GradScaler()
    other:load_state_dict(sd)
    other:step(opt)
    other:update()
    assert.equal(8, other:get_scale())
    checks.raises('RuntimeError', 'The source state dict is empty', other.load_state_dict, other,
      {})
  end)

  it('refuses options out of range and calls out of order', function()
    checks.raises('AssertionError', 'The growth factor must be > 1.0.', ms.amp.GradScaler,
      { growth_factor = 1 })
    checks.raises('AssertionError', 'The backoff factor must be < 1.0', ms.amp.GradScaler,
      { backoff_factor = 1 })
    checks.raises('ValueError', 'init_scale is 0', ms.amp.GradScaler, { init_scale = 0 })
    local scaler, opt = ms.amp.GradScaler(), optim.SGD({ leaf('f32', 1) })
    checks.raises('AssertionError', 'No inf checks were recorded for this optimizer.', scaler.step,
      scaler, opt)
    checks.raises('AssertionError', 'No inf checks were recorded prior to update.',
      ms.amp.GradScaler().update, ms.amp.GradScaler())
  end)

  it('refuses state out of range', function()
    local bad = {
      scale = { 0, -1, 1 / 0, 0 / 0, 1e-40 }, growth_factor = { 1, 1 / 0, 0 / 0 },
      backoff_factor = { 0, 1, 0 / 0 }, growth_interval = { 0, 0.5 }, _growth_tracker = { -1, 0.5 },
    }
    for name, values in pairs(bad) do
      for _, value in ipairs(values) do
        local scaler = ms.amp.GradScaler()
        local sd = scaler:state_dict()
        sd[name] = value
        assert.is_false(pcall(scaler.load_state_dict, scaler, sd), name .. ' ' .. value)
        assert.same(ms.amp.GradScaler():state_dict(), scaler:state_dict())
      end
    end
  end)
end)
