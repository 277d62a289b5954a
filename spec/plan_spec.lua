-- `moonshard plan`: lua/moonshard/tools/plan.lua, plan_fit.lua, plan_model.lua, plan_report.lua
local json = require 'moonshard.base.json'
local files = require 'support.shell'
local scripts = require 'support.scripts'

-- A script that trains for two steps, with a validation. %s: how it is sharded.
local SCRIPT = [[
local fsdp, nn = ms.fsdp, ms.nn
ms.dist.init()
local model = ms.models.GPT { vocab = 300, layers = 4, heads = 4, width = 128, context = 64 }
%s
local opt = ms.optim.AdamW(model:parameters(), { lr = 1e-3 })
local ids = ms.zeros({ 4, 64 }, { dtype = 'i64' })
for _ = 1, 2 do
  ms.no_grad(function() ms.scope(function() model(ids, ids) end) end)
  ms.train.forward_backward(model, { { ids, ids }, { ids, ids } }, function(m, x, y)
    return m(x, y) * ids:numel()
  end)
  ms.optim.clip_grad_norm_(model:parameters(), 1)
  opt:step()
  opt:zero_grad()
end
print(('peak %%d'):format(ms.memory().peak_total))
]]

local WRAPPED = [[model = fsdp.FSDP(model, {
  auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.TransformerBlock },
  mixed_precision = { param_dtype = 'bf16', reduce_dtype = 'f32' }, %s })
]]

local CHECKPOINTS = [[
nn.checkpoint(model, { policy = function(m) return ms.is(m, nn.TransformerBlock) end })
]]

local IN_PLACE = [[
for _, block in ipairs(model.h) do fsdp.fully_shard(block) end
fsdp.fully_shard(model)
]]

-- The numbers of a plan of a script.
local function planned(path, words)
  local out = os.tmpname()
  local output, code = scripts.shell(('bindings/moonshard plan --json=%s %s %s'):format(out, words,
    path))
  assert.equal(0, code, output)
  local text = files.read(out)
  os.remove(out)
  return json.decode(text), output
end

describe('moonshard plan', function()
  for name, how in pairs {
    ['FULL_SHARD'] = WRAPPED:format '',
    ['SHARD_GRAD_OP with checkpoints'] = WRAPPED:format "sharding_strategy = 'SHARD_GRAD_OP'"
      .. CHECKPOINTS,
    ['fully_shard'] = IN_PLACE,
    ['HYBRID_SHARD'] = WRAPPED:format [[sharding_strategy = 'HYBRID_SHARD',
      device_mesh = ms.dist.init_device_mesh('cpu', { math.ceil(ms.dist.world_size() / 2),
        math.min(ms.dist.world_size(), 2) })]],
    ['offload'] = WRAPPED:format 'cpu_offload = { offload_params = true }',
  } do
    it('counts the bytes that real ranks hold: ' .. name, function()
      scripts.with_script(SCRIPT:format(how), function(path)
        for _, ranks in ipairs { 1, 2, 4 } do
          local output, code = scripts.shell(('bindings/moonshard run -n %d %s'):format(ranks,
            path))
          assert.equal(0, code, output)
          local measured = tonumber(output:match '%[rank 0%] peak (%d+)')
          local plan = planned(path, '--ranks-per-host=' .. ranks)
          assert.equal(measured, plan.peak_total, ('%d ranks'):format(ranks))
        end
      end)
    end)
  end

  -- Two Linears of 64 x 64 on 2 hosts of 2 ranks, one micro-batch of 8 rows. A unit has 16,384
  -- bytes. Forward and backward gather both; each rank sends 3/4 of
  -- it, half of that to the other host. A product of 8 x 64 x 64 has 65,536 operations.
  it('reports the traffic, work and time of a step', function()
    scripts.with_script([[
      local a, b = ms.nn.Linear(64, 64, { bias = false }), ms.nn.Linear(64, 64, { bias = false })
      ms.device 'cuda'
      local world = ms.dist.init()
      assert(world.rank == 3 and world.world_size == 4 and world.local_rank == 1)
      local model = ms.nn.Sequential(a, b)
      for _, m in ipairs { a, b } do ms.fsdp.fully_shard(m) end
      ms.fsdp.fully_shard(model)
      local opt = ms.optim.SGD(model:parameters(), { lr = 1 })
      while true do
        model(ms.zeros(8, 64)):sum():backward()
        opt:step()
        opt:zero_grad()
      end]], function(path)
      local plan, text = planned(path, '--hosts=2 --ranks-per-host=2 --rank=3 --steps=3 '
        .. '--flops=1MFLOP/s --link=1GB/s --host-link=1GB/s')
      local size = 64 * 64 * 4
      local gathers = plan.traffic.parameters.within / (size * 3 / 4 / 2)
      assert.equal(4, gathers)
      assert.same({ within = size * 3 / 4, between = size * 3 / 4 }, plan.traffic.gradients)
      assert.equal(65536 * 5, plan.flops) -- the input has no gradient
      assert.near(65536 * 5 / 1e6, plan.compute, 1e-9)
      assert.near(plan.compute + plan.exposed, plan.seconds, 1e-9)
      -- 12,288 bytes at 1 GB/s: the first gather and the last reduction have nothing to overlap
      assert.near(2 * 12288 / 1e9, plan.exposed, 1e-9)
      local slower = planned(path, '--hosts=2 --ranks-per-host=2 --rank=3 --steps=3 '
        .. '--flops=1MFLOP/s --link=1GB/s --host-link=1GB/s --memory=1MB/s --latency=100 '
        .. '--host-latency=20')
      -- SGD reads a parameter and its gradient and writes the parameter: 3 values of each of 2,048
      assert.is_true(slower.moved > 2048 * 3 * 4)
      assert.near(plan.compute + plan.moved / 1e6, slower.compute, 1e-9)
      -- of the three sends in a row of each of six transfers, half go to the other host
      assert.near(plan.communication + 6 * 1.5 * 120e-6, slower.communication, 1e-9)
      assert.truthy(text:find('rank 3 of 4: 2 hosts with 2 ranks; step 3', 1, true), text)
    end)
  end)

  -- As above, with parameters divided inside each host. A rank sends half of a unit to the other
  -- rank of its host, and sums its half of the gradients with the other host's.
  it('plans hybrid sharding and groups of ranks', function()
    scripts.with_script([[
      local a, b = ms.nn.Linear(64, 64, { bias = false }), ms.nn.Linear(64, 64, { bias = false })
      ms.dist.init()
      local odd = ms.dist.init_device_mesh('cpu', { 2, 2 }):get_group(1)
      assert(table.concat(ms.dist.get_process_group_ranks(odd), ' ') == '1 3')
      assert(ms.dist.new_group { 0, 2 } == false)
      assert(ms.dist.new_group { 1, 2, 3 }:rank() == 2)
      local ok, err = pcall(ms.dist.new_group, { 0, 1, 3 })
      assert(not ok and tostring(err):find 'equally spaced')
      local model = ms.fsdp.FSDP(ms.nn.Sequential(a, b), { sharding_strategy = 'HYBRID_SHARD',
        auto_wrap_policy = ms.fsdp.ModuleWrapPolicy { ms.nn.Linear } })
      assert(model.world_size == 2 and model.rank == 1)
      local opt = ms.optim.SGD(model:parameters(), { lr = 1 })
      while true do
        model(ms.zeros(8, 64)):sum():backward()
        ms.dist.all_reduce(ms.ones(512), 'sum', odd)
        opt:step()
        opt:zero_grad()
      end]], function(path)
      local plan, text = planned(path, '--hosts=2 --ranks-per-host=2 --rank=3 --flops=1MFLOP/s '
        .. '--link=1MB/s --host-link=1GB/s')
      local size = 2 * 64 * 64 * 4
      assert.same({ within = size, between = 0 }, plan.traffic.parameters)
      assert.same({ within = size / 2, between = size / 2 }, plan.traffic.gradients)
      assert.same({ within = 0, between = 2048 }, plan.traffic.other)
      assert.near(size * 1.5 / 1e9, plan.within, 1e-12)
      assert.near((size / 2 + 2048) / 1e6, plan.between, 1e-12)
      assert.truthy(text:find('those to other hosts for 18.43 ms', 1, true), text)
    end)
  end)

  -- Peaks of the combinations come from plans of each alone.
  it('finds the fastest options that fit', function()
    scripts.with_script([[
      ms.dist.init()
      local rows = tonumber((arg[1]:match '^%-%-rows=(%d+)$'))
      local model = ms.models.GPT { vocab = 300, layers = 2, heads = 4, width = 64, context = 64 }
      model = ms.fsdp.FSDP(model)
      local opt = ms.optim.AdamW(model:parameters(), { lr = 1e-3 })
      local ids = ms.zeros({ rows, 64 }, { dtype = 'i64' })
      for _ = 1, 2 do
        model(ids, ids):backward()
        opt:step()
        opt:zero_grad()
      end]], function(path)
      local rates = '--ranks-per-host=2 --flops=1T --host-link=1MB/s '
      local peaks = {}
      for _, rows in ipairs { 1, 4 } do
        peaks[rows] = planned(path .. (' --rows=%d'):format(rows), rates).peak_total
      end
      local function best(budget)
        return (scripts.shell(('bindings/moonshard plan --fit=%d --try=rows=1,4,x %s %s'):format(
          budget, rates, path)))
      end
      local output = best(peaks[4]) -- four rows take less time a target: parameters are sent once
      assert.truthy(output:find('fastest that fits: --rows=4\n', 1, true), output)
      assert.truthy(output:find('--rows=x', 1, true), output)
      assert.truthy(best(peaks[4] - 1):find('fastest that fits: --rows=1\n', 1, true))
      assert.truthy(best(peaks[1] - 1):find('none fits into', 1, true))
    end)
  end)

  -- bench/fit.lua compares such searches with runs.
  it('finds the same by fewer plans where memory rises', function()
    local rates = '--ranks-per-host=2 --flops=1G --memory=100MB/s --host-link=1MB/s'
    local function fit(mebibytes, flag, micro)
      local output = scripts.shell(('bindings/moonshard plan %s --fit=%d '
        .. '--%s=recompute=blocks,none --%s=strategy=FULL_SHARD,SHARD_GRAD_OP,NO_SHARD '
        .. '--%s=micro=%s bench/fit_script.lua '
        .. '--width=128 --layers=2 --context=32'):format(rates, mebibytes * 2 ^ 20, flag, flag,
        flag, micro))
      return output:match 'fastest that fits: ([^\n]*)',
        tonumber(output:match 'planned (%d+) of'), output
    end
    local _, _, all = fit(1000, 'try', '4')
    local sizes = {} -- two and two are equal
    for size in all:gmatch '([%d.]+) MiB' do
      sizes[#sizes + 1] = tonumber(size)
    end
    table.sort(sizes)
    for _, i in ipairs { 2, 4 } do
      local budget = (sizes[i] + sizes[i + 1]) / 2
      local expected, n_all = fit(budget, 'try', '4')
      local found, n = fit(budget, 'raise', '4')
      assert.equal(expected, found)
      assert.is_true(found ~= nil and n < n_all, ('%d of %d'):format(n, n_all))
    end
    -- More micro-batches hold more gradients, so the order is wrong here.
    local budget = sizes[#sizes] * 1.05
    local found, _, output = fit(budget, 'raise', '1,4')
    assert.equal((fit(budget, 'try', '1,4')), found)
    assert.truthy(output:find('since memory does not rise', 1, true), output)
  end)

  it('refuses what it cannot plan', function()
    for words, message in pairs {
      ['--host=2 x.lua'] = "unknown flag '--host'",
      ['--rank=8 x.lua'] = '--rank is 8, expected 0 to 7',
      ['--flops=1T x.lua'] = 'times of several ranks on a host need --host-link',
      ['--link=fast x.lua'] = "--link is 'fast', expected a rate such as 50GB/s",
      ['--steps=2'] = 'no script given',
      ['--fit=1GiB --flops=1T --host-link=1G x.lua'] = '--fit needs --flops, and --try or --raise',
    } do
      local output, code = scripts.shell('bindings/moonshard plan ' .. words)
      assert.equal(2, code, output)
      assert.truthy(output:find(message, 1, true), output)
    end
    scripts.with_script('print(1)', function(path)
      local output, code = scripts.shell('bindings/moonshard plan ' .. path)
      assert.equal(1, code)
      assert.truthy(output:find('ended after 0 optimizer steps, expected 2', 1, true), output)
    end)
  end)
end)
