-- test_fsdp_flatten_params.py
local ms = require 'moonshard'
local nn = ms.nn
local checks = require 'support.checks'
local reference = require 'support.reference'

local function transformer(half, shared)
  ms.manual_seed(0)
  local model = nn.Transformer {
    d_model = 32, nhead = 8, num_encoder_layers = 2, num_decoder_layers = 2, dim_feedforward = 128,
  }
  for i = 1, shared and 2 or 0 do
    local encoder, decoder = model.encoder.layers[i], model.decoder.layers[i]
    decoder.linear1.weight, decoder.linear2.weight = encoder.linear1.weight, encoder.linear2.weight
  end
  model:materialize()
  return half and model:half() or model
end

local function each_dtype(fn)
  fn(false)
  fn(true)
end

local function numel(shared, expected)
  each_dtype(function(half)
    local model = reference.wrap(transformer(half, shared))
    assert.equal(1, #model:units())
    assert.equal(expected, model:units()[1].numel)
  end)
end

local function output(shared)
  each_dtype(function(half)
    local function run(model)
      ms.manual_seed(1)
      local dtype = half and 'f16' or 'f32'
      return model(ms.rand(20, 8, 32):to(dtype), ms.rand(10, 8, 32):to(dtype))
    end
    local expected = run(transformer(half, shared))
    assert.equal(expected:hash(), run(reference.wrap(transformer(half, shared))):hash())
  end)
end

describe('TestFlattenParams', function()
  pending('test_partial_flattening', 'flat parameters in parameters()')
  pending('test_flatten_nothing', 'the message of FlatParamHandle')

  it('test_empty_module', function()
    local Add = nn.Module.extend 'Add'
    function Add:forward(x) return x + 1 end
    local model = reference.wrap(Add())
    assert.same({}, model:parameters())
    assert.same({}, model:units())
    checks.close({ 2, 2 }, model(ms.ones(2)))
  end)

  it('test_numel_without_shared_params', function() numel(false, 59520) end)
  it('test_numel_with_shared_params', function() numel(true, 43136) end)
  it('test_output_without_shared_params', function() output(false) end)
  it('test_output_with_shared_params', function() output(true) end)
  pending('test_pnorm_after_step_with_shared_params', 'tensor:norm()')
  pending('test_flat_param_shard_metadata_aligned_full_precision', 'shard_metadata()')
  pending('test_flat_param_shard_metadata_aligned_mixed_precision', 'shard_metadata()')
end)
