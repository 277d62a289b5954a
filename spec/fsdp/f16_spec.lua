-- f16 and i32: training in f16 at several world sizes, values, arithmetic. Training comes first: a
-- process that has opened its device cannot fork ranks.
local ms = require 'moonshard'
local checks = require 'support.checks'
local runs = require 'support.runs'

-- Two steps of four micro-batches, split over the ranks.
local function trained(ranks)
  local reports, cause = runs.reports(ranks, function(rank)
    ms.manual_seed(7)
    local model = ms.fsdp.FSDP(ms.models.GPT { vocab = 13, layers = 2, heads = 2, width = 16,
      context = 8 }, { mixed_precision = { param_dtype = ms.f16, reduce_dtype = ms.f32 },
      auto_wrap_policy = ms.fsdp.ModuleWrapPolicy { ms.nn.TransformerBlock } })
    -- the mean over micro-batches is taken here: f16 has no exponents to spare for it in the loss
    local opt = ms.optim.SGD(model:parameters(), { lr = 0.1 * ranks / 4, momentum = 0.9 })
    local losses = {}
    for step = 0, 1 do
      local per_rank = 4 / ranks
      local function micro(i)
        local row = {}
        for t = 1, 9 do
          row[t] = (step * 31 + (rank * per_rank + i) * 7 + t * t) % 13
        end
        local x = ms.tensor({ { unpack(row, 1, 8) } }, { dtype = ms.i64 })
        local y = ms.tensor({ { unpack(row, 2, 9) } }, { dtype = ms.i64 })
        local loss = model(x, y)
        losses[#losses + 1] = loss:item()
        loss:backward()
      end
      model:no_sync(function()
        for i = 0, per_rank - 2 do
          micro(i)
        end
      end)
      micro(per_rank - 1)
      opt:step()
      opt:zero_grad()
    end
    return model:hash() .. ' ' .. table.concat(losses, ' ', 1, 1)
  end)
  assert.is_nil(cause)
  return reports[0]
end

describe('f16', function()
  it('trains to the same bits on one, two and four ranks', function()
    local one = trained(1)
    assert.equal(one:match '^%S+', trained(2):match '^%S+')
    assert.equal(one:match '^%S+', trained(4):match '^%S+')
    assert.is_true(math.abs(tonumber(one:match '%S+$') - math.log(13)) < 0.2)
  end)

  it('rounds to binary16', function()
    local t = ms.tensor { 1, 65504, 65519.9, 65520, 2 ^ -24, 2 ^ -25, 0.1, -0.0 }:f16()
    assert.equal('f16', t:dtype())
    assert.same({ 1, 65504, 65504, math.huge, 2 ^ -24, 0, 0.0999755859375, 0 }, t:totable())
  end)

  it('rounds once, sums in f32 and keeps losses in f32', function()
    local ones = ms.full({ 4096 }, 1, { dtype = ms.f16 })
    local loss_scale = ms.full({ 1 }, 2, { dtype = ms.f16 }):requires_grad_() / 65536
    assert.equal(2 ^ -15, loss_scale:item()) -- a number beside a tensor is not rounded to its type
    for _, name in ipairs { 'f16', 'bf16' } do
      local x = (ms.rand(1000) + 0.5):to(name):requires_grad_()
      local wide = x:detach():to('f32'):requires_grad_()
      local y, z = x / 0.1 + 0.1 / x, (wide / 0.1):to(name) + (0.1 / wide):to(name)
      y:sum():backward()
      z:sum():backward()
      assert.same(z:totable(), y:totable())
      checks.close(wide:grad():totable(), x:grad():to('f32'), name == 'f16' and 1e-2 or 1e-1)
    end
    assert.equal(4096, ones:sum():item()) -- in steps of f16 it would stop at 2048
    local x = ms.randn(3, 5):f16():requires_grad_(true)
    local loss = ms.ops.mse_loss(x, ms.zeros(3, 5, { dtype = ms.f16 }))
    loss:backward()
    assert.equal('f32', loss:dtype())
    assert.equal('f16', x:grad():dtype())
  end)
end)

describe('i32', function()
  it('wraps around, and sums in i64', function()
    local t = ms.tensor({ 2 ^ 31 - 1, -5 }, { dtype = ms.i32 })
    assert.same({ -2 ^ 31, -4 }, (t + 1):totable())
    assert.same({ true, false }, t:gt(0):totable())
    local sum = t:sum()
    assert.equal('i64', sum:dtype())
    assert.equal(2 ^ 31 - 6, sum:item())
  end)

  it('counts true elements', function()
    assert.equal(2, ms.tensor({ 1, 0, 3 }):gt(0):sum():item())
  end)
end)
