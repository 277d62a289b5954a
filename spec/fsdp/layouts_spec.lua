-- runtime/fsdp/schedule/pools.c: where ranks gather full parameters on the deferred device.
local ffi = require 'ffi'
local ms = require 'moonshard'
local runs = require 'support.runs'
local scripts = require 'support.scripts'
local wrap = require 'support.wrap'

ffi.cdef 'int setenv(const char *name, const char *value, int overwrite);'

-- Reports of `body` on two ranks with the environment of `set(rank)`.
local function of_two(set, body)
  return runs.reports(2, function(rank)
    for name, value in pairs(set(rank)) do
      ffi.C.setenv(name, value, 1)
    end
    local ok, result = pcall(body, rank)
    return ok and result or 'failed', not ok and result or nil
  end)
end

local function trained(group)
  ms.manual_seed(1)
  local model = wrap(ms.nn.Linear(22, 91, { bias = false }), { process_group = group })
  local optimizer = ms.optim.SGD(model:parameters(), { lr = 0.001 })
  for _ = 1, 2 do
    model(ms.ones(4, 22)):pow(2):sum():backward()
    model:clip_grad_norm_(1)
    optimizer:step()
    optimizer:zero_grad()
  end
  local plan = model:plan()
  return ('%s %d %d'):format(model:hash(), plan.param_slots, plan.own_slots)
end

local function trained_by_both()
  return trained()
end

describe('slots of parameters', function()
  local function device(cards)
    return function()
      return { MS_DEVICE = 'fake', MS_FAKE_CARDS = cards }
    end
  end

  it('are pulled between devices with the same bits', function()
    local shared = of_two(device 'one', trained_by_both)
    local pulled = of_two(device 'each', trained_by_both)
    local hash, bytes, none = shared[0]:match('(%S+) (%d+) (%d+)')
    local same, more, own = pulled[0]:match('(%S+) (%d+) (%d+)')
    assert.equal(hash, same)
    assert.equal('0', none)
    assert.equal(8192, tonumber(own)) -- 22 x 91 in f32, whole pages
    assert.truthy(tonumber(more) > tonumber(bytes), pulled[0])
    assert.same(pulled[0], pulled[1])
  end)

  it('are pulled by ranks that computed before dist.init, too', function()
    local sizes = {}
    for _, before in ipairs { '', 'ms.zeros { 3 }' } do
      scripts.with_script(before .. [[
        local world = ms.dist.init()
        local model = ms.fsdp.FSDP(ms.nn.Linear(22, 22))
        model(ms.ones(4, 22))
        if world.rank == 1 then
          print(model:plan().param_slots)
        end
      ]], function(path)
        local output, code = scripts.shell(
          'env MS_DEVICE=fake MS_FAKE_CARDS=each bindings/moonshard run -n 2 ' .. path)
        assert.equal(0, code, output)
        sizes[#sizes + 1] = output
      end)
    end
    assert.equal(sizes[1], sizes[2])
  end)

  it('are as large in a fake group', function()
    local real = of_two(device 'each', trained_by_both)
    local fake = of_two(device 'each', function(rank)
      ms.zeros(1)
      return trained(ms.dist.fake { rank = rank, world = 2 })
    end)
    assert.equal(real[0]:match(' .*'), fake[0]:match(' .*'))
  end)

  it('must lie alike on all ranks', function()
    local _, cause = of_two(function(rank)
      return { MS_SLOTS = rank == 0 and 'shared' or 'pull' }
    end, trained_by_both)
    assert.truthy(cause:find('MS_SLOTS of devices is 1 on rank 0 and 2 on rank 1', 1, true), cause)
    _, cause = of_two(function(rank)
      return { MS_DEVICE = rank == 0 and 'cpu' or 'fake' }
    end, trained_by_both)
    assert.truthy(cause:find('MS_DEVICE of devices is 0 on rank 0 and 1 on rank 1', 1, true), cause)
  end)
end)

describe('a plan', function()
  it('of more than 2^63 bytes is refused', function()
    local function plan(world, micro_batches)
      local group = ms.dist.fake { rank = 0, world = world }
      local model = ms.fsdp.FSDP(ms.nn.Linear(4096, 4096), { process_group = group })
      return model:plan { dry_run = true, micro_batches = micro_batches }
    end
    assert.truthy(plan(16384, 1024).arena > 2 ^ 40)
    for _, case in ipairs { { 2 ^ 31 - 1, 2 ^ 30 }, { 2, 2 ^ 40 } } do
      local ok, err = pcall(plan, case[1], case[2])
      assert.is_false(ok)
      assert.equal('ValueError', err.kind)
      assert.truthy(err.message:find('may come to more than 2^63 bytes', 1, true), err.message)
    end
  end)
end)
