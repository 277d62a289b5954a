-- test_wrap.py
local ms = require 'moonshard'
local nn, fsdp = ms.nn, ms.fsdp
local FSDP = fsdp.FSDP
local checks = require 'support.checks'
local reference = require 'support.reference'
local wrap, wrapped_paths = reference.wrap, reference.wrapped_paths

local function linear() return nn.Linear(5, 5) end -- 30 parameters

local function nested()
  return nn.Sequential(linear(), linear(), nn.Sequential(linear(), linear()))
end

local function by_size(min_num_params, force_leaf_modules)
  return fsdp.size_based_auto_wrap_policy {
    min_num_params = min_num_params, force_leaf_modules = force_leaf_modules,
  }
end

local function wrap_quietly(module, opts)
  local model
  ms.capture_warnings(function() model = fsdp.wrap(module, opts) end)
  return model
end

-- fn(how), how(module, options) being the constructor and fsdp.wrap() inside enable_wrap().
local function both_ways(fn)
  fn(wrap)
  fn(function(module, opts)
    return fsdp.enable_wrap({ wrapper_cls = FSDP }, wrap_quietly, module, opts)
  end)
end

describe('TestFSDPWrap', function()
  it('test_error_already_wrapped', function()
    for path, make in pairs { -- the order does not matter
      ['lin1.1'] = function(inner) return nn.Sequential(linear(), inner) end,
      lin1 = function(inner) return inner end,
    } do
      local model = nn.Module()
      model:child('lin1', make(wrap(linear())))
      checks.raises('ValueError', 'FSDP auto wrapping requires modules to not already have FSDP '
        .. 'applied but found ' .. (path == 'lin1' and 'lin1' or 'lin1.1') .. ' in', wrap, model,
        { auto_wrap_policy = fsdp.always_wrap_policy })
    end
  end)

  local BatchNormNet = nn.Module.extend('BatchNormNet')
  function BatchNormNet:init()
    self.lin = nn.Linear(10, 10, { bias = false })
    self.bn1 = nn.BatchNorm1d(10)
    self.bn2 = nn.BatchNorm2d(10)
    self.bn3 = nn.BatchNorm3d(10)
    self.sync_bn = nn.SyncBatchNorm(10)
  end
  local norms = fsdp.wrap_module_cls_individually {
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm,
  }

  local function check_wrapped(expected, module, policy)
    assert.same(expected, wrapped_paths(wrap(module, { auto_wrap_policy = policy })))
  end

  it('test_wrap_batchnorm_individually', function()
    for _, policy in ipairs { norms, fsdp.or_policy { function() return false end, norms } } do
      check_wrapped({ '', 'bn1', 'bn2', 'bn3', 'sync_bn' }, BatchNormNet(), policy)
    end
  end)

  it('test_bn_always_wrapped_individually', function()
    local function containers(module) return ms.is(module, BatchNormNet) end
    local function model() -- with a container
      local outer = nn.Module()
      outer:child('bn_container', BatchNormNet())
      return outer
    end
    check_wrapped({ '', 'bn_container', 'bn_container.bn1', 'bn_container.bn2', 'bn_container.bn3',
      'bn_container.sync_bn' }, model(), fsdp.or_policy { containers, norms })
    check_wrapped({ '', 'bn_container' }, model(), containers)
  end)

  it('test_main_wrap_api', function()
    for _, offload_params in ipairs(reference.OFFLOADS) do
      for _, prefetch in ipairs { 'BACKWARD_POST', 'BACKWARD_PRE' } do
        for _, forward_prefetch in ipairs { false, true } do
          local function one() return nn.Linear(1, 1, { bias = false }) end
          local model = wrap(nn.Sequential(one(), one(), one(), nn.Sequential(one())), {
            auto_wrap_policy = by_size(0), backward_prefetch = prefetch,
            forward_prefetch = forward_prefetch, cpu_offload = { offload_params = offload_params },
          })
          assert.same({ '', '0', '1', '2', '3', '3.0' }, wrapped_paths(model))
          for _, module in ipairs(model:modules()) do
            if ms.is(module, FSDP) then
              assert.equal(offload_params, module.cpu_offload.offload_params)
              assert.equal(prefetch, module.backward_prefetch)
              assert.equal(forward_prefetch, module.forward_prefetch)
            end
          end
          local opt = ms.optim.SGD(model:parameters(), { lr = 1e-2, momentum = 0.9 })
          for _ = 1, 6 do
            opt:zero_grad()
            model(ms.ones(1, 1)):sum():backward()
            opt:step()
          end
        end
      end
    end
  end)
end)

-- -- a model with adapters -----------------------------------------------------------------------

local Attention = nn.Module.extend('Attention')
function Attention:init()
  for _, name in ipairs { 'q_proj', 'lora_A', 'lora_B', 'k_proj', 'v_proj', 'o_proj' } do
    local rank = { lora_A = { 32, 8 }, lora_B = { 8, 32 } }
    local size = rank[name] or { 32, 32 }
    self:child(name, nn.Linear(size[1], size[2], { bias = false }))
      :requires_grad_(rank[name] ~= nil)
  end
end
local Layer = nn.Module.extend('Layer')
function Layer:init()
  self:child('attn', Attention())
  self:child('norm', nn.LayerNorm(32)):requires_grad_(false)
end
local function lora()
  local model = nn.Module()
  model:child('layers', nn.ModuleList(Layer(), Layer()))
  return model
end
local PREFIX = 'layers.0.attn has both parameters with requires_grad=True and False. '

describe('TestAutoWrap', function()
  it('test_wrap', function()
    both_ways(function(how)
      local group = ms.dist.fake { rank = 0, world = 1 }
      local model = how(linear(), { process_group = group })
      assert.is_true(ms.is(model, FSDP))
      assert.same({ 0, 1 }, { model.rank, model.world_size })
    end)
  end)

  local Model = nn.Module.extend 'Model'
  function Model:init() self:child('lin', fsdp.wrap(linear())) end
  function Model:forward(x) return self.lin(x) end

  it('test_wrap_disabled_outside_context', function()
    assert.is_false(ms.is(Model().lin, FSDP))
    local model = Model()
    local outer = fsdp.enable_wrap({ wrapper_cls = FSDP }, wrap_quietly, model)
    assert.same({ '' }, wrapped_paths(outer))
  end)

  it('test_wrap_override_defaults', function()
    local small, large = ms.dist.fake { rank = 0, world = 1 }, ms.dist.fake { rank = 0, world = 2 }
    local model = fsdp.enable_wrap({ wrapper_cls = FSDP, process_group = small }, wrap_quietly,
      linear(), { process_group = large })
    assert.same({ 0, 2 }, { model.rank, model.world_size })
  end)

  it('test_always_wrap', function()
    local model = wrap(nested(), { auto_wrap_policy = fsdp.always_wrap_policy })
    assert.same({ '', '0', '1', '2', '2.0', '2.1' }, wrapped_paths(model))
  end)

  local LAYERS = { nn.TransformerEncoderLayer, nn.TransformerDecoderLayer }
  local ENCODER, DECODER = 'transformer.encoder.layers.', 'transformer.decoder.layers.'

  local function layers_are_wrapped(policy)
    assert.same({ '', ENCODER .. 0, ENCODER .. 1, DECODER .. 0, DECODER .. 1 },
      wrapped_paths(wrap(reference.shared_transformer(), { auto_wrap_policy = policy })))
  end

  it('test_transformer_auto_wrap_policy', function()
    layers_are_wrapped(fsdp.transformer_auto_wrap_policy(LAYERS))
  end)

  it('test_module_wrap_policy', function()
    layers_are_wrapped(fsdp.ModuleWrapPolicy(LAYERS))
  end)

  it('test_module_wrap_policy_callable', function()
    layers_are_wrapped(fsdp.or_policy { fsdp.ModuleWrapPolicy(LAYERS) })
  end)

  it('test_custom_policy', function()
    for _, uniform in ipairs { true, false } do
      local module = reference.shared_transformer()
      local bn = module.bn
      local model = wrap(module, {
        process_group = ms.dist.fake { rank = 0, world = 2 },
        mixed_precision = { param_dtype = ms.f16 },
        auto_wrap_policy = fsdp.CustomPolicy(function(m)
          if m == bn then
            return uniform or { sharding_strategy = 'NO_SHARD' }
          elseif ms.is(m, nn.TransformerDecoderLayer) then
            return uniform
              or { sharding_strategy = 'SHARD_GRAD_OP', backward_prefetch = 'BACKWARD_POST' }
          end
          return ms.is(m, nn.TransformerEncoderLayer)
        end),
      })
      local as_root = { 'FULL_SHARD', 'BACKWARD_PRE', 'f16', 'none', 'none' }
      local decoder = uniform and as_root or { 'SHARD_GRAD_OP', 'BACKWARD_POST', 'f16', 'none',
        'none' }
      local found = {}
      for path, m in model:named_modules() do
        if ms.is(m, FSDP) then
          local precision = m.mixed_precision
          found[path] = { m.sharding_strategy, m.backward_prefetch, precision.param_dtype or 'none',
            precision.reduce_dtype or 'none', precision.buffer_dtype or 'none' }
        end
      end
      assert.same({
        [''] = as_root, [ENCODER .. 0] = as_root, [ENCODER .. 1] = as_root,
        [DECODER .. 0] = decoder, [DECODER .. 1] = decoder,
        bn = { uniform and 'FULL_SHARD' or 'NO_SHARD', 'BACKWARD_PRE', 'none', 'none', 'none' },
      }, found)
    end
  end)

  it('test_auto_wrap_api', function()
    assert.same({ '', '2' }, wrapped_paths(wrap(nested(), { auto_wrap_policy = by_size(40) })))
  end)

  it('test_auto_wrap_preset_exclude_wrap', function()
    local model = nn.ModuleList(linear(), linear())
    assert.same({ '' }, wrapped_paths(wrap(model, { auto_wrap_policy = by_size(40) })))
  end)

  it('test_auto_wrap_preset_exclude_wrap_include_children', function()
    local model = nn.ModuleList(nn.Linear(10, 10))
    assert.same({ '', '0' }, wrapped_paths(wrap(model, { auto_wrap_policy = by_size(40) })))
  end)

  it('test_auto_wrap_preset_force_leaf', function()
    local model = wrap(nn.Sequential(nn.Linear(10, 10), nn.MultiheadAttention(100, 1)),
      { auto_wrap_policy = by_size(40) })
    assert.same({ '', '0' }, wrapped_paths(model))
    assert.is_true(ms.is(model.module[2].out_proj, nn.Linear))
  end)

  it('test_auto_wrap_preset_force_leaf_custom', function()
    local leaves = { nn.Linear, unpack(fsdp.size_based_auto_wrap_policy.FORCE_LEAF_MODULES) }
    local model = nn.Sequential(nn.Linear(10, 10), nn.ModuleList(nn.Linear(10, 10)))
    assert.same({ '' }, wrapped_paths(wrap(model, { auto_wrap_policy = by_size(40, leaves) })))
  end)

  it('test_auto_wrap_smoke_test', function()
    local device = os.getenv 'MS_DEVICE' or 'cpu'
    for _, offload_params in ipairs(reference.OFFLOADS) do
      for _, device_id in ipairs { device, false } do
        local model = wrap(nested(), {
          auto_wrap_policy = by_size(40), cpu_offload = { offload_params = offload_params },
          device_id = device_id or nil,
        })
        assert.same({ '', '2' }, wrapped_paths(model))
        local x = ms.rand(1, 5)
        ms.ops.mse_loss(model(x), x):backward()
      end
    end
  end)

  local function with_ignored(policy, expected)
    both_ways(function(how)
      local model = nested()
      local ignored = { model[2], model[3][1] }
      assert.same(expected, wrapped_paths(how(model,
        { auto_wrap_policy = policy, ignored_modules = ignored })))
    end)
  end

  it('test_always_wrap_with_ignored_modules', function()
    with_ignored(fsdp.always_wrap_policy, { '', '0', '2', '2.1' })
  end)

  it('test_auto_wrap_with_ignored_modules', function()
    with_ignored(by_size(40), { '' })
  end)

  it('test_frozen_params', function()
    for _, policy in ipairs {
      fsdp.ModuleWrapPolicy { Attention, Layer },
      fsdp.CustomPolicy(function(m) return ms.is(m, Attention) or ms.is(m, Layer) end),
      fsdp.CustomPolicy(function(m)
        return ms.is(m, Attention) and { sharding_strategy = 'SHARD_GRAD_OP' } or ms.is(m, Layer)
      end),
    } do
      checks.raises('ValueError', PREFIX .. 'FSDP does not support wrapping such modules when '
        .. 'use_orig_params=False.', wrap, lora(), { auto_wrap_policy = policy })
      local warnings = ms.capture_warnings(FSDP, lora(),
        { auto_wrap_policy = policy, use_orig_params = true })
      local text = warnings[2].message
      assert.equal('UserWarning', warnings[2].kind)
      assert.equal(1, (text:find(PREFIX .. 'We do not recommend wrapping such modules', 1, true)))
    end
  end)
end)

describe('TestWrapUtils', function()
  it('test_validate_frozen_params', function()
    local frozen = require 'moonshard.fsdp.frozen'
    local model = lora()
    local to_wrap, ignored = {}, {}
    local function set(name, value)
      for _, layer in ipairs(model.layers) do
        to_wrap[layer.attn[name] or layer.attn] = value
      end
    end
    local function validate(use_orig_params)
      return ms.capture_warnings(frozen.validate, model, to_wrap, ignored,
        { use_orig_params = use_orig_params })
    end
    set('lora_A', true)
    set('lora_B', true)
    assert.same({}, validate(false))
    set('all of attention', true)
    assert.same({}, validate(false))
    set('lora_A', nil)
    local message = validate(true)[1].message
    for _, part in ipairs {
      -- four frozen 32 x 32 and lora_A's 8 x 32; lora_B is wrapped apart
      '(4352 numel instead of 256 numel before sharding via reduce-scatter)',
      'If possible, wrap the frozen parameters with FSDP separately.',
      "requires_grad=True: ['layers.0.attn.lora_A.weight']",
      "requires_grad=False: ['layers.0.attn.q_proj.weight', 'layers.0.attn.k_proj.weight', "
        .. "'layers.0.attn.v_proj.weight', 'layers.0.attn.o_proj.weight']",
    } do
      assert.truthy(message:find(part, 1, true), message)
    end
    checks.raises('ValueError', PREFIX, validate, false)
    local parameter = require 'moonshard_ffi.parameter'
    for _, layer in ipairs(model.layers) do
      ignored[parameter.key(layer.attn.lora_A.weight)] = true
    end
    assert.same({}, validate(false))
  end)
end)
