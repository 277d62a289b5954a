-- lua/moonshard/nn/batch_norm.lua: statistics of batches. spec/nn/table.lua has the rest.
local ms = require 'moonshard'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim
local checks = require 'support.checks'

for first = 0, 2, 2 do -- rows of rank 0
  it('SyncBatchNorm on two ranks is BatchNorm1d on the rows of both: 5, rank 0 has ' .. first,
    function()
    ms.dist.spawn(2, function(rank)
      local x = ms.randn({ 5, 3 }, { seed = 2 }) * 3 + 100
      local slope = ms.randn({ 5, 3 }, { seed = 4 })
      local function own(t)
        return rank == 0 and t:narrow(1, 1, first) or t:narrow(1, 1 + first, 5 - first)
      end
      local plain, sync = nn.BatchNorm1d(3), nn.SyncBatchNorm(3)
      local whole, part = x:clone(), own(x):clone()
      whole:requires_grad_(true)
      part:requires_grad_(true)
      local y = plain(whole)
      local mine = sync(part)
      checks.close(own(y):totable(), mine, 1e-4)
      checks.close(plain.running_mean:totable(), sync.running_mean, 1e-4)
      checks.close(plain.running_var:totable(), sync.running_var, 1e-4)
      ;(y * slope):sum():backward()
      ;(mine * own(slope)):sum():backward()
      checks.close(own(whole:grad()):totable(), part:grad(), 1e-4)
      for i, p in ipairs(sync:parameters()) do
        ms.dist.all_reduce(p:grad())
        checks.close(plain:parameters()[i]:grad():totable(), p:grad(), 1e-4)
      end
    end)
  end)
end

it('SyncBatchNorm takes a batch that is empty on all ranks', function()
  ms.dist.spawn(2, function()
    local sync = nn.SyncBatchNorm(3)
    sync(ms.zeros(0, 3)):sum():backward()
    assert(sync.weight:grad():eq(0):all() and sync.running_var:eq(1):all())
  end)
end)

it('SyncBatchNorm of groups of one normalises by its own batch', function()
  ms.dist.spawn(2, function(rank)
    local alone = ms.dist.split(rank)
    local x = ms.randn({ 4, 3 }, { seed = rank })
    assert(nn.BatchNorm1d(3)(x):hash() == nn.SyncBatchNorm(3, { process_group = alone })(x):hash())
  end)
end)

it('SyncBatchNorm trains under FSDP', function()
  ms.dist.spawn(2, function(rank)
    local model = fsdp.FSDP(nn.Sequential(nn.Linear(4, 3), nn.SyncBatchNorm(3)))
    local opt = optim.SGD(model:parameters(), { lr = 0.1 })
    for step = 1, 2 do
      model(ms.randn({ 4, 4 }, { seed = rank + 2 * step })):square():sum():backward()
      opt:step()
      opt:zero_grad()
    end
    ms.dist.same('running_var', model.module[2].running_var:hash())
  end)
end)

it('convert_sync_batchnorm makes a model normalise by the batches of a group', function()
  ms.dist.spawn(2, function(rank)
    ms.manual_seed(1)
    local x = ms.randn({ 4, 3 }, { seed = 2 }) * 3 + 100
    local plain = nn.Sequential(nn.BatchNorm1d(3, { momentum = 0.5 }), nn.Linear(3, 2)):eval()
    local names, weight = table.concat(plain:state_dict(), ' '), plain[1].weight
    ms.no_grad(weight.fill_, weight, 2)
    local other = ms.dist.split(rank)
    local sync = nn.SyncBatchNorm.convert_sync_batchnorm(plain:deepcopy(), other)
    assert(ms.is(sync[1], nn.SyncBatchNorm) and rawequal(sync[1].process_group, other))
    assert(not sync.training and not sync[1].training)
    assert(sync(x):hash() == plain(x):hash())
    nn.SyncBatchNorm.convert_sync_batchnorm(sync)
    assert(sync[1].process_group == nil)
    assert(table.concat(sync:state_dict(), ' ') == names and sync[1].weight:eq(2):all())
    local expected = plain:train()(x)
    checks.close(expected:narrow(1, 1 + 2 * rank, 2):totable(),
      sync:train()(x:narrow(1, 1 + 2 * rank, 2)), 1e-4)
    checks.close(plain[1].running_var:totable(), sync[1].running_var, 1e-4)
    local alone = nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm2d(3))
    assert(ms.is(alone, nn.SyncBatchNorm))
    checks.raises('TypeError', "'module' is nil, expected a module",
      nn.SyncBatchNorm.convert_sync_batchnorm)
  end)
end)

describe('BatchNorm', function()
  teardown(function() assert.equal(0, checks.live_handles()) end)

  local BATCHES = { { { 1, 10 }, { 3, 10 } }, { { 5, 0 }, { 9, 4 } } } -- of (2, 2)

  -- Means are (2, 10) and (7, 2), unbiased variances (2, 0) and (8, 8).
  local function tracked(momentum)
    local norm = nn.BatchNorm1d(2, { momentum = momentum })
    for _, batch in ipairs(BATCHES) do
      norm(ms.tensor(batch))
    end
    return norm
  end

  it('moves its running values by momentum', function()
    local norm = tracked(0.5)
    checks.close({ (0 + 2) / 4 + 7 / 2, (0 + 10) / 4 + 2 / 2 }, norm.running_mean)
    checks.close({ (1 + 2) / 4 + 8 / 2, (1 + 0) / 4 + 8 / 2 }, norm.running_var)
    assert.equal(2, norm.num_batches_tracked:item())
  end)

  it('averages over all batches without a momentum', function()
    local norm = tracked(false)
    checks.close({ 4.5, 6 }, norm.running_mean)
    checks.close({ 5, 4 }, norm.running_var)
  end)

  it('normalises by the biased variance of the batch', function()
    checks.close({ { -1 / math.sqrt(1 + 1e-5), 0 }, { 1 / math.sqrt(1 + 1e-5), 0 } },
      nn.BatchNorm1d(2)(ms.tensor(BATCHES[1])))
  end)

  it('keeps its running values after an empty batch', function()
    local norm = tracked(0.5)
    local before = { norm.running_mean:hash(), norm.running_var:hash() }
    norm(ms.zeros(0, 2))
    norm(ms.zeros(0, 2, 9))
    assert.same(before, { norm.running_mean:hash(), norm.running_var:hash() })
    assert.equal(4, norm.num_batches_tracked:item())
  end)

  it('leaves its buffers alone in evaluation', function()
    local norm = tracked()
    local before = { norm.running_mean:hash(), norm.running_var:hash() }
    norm:eval()(ms.randn(4, 2))
    assert.same(before, { norm.running_mean:hash(), norm.running_var:hash() })
    assert.equal(2, norm.num_batches_tracked:item())
  end)

  it('refuses inputs of other shapes', function()
    local norm = nn.BatchNorm1d(2)
    checks.raises('ValueError', 'x has 4 dimensions, expected 2 or 3', norm, ms.zeros(1, 2, 1, 1))
    checks.raises('ValueError', 'x is (4, 3), expected 2 channels', norm, ms.zeros(4, 3))
    checks.raises('ValueError', 'Expected more than 1 value per channel when training, got input '
      .. 'size (1, 2)', norm, ms.zeros(1, 2))
  end)

  it('stays in full precision under mixed precision with a policy', function()
    local model
    local warnings = ms.capture_warnings(function()
      model = fsdp.FSDP(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), {
        process_group = ms.dist.fake { rank = 0, world = 2 },
        mixed_precision = { param_dtype = 'bf16' },
        auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Linear },
      })
    end)
    assert.truthy(warnings[1].message:find('submodules of type nn.BatchNorm1d', 1, true))
    assert.is_true(ms.is(model.module[2], fsdp.FSDP))
    assert.is_nil(model.module[2].mixed_precision.param_dtype)
  end)
end)
