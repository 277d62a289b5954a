-- lua/moonshard/nn/multihead_attention.lua: weights, masks, shapes. spec/nn/table.lua has the rest.
local ms = require 'moonshard'
local nn = ms.nn
local checks = require 'support.checks'

describe('scaled_dot_product_attention', function()
  it('keeps the memory order of transposed heads', function()
    local q = ms.randn({ 2, 3, 2, 4 }, { seed = 1, requires_grad = true })
    local heads = q:transpose(2, 3)
    local y = ms.ops.scaled_dot_product_attention(heads, heads, heads)
    assert.is_true(y:transpose(2, 3):is_contiguous())
    local dense = q:detach():transpose(2, 3):contiguous():requires_grad_()
    local same = ms.ops.scaled_dot_product_attention(dense, dense, dense)
    assert.is_true(same:is_contiguous())
    y:pow(2):sum():backward()
    same:pow(2):sum():backward()
    assert.same(same:totable(), y:totable())
    assert.same(dense:grad():transpose(2, 3):totable(), q:grad():totable())
  end)
end)

describe('MultiheadAttention', function()
  teardown(function() assert.equal(0, checks.live_handles()) end)

  local function attention(opts)
    ms.manual_seed(2)
    return nn.MultiheadAttention(4, 2, opts)
  end
  local q, k, later
  before_each(function()
    q, k = ms.randn({ 2, 3, 4 }, { seed = 1 }), ms.randn({ 2, 5, 4 }, { seed = 2 })
    later = ms.ones(3, 3):triu(1):gt(0)
  end)
  after_each(function() q, k, later = nil, nil, nil end)

  it('gives the weights, of heads or their mean', function()
    local attn = attention { batch_first = true }
    local _, mean = attn(q, k, k)
    local _, heads = attn(q, k, k, { average_attn_weights = false })
    assert.same({ 2, 3, 5 }, mean:shape())
    assert.same({ 2, 2, 3, 5 }, heads:shape())
    checks.close(mean:totable(), heads:mean(2))
    checks.close(ms.ones(2, 3):totable(), mean:sum(3))
    local y, none = attn(q, k, k, { need_weights = false })
    assert.is_nil(none)
    checks.close((attn(q, k, k)):totable(), y, 1e-6)
  end)

  it('takes one sample without its dimension', function()
    local attn = attention()
    local whole, weights = attn(q:transpose(1, 2), k:transpose(1, 2), k:transpose(1, 2))
    local y, w = attn(q[1], k[1], k[1])
    checks.close(whole:select(2, 1):totable(), y, 1e-6)
    checks.close(weights[1]:totable(), w, 1e-6)
  end)

  it('takes bool masks, floating ones and is_causal', function()
    local attn = attention { batch_first = true }
    local function run(opts) return (attn(q, q, q, opts)):totable() end
    local floats = ms.zeros(3, 3):masked_fill(later, -math.huge)
    local first = run { attn_mask = later }
    for _, opts in ipairs {
      { attn_mask = floats }, { is_causal = true }, { is_causal = true, need_weights = false },
      { attn_mask = floats, is_causal = true, need_weights = false },
      { attn_mask = ms.stack { floats, floats, floats, floats } },
    } do
      checks.close(first, (attn(q, q, q, opts)), 1e-6)
    end
    local padding = ms.tensor { { 0, 0, 0, 1, 1 }, { 0, 0, 0, 0, 0 } }
    local _, w = attn(q, k, k, { key_padding_mask = padding:gt(0) })
    checks.close({ 0, 0 }, w[1][2]:narrow(1, 4, 2))
    checks.raises('ValueError', 'attn_mask is (2, 2), expected (3, 3)', attn, q, q, q,
      { attn_mask = ms.zeros(2, 2) })
    checks.raises('ValueError', 'key_padding_mask is (5, 2), expected (2, 5)', attn, q, k, k,
      { key_padding_mask = padding:gt(0):transpose(1, 2) })
    checks.raises('TypeError', 'attn_mask is i64, expected bool or a floating dtype', attn, q, q, q,
      { attn_mask = later:to('i64') })
  end)

  it('draws the same masks for a sample in batches of any size', function()
    local attn = attention { batch_first = true, dropout = 0.5 }
    ms.manual_seed(3)
    local both = attn(q, q, q)
    ms.manual_seed(3)
    local first = q:narrow(1, 1, 1)
    checks.close(both[1]:totable(), attn(first, first, first)[1], 1e-6)
  end)

  it('begins with projections by the rule of Glorot and biases of 0', function()
    ms.manual_seed(0)
    local attn = nn.MultiheadAttention(64, 4):materialize()
    local bound = math.sqrt(6 / (64 + 3 * 64))
    local largest = math.max(unpack(attn.in_proj_weight:abs():reshape(-1):narrow(1, 1, 4000)
      :totable()))
    assert.is_true(largest <= bound and largest > 0.99 * bound)
    assert.equal(0, attn.in_proj_bias:abs():sum():item() + attn.out_proj.bias:abs():sum():item())
  end)
end)
