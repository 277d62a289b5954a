-- ms.device, places of tensors, and what waits for a device: over the deferred device, the CUDA
-- plug-in's simulation and the device that plans
local checks = require 'support.checks'
local ms = require 'moonshard'
local runs = require 'support.runs'
local scripts = require 'support.scripts'

local CASES = {
  fake = 'MS_DEVICE=cpu',
  cuda = 'MS_DEVICE=cpu MS_CUDASIM_CARDS=2 MS_PLUGIN_DIR=$MOONSHARD_LIB/cudasim',
}

-- Run a script on each device, which it knows as `kind`.
local function on_devices(code)
  for kind, environment in pairs(CASES) do -- the order does not matter
    local head = ([[
      local kind = '%s'
      local function raises(what, fn, ...)
        local ok, err = pcall(fn, ...)
        assert(not ok and tostring(err):find(what, 1, true), tostring(err))
      end]]):format(kind)
    scripts.with_script(head .. code, function(path)
      local output, status = scripts.shell(('env %s luajit %s'):format(environment, path))
      assert.equal(0, status, kind .. ': ' .. output)
    end)
  end
end

describe('ms.device', function()
  it('is the CPU, where every place is', function()
    local x = ms.ones(2, { device = 'cpu' })
    assert.equal('cpu', x:device())
    assert.equal(x, x:to 'cpu')
    assert.equal('f64', x:to('cpu', 'f64'):dtype())
    assert.equal('f64', x:to(ms.zeros(1, { dtype = 'f64' })):dtype())
    assert.equal('cpu', ms.device.info().kind)
    assert.equal(ms.cpu_isa(), ms.device.info().name)
    assert.is_true(ms.device.available 'cpu')
    assert.equal('cpu', ms.device 'cpu')
    checks.raises('RuntimeError', "to: device = 'cuda', but the device of this process is 'cpu'",
      x.to, x, 'cuda')
    checks.raises('RuntimeError', "the device of this process is 'cpu' since its first tensor",
      ms.device, 'cuda')
    checks.raises('ValueError', "the kind is 'tpu', expected cpu, cuda or plan", ms.device, 'tpu')
    assert.is_false(ms.device.available 'tpu')
  end)

  it('is chosen before the first tensor', function()
    on_devices [[
      assert(ms.device.available(kind))
      assert(ms.memory().live_total == 0)
      assert(ms.device(kind, 0) == kind .. ':0')
      local info = ms.device.info()
      assert(info.kind == kind and info.index == 0)
      assert((info.capability ~= nil) == (kind == 'cuda'))
      local x = ms.ones(2, 3)
      assert(x:device() == kind .. ':0')
      assert(ms.device(kind) == kind)
      raises('before any tensor exists', ms.device, 'cpu')
      raises(("choose '%s:1' before any tensor exists"):format(kind), ms.device, kind, 1)
      ms.close()
      if kind == 'cuda' then
        ms.device('cuda:99')
        raises("invalid device ordinal: 'cuda:99', found ", ms.zeros, 1)
      end]]
  end)

  it('is that of the ranks that are forked later', function()
    on_devices [[
      ms.device(kind)
      ms.dist.spawn(2, function(rank)
        local index = ms.device.info().index
        assert(ms.ones(2):device() == ('%s:%d'):format(kind, index))
        for _, id in ipairs { kind, index, ms.ones(2):device() } do
          ms.fsdp.FSDP(ms.nn.Linear(2, 2), { device_id = id })
        end
        raises('device_id is 7', ms.fsdp.FSDP, ms.nn.Linear(2, 2), { device_id = 7 })
        assert(ms.dist.all_reduce(ms.full({ 1 }, rank)):item() == 1)
      end)]]
  end)
end)

describe('tensors beside a device', function()
  it('move, and are read', function()
    on_devices [[
      ms.device(kind)
      local x = ms.tensor { { 1, 2, 3 }, { 4, 5, 6 } }
      local host = x:transpose(1, 2):to 'cpu'
      assert(host:device() == 'cpu' and x:to 'cpu':device() == 'cpu')
      x:fill_(0)
      assert(host:totable()[3][2] == 6 and host[2][1]:item() == 2 and host:to 'cpu' == host)
      assert(host:to 'f64':device() == 'cpu' and host:to 'f64':dtype() == 'f64')
      local back = host:to(kind)
      assert(back:device() == kind .. ':0' and ms.equal(back, host:to(x)))
      assert(host:hash() == back:hash() and tostring(host) == tostring(back))
      host:copy_(back * 2)
      back:copy_(host)
      host:copy_(ms.zeros(3, 2))
      assert(back:sum():item() == 42)
      local made = ms.full({ 2 }, 3, { device = 'cpu', dtype = 'i64' })
      assert(made:device() == 'cpu' and made:totable()[2] == 3)
      assert(ms.arange(3, { device = kind }):sum():item() == 3)
      local m = ms.nn.Linear(3, 1, { device = kind }):to(kind, 'f64'):materialize()
      assert(m.weight:dtype() == 'f64' and m.weight:to 'cpu':numel() == 3)
      raises('is not supported yet', m.to, m, 'cpu')]]
  end)

  it('are refused as operands, except scalars', function()
    on_devices [[
      ms.device(kind)
      local x, host = ms.ones(2, { requires_grad = true }), ms.ones(2, { device = 'cpu' })
      raises('Expected all tensors to be on the same device, but found at least two devices, '
        .. kind .. ':0 and cpu!', ms.ops.add, x, host)
      raises(('is on cpu, and operators of this process run on %s:0'):format(kind), host.exp, host)
      local y = x * ms.tensor(3, { device = 'cpu' })
      y:sum():backward()
      assert(y:device() == kind .. ':0' and x:grad():totable()[2] == 3)]]
  end)
end)

describe('a training step', function()
  local training = [[
    ms.device(kind)
    local path = os.tmpname()
    local file = io.open(path, 'wb')
    file:write(('the quick brown fox '):rep(40))
    file:close()
    local data = ms.data.Loader { tokens = ms.data.tokens(path), context = 8, batch = 2, seed = 1 }
    local model = ms.models.GPT { vocab = 256, layers = 1, heads = 2, width = 16, context = 8,
      dropout = 0.1 }
    if sharded then
      model = ms.fsdp.FSDP(model, { forward_prefetch = true, use_orig_params = true,
        auto_wrap_policy = ms.fsdp.ModuleWrapPolicy { ms.nn.TransformerBlock } })
    end
    local opt = ms.optim.AdamW(model:parameters(), { lr = 1e-3 })
    local function step()
      return ms.scope(function()
        local loss = model(data:next())
        loss:backward()
        local norm = sharded and model:clip_grad_norm_(1)
          or ms.optim.clip_grad_norm_(model:parameters(), 1)
        opt:step()
        opt:zero_grad()
        return ms.keep(loss), ms.keep(norm)
      end)
    end
    step()
    step()
    local before = ms.device.info().waits
    local loss, norm = step()
    local waits = ms.device.info().waits - before
    assert(waits == 0, waits .. ' waits')
    loss:item()
    norm:item()
    assert(ms.device.info().waits == before + 2)
    os.remove(path)]]

  for _, sharded in ipairs { false, true } do
    it(('without item() waits for nothing, %s'):format(sharded and 'sharded' or 'plain'), function()
      on_devices(('\nlocal sharded = %s\n'):format(sharded) .. training)
    end)
  end
end)

describe('the heap of a GPU', function()
  it('takes chunks of 32 MiB, and more for more', function()
    scripts.with_script([[
      ms.device 'cuda'
      local x = {}
      for i = 1, 50 do
        x[i] = ms.zeros(100000)
      end
      local m = ms.memory()
      assert(m.reserved == 32 * 2 ^ 20 and m.system_allocs <= 2, m.reserved)
      local large = ms.zeros(16 * 2 ^ 20)
      assert(ms.memory().reserved == 96 * 2 ^ 20, ms.memory().reserved)
      large:release()
      for i = 1, 50 do
        x[i]:release()
      end
      assert(ms.zeros(3 * 2 ^ 20):sum():item() == 0)]], function(path)
      local output, status = scripts.shell(('env %s luajit %s'):format(CASES.cuda, path))
      assert.equal(0, status, output)
    end)
  end)
end)

-- Peak bytes of two steps of training with an evaluation, on one rank of a number of them.
local function trained_peak(world, dtype, checkpoints)
  local fsdp, nn = ms.fsdp, ms.nn
  local model = ms.models.GPT { vocab = 300, layers = 4, heads = 4, width = 128, context = 64 }
  model = fsdp.FSDP(model, {
    process_group = world, auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.TransformerBlock },
    mixed_precision = { param_dtype = dtype },
  })
  if checkpoints then
    nn.checkpoint(model, { policy = function(m) return ms.is(m, nn.TransformerBlock) end })
  end
  local opt = ms.optim.AdamW(model:parameters(), { lr = 1e-3 })
  local ids = ms.zeros({ 4, 64 }, { dtype = 'i64' })
  for _ = 1, 2 do
    ms.train.forward_backward(model, { { ids, ids }, { ids, ids } }, function(m, x, y)
      return m(x, y) * ids:numel()
    end)
    model:clip_grad_norm_(1)
    opt:step()
    opt:zero_grad()
    ms.no_grad(function() ms.scope(function() model(ids, ids) end) end)
  end
  return ms.memory().peak_total
end

describe("ms.device 'plan'", function()
  for _, case in ipairs { { 1, 'f32' }, { 2, 'bf16' }, { 2, 'f32', true } } do
    local world, dtype, checkpoints = unpack(case)
    it(('counts the bytes of %d ranks in %s%s'):format(world, dtype,
      checkpoints and ' with checkpoints' or ''), function()
      local measured = tonumber(runs.reports(world, function()
        return ('%d'):format(trained_peak(nil, dtype, checkpoints))
      end)[0])
      local planned = runs.alone(function()
        ms.device 'plan'
        return trained_peak(ms.dist.fake { rank = 0, world = world }, dtype, checkpoints)
      end)
      assert.equal(measured, planned)
    end)
  end
end)
