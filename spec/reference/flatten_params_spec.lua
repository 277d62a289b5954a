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
  it('test_partial_flattening', function()
    each_dtype(function(half)
      local model = transformer(half)
      local encoder, decoder = model.encoder.layers, model.decoder.layers
      encoder[2], decoder[1] = reference.wrap(encoder[2]), reference.wrap(decoder[1])
      local counts, flats, total = {}, {}, 0
      for i, layer in ipairs { encoder[2], decoder[1], encoder[1], decoder[2] } do
        counts[i] = #layer:parameters()
      end
      assert.same({ 1, 1, 12, 18 }, counts)
      for p in model:parameters() do
        total = total + p:numel()
      end
      flats[1], flats[2] = encoder[2]:parameters()[1], decoder[1]:parameters()[1]
      assert.same({ 59520, 12704, 16992 }, { total, flats[1]:numel(), flats[2]:numel() })
      local values = flats[1]:totable()
      for _, dtype in ipairs { half and 'f16' or 'f32', half and 'f32' or 'f16' } do
        model:to(dtype)
        for _, p in ipairs { flats[1], flats[2], encoder[1]:parameters()[1] } do
          assert.equal(dtype, p:dtype())
        end
      end
      checks.close(values, flats[1], 1e-3)
    end)
  end)

  it('test_flatten_nothing', function()
    local runtime = require 'moonshard_ffi.fsdp'
    checks.raises('ValueError', 'Cannot construct a FlatParamHandle with an empty parameter list',
      runtime.unit, runtime.unit_holder(), ms.dist.world(), 'nothing',
      { sharding_strategy = 'FULL_SHARD', use_orig_params = false }, {}, {})
  end)

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

  it('test_pnorm_after_step_with_shared_params', function()
    each_dtype(function(half)
      local function norm_after_step(model)
        ms.manual_seed(1)
        local dtype = half and 'f16' or 'f32'
        local opt = ms.optim.SGD(model:parameters(), { lr = 0.01 })
        model(ms.rand(20, 8, 32):to(dtype), ms.rand(10, 8, 32):to(dtype)):sum():backward()
        opt:step()
        local norms = {}
        for i, p in ipairs(model:parameters()) do
          norms[i] = p:detach():norm():to('f32')
        end
        return ms.stack(norms):norm():item()
      end
      local expected = norm_after_step(transformer(half, true))
      local model = reference.wrap(transformer(half, true), { use_orig_params = true })
      assert.is_true(expected > 1)
      checks.close(expected, norm_after_step(model), half and 1e-3 or 1e-5)
    end)
  end)


  -- Three layers of these widths on two ranks.
  local function metadata(widths, mixed_precision, expected)
    ms.close() -- this process was a rank of a world of one
    ms.dist.spawn(2, function(rank)
      local layers = {}
      for i = 1, 3 do
        layers[i] = nn.Linear(widths[i], widths[i + 1], { bias = false })
      end
      local model = reference.wrap(nn.Sequential(layers),
        { use_orig_params = true, mixed_precision = mixed_precision })
      assert.same(expected[rank + 1], model:shard_metadata())
    end)
  end

  it('test_flat_param_shard_metadata_aligned_full_precision', function()
    metadata({ 3, 7, 5, 5 }, nil, { -- 21 + 3 of padding, 35 + 1, 25: 43 for each rank
      {
        param_names = { '0.weight', '1.weight' }, param_shapes = { { 7, 3 }, { 5, 7 } },
        param_numels = { 21, 35 }, param_offsets = { { 0, 20 }, { 0, 18 } },
      },
      {
        param_names = { '1.weight', '2.weight' }, param_shapes = { { 5, 7 }, { 5, 5 } },
        param_numels = { 35, 25 }, param_offsets = { { 19, 34 }, { 0, 24 } },
      },
    })
  end)

  it('test_flat_param_shard_metadata_aligned_mixed_precision', function()
    metadata({ 2, 5, 5, 3 }, { param_dtype = 'f16' }, { -- 10 + 6, 25 + 7, 15: 32 for each rank
      {
        param_names = { '0.weight', '1.weight' }, param_shapes = { { 5, 2 }, { 5, 5 } },
        param_numels = { 10, 25 }, param_offsets = { { 0, 9 }, { 0, 15 } },
      },
      {
        param_names = { '1.weight', '2.weight' }, param_shapes = { { 5, 5 }, { 3, 5 } },
        param_numels = { 25, 15 }, param_offsets = { { 16, 24 }, { 0, 14 } },
      },
    })
  end)
end)
