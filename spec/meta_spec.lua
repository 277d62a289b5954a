-- shapes without memory; tests/autograd/test_meta.c has every operator
local ms = require 'moonshard'
local B = require 'moonshard_ffi'
local checks = require 'support.checks'

local dtype = require 'moonshard.base.dtype'

local function meta(t)
  local sizes = t:shape()
  local shape = B.new('int64_t[?]', math.max(#sizes, 1), sizes)
  return B.calls.tensor_meta(dtype.code(t:dtype()), #sizes, shape)
end

describe('a meta tensor', function()
  teardown(function()
    assert.equal(0, checks.live_handles())
  end)

  it('takes a whole model to the shape of its loss', function()
    local ids = meta(ms.zeros(2, 16, { dtype = 'i64' }))
    local x = ms.ops.embedding(meta(ms.zeros(32, 8)), ids)
    local y = ms.ops.linear(ms.ops.layer_norm(x), meta(ms.zeros(32, 8)))
    local loss = ms.ops.cross_entropy(y, ids)
    assert.same({ 2, 16, 32 }, y:shape())
    assert.same({}, loss:shape())
    checks.raises('RuntimeError', 'has no values yet', loss.item, loss)
  end)
end)
