-- shapes without memory, under every operator that a script can call: signatures say how
local ms = require 'moonshard'
local B = require 'moonshard_ffi'
local checks = require 'support.checks'
local signatures = require 'support.signatures'

local dtype = require 'moonshard.dtype'

local function meta(t)
  local sizes = t:shape()
  local shape = B.new('int64_t[?]', math.max(#sizes, 1), sizes)
  return B.calls.tensor_meta(dtype.code(t:dtype()), #sizes, shape)
end

--- What is given, with a meta tensor for every tensor.
local function without_values(value)
  if ms.is_tensor(value) then
    return meta(value)
  elseif type(value) ~= 'table' then
    return value
  end
  local copy = {}
  for key, entry in pairs(value) do
    copy[key] = without_values(entry)
  end
  return copy
end

local function has_values(t)
  return not tostring(t):find('no values', 1, true)
end

-- Numbers of their own come of these, not tensors.
local READS = { all = true, any = true, equal = true, allclose = true }

-- What an operator gives: one tensor, or a list of them (split).
local function list(results)
  return ms.is_tensor(results) and { results } or results
end

describe('a meta tensor', function()
  teardown(function()
    assert.equal(0, checks.live_handles())
  end)

  for name, arguments in pairs(signatures.of) do
    local collective = name:match('^ms%.dist%.functional%.([%w_]+)$')
    local op = collective or name:match('^ms%.ops%.([%w_]+)$')
    local functions = collective and ms.dist.functional or ms.ops
    if op and op ~= 'site' then
      it('goes through ' .. op, function()
        local real, shapes = {}, {}
        for i, argument in ipairs(arguments()) do
          real[i], shapes[i] = argument.value, without_values(argument.value)
        end
        if READS[op] then
          checks.raises('RuntimeError', 'has no values yet', functions[op], unpack(shapes))
          return
        end
        local wanted, found = list(functions[op](unpack(real))), list(functions[op](unpack(shapes)))
        assert.equal(#wanted, #found)
        for i, want in ipairs(wanted) do
          local got = found[i]
          assert.same(want:shape(), got:shape())
          assert.equal(want:dtype(), got:dtype())
          assert.is_true(has_values(want))
          assert.is_false(has_values(got))
        end
      end)
    end
  end

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
