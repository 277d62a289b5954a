-- lua/moonshard/nn: transformers, and copies of layers. spec/nn/table.lua has the rest.
local ms = require 'moonshard'
local nn, fsdp = ms.nn, ms.fsdp
local checks = require 'support.checks'

local SMALL = {
  d_model = 8, nhead = 2, num_encoder_layers = 2, num_decoder_layers = 2, dim_feedforward = 4,
  batch_first = true,
}

local function small(opts)
  ms.manual_seed(1)
  local all = {}
  for _, from in ipairs { SMALL, opts or {} } do
    for name, value in pairs(from) do
      all[name] = value
    end
  end
  return nn.Transformer(all)
end

describe('Transformer', function()
  teardown(function() assert.equal(0, checks.live_handles()) end)

  it('has the sizes of the paper by default', function()
    local model = nn.Transformer()
    assert.equal(44140544, model:num_parameters()) -- of torch.nn.Transformer()
    assert.same({ 512, 8, 6, 6 }, { model.d_model, model.nhead, model.encoder.layers:len(),
      model.decoder.layers:len() })
  end)

  it('begins with matrices by the rule of Glorot, different ones in each layer', function()
    local model = small { d_model = 32, dim_feedforward = 128 }
    local first, second = model.encoder.layers[1], model.encoder.layers[2]
    model:materialize()
    local function check_bound(t, fan_in, fan_out)
      local bound = math.sqrt(6 / (fan_in + fan_out))
      local largest = math.max(unpack(t:abs():reshape(-1):totable()))
      assert.is_true(largest <= bound and largest > 0.97 * bound)
    end
    check_bound(first.self_attn.out_proj.weight, 32, 32)
    check_bound(second.linear1.weight, 32, 128)
    check_bound(model.decoder.layers[2].multihead_attn.in_proj_weight, 32, 96)
    assert.not_equal(first.linear1.weight:hash(), second.linear1.weight:hash())
    assert.equal(0, first.self_attn.in_proj_bias:abs():sum():item())
  end)

  it('sees nothing that masks hide', function()
    local model = small():eval()
    local src, tgt = ms.randn({ 1, 4, 8 }, { seed = 1 }), ms.randn({ 1, 3, 8 }, { seed = 2 })
    local other = tgt:clone()
    other[1][3] = 9 -- the last position
    local mask = nn.Transformer.generate_square_subsequent_mask(3)
    checks.close({ { 0, -math.huge }, { 0, 0 } },
      nn.Transformer.generate_square_subsequent_mask(2))
    for _, opts in ipairs { { tgt_mask = mask }, { tgt_is_causal = true },
      { tgt_mask = mask, tgt_is_causal = true } } do
      local a, b = model(src, tgt, opts), model(src, other, opts)
      checks.close(a:narrow(2, 1, 2):totable(), b:narrow(2, 1, 2), 1e-6)
      assert.not_equal(a:hash(), b:hash())
    end
    local long = ms.cat({ src, ms.randn({ 1, 2, 8 }, { seed = 3 }) }, 2)
    local padding = ms.tensor { { 0, 0, 0, 0, 1, 1 } }:gt(0)
    checks.close(model(src, tgt):totable(), model(long, tgt, {
      src_key_padding_mask = padding, memory_key_padding_mask = padding,
    }), 1e-5)
  end)

  it('refuses inputs that do not fit', function()
    local model = small()
    checks.raises('RuntimeError', 'the batch number of src and tgt must be equal, got 2 and 3',
      model, ms.zeros(2, 4, 8), ms.zeros(3, 4, 8))
    checks.raises('RuntimeError', 'the feature number of src and tgt must be equal to d_model',
      model, ms.zeros(2, 4, 8), ms.zeros(2, 4, 7))
  end)

  it('takes an encoder of your own', function()
    local model = small { custom_encoder = nn.Linear(8, 8) }
    assert.is_true(ms.is(model.encoder, nn.Linear))
    assert.same({ 1, 2, 8 }, nn.Transformer.forward(model, ms.zeros(1, 2, 8), ms.zeros(1, 2, 8),
      nil):shape()) -- the encoder ignores the masks
  end)
end)

describe('the layers of TransformerEncoder', function()
  teardown(function() assert.equal(0, checks.live_handles()) end)

  local Layer = nn.Module.extend('Layer')
  function Layer:init()
    self.fc, self.other = nn.Linear(3, 3), nn.Linear(3, 3, { bias = false })
    self.other.weight = self.fc.weight
    self:buffer('calls', ms.zeros(1))
    self.list = nn.ModuleList(nn.Tanh())
    self.table = { 1, { 2 } }
    self.fc.bias:requires_grad_(false)
  end
  function Layer:forward(x) return self.list[1](self.other(self.fc(x))) end

  it('are copies: ties, buffers, fields and what is frozen', function()
    local layer = Layer()
    local model = nn.TransformerEncoder(layer, 2, nn.LayerNorm(3))
    local a, b = model.layers[1], model.layers[2]
    layer.table[2][1] = 5
    assert.equal(2, a.table[2][1])
    model(ms.zeros(1, 3))
    assert.equal(a.fc.weight:hash(), a.other.weight:hash())
    assert.not_equal(a.fc.weight:hash(), b.fc.weight:hash())
    assert.is_false(b.fc.bias:requires_grad())
    assert.equal(2 * (9 + 3) + 6, model:num_parameters())
    a.calls:fill_(1)
    assert.equal(0, b.calls:item())
  end)

  it('have the values of a layer that has some', function()
    local layer = Layer():materialize()
    local model = nn.TransformerEncoder(layer, 2)
    model(ms.zeros(1, 3))
    assert.equal(layer.fc.weight:hash(), model.layers[2].fc.weight:hash())
    ms.no_grad(layer.fc.weight.fill_, layer.fc.weight, 0)
    assert.not_equal(layer.fc.weight:hash(), model.layers[2].fc.weight:hash())
  end)

  it('are not made of what FSDP wraps', function()
    local wrapped
    ms.capture_warnings(function() wrapped = fsdp.FSDP(nn.Linear(3, 3)) end)
    checks.raises('RuntimeError', 'is wrapped by FSDP', nn.TransformerEncoder, wrapped, 2)
  end)
end)
