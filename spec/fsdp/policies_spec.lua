-- lua/moonshard/fsdp/{policies,wrap,frozen,ignored}.lua: policies and ignored modules
local ms = require 'moonshard'
local nn, fsdp = ms.nn, ms.fsdp
local FSDP = fsdp.FSDP
local checks = require 'support.checks'
local wrapped_paths = require 'support.reference'.wrapped_paths
local wrapped = require 'support.wrap'

local function linear()
  return nn.Linear(5, 5) -- 30 parameters
end

local function nested()
  return nn.Sequential(linear(), linear(), nn.Sequential(linear(), linear()))
end

local Encoder = nn.Module.extend('Encoder')
function Encoder:init() self:child('lin', linear()) end
function Encoder:forward(x) return self.lin(x) end
local Decoder = nn.Module.extend('Decoder')
Decoder.init = Encoder.init
Decoder.forward = Encoder.forward
local Norm = nn.Module.extend('Norm', nn.LayerNorm)

local function transformer()
  local model = nn.Module()
  model:child('encoder', nn.ModuleList(Encoder(), Encoder()))
  model:child('decoder', nn.ModuleList(Decoder(), Decoder()))
  model:child('norm', Norm(5))
  function model:forward(x)
    return self.norm(self.decoder[2](self.decoder[1](self.encoder[2](self.encoder[1](x)))))
  end
  return model
end

local LAYERS = { '', 'encoder.0', 'encoder.1', 'decoder.0', 'decoder.1' }

describe('wrap policies', function()
  teardown(function()
    assert.equal(0, checks.live_handles())
  end)

  it('always_wrap_policy wraps every module', function()
    local model = wrapped(nested(), { auto_wrap_policy = fsdp.always_wrap_policy })
    assert.same({ '', '0', '1', '2', '2.0', '2.1' }, wrapped_paths(model))
  end)

  describe('size_based_auto_wrap_policy', function()
    local function by_size(model, opts)
      return wrapped(model, { auto_wrap_policy = fsdp.size_based_auto_wrap_policy(opts) })
    end

    it('does not count wrapped children', function()
      assert.same({ '', '2' }, wrapped_paths(by_size(nested(), { min_num_params = 40 })))
    end)

    it('wraps the entries of lists, not lists', function()
      local list = nn.ModuleList(linear(), linear())
      assert.same({ '' }, wrapped_paths(by_size(list, { min_num_params = 40 })))
      local large = nn.ModuleList(nn.Linear(10, 10))
      assert.same({ '', '0' }, wrapped_paths(by_size(large, { min_num_params = 40 })))
    end)

    it('does not wrap inside attention or force_leaf_modules', function()
      local attention = nn.CausalSelfAttention(10, 1)
      local model = nn.Sequential(nn.Linear(10, 10), attention)
      assert.same({ '', '0' }, wrapped_paths(by_size(model, { min_num_params = 40 })))
      assert.is_true(ms.is(attention.proj, nn.Linear))

      local leaves = { nn.Linear, unpack(fsdp.size_based_auto_wrap_policy.FORCE_LEAF_MODULES) }
      model = nn.Sequential(nn.Linear(10, 10), nn.ModuleList(nn.Linear(10, 10)))
      assert.same({ '' }, wrapped_paths(by_size(model,
        { min_num_params = 40, force_leaf_modules = leaves })))
    end)

    it('can be given without options; the least size is 1e8', function()
      assert.same({ '' }, wrapped_paths(wrapped(nested(),
        { auto_wrap_policy = fsdp.size_based_auto_wrap_policy })))
      checks.raises('ValueError', "did you mean 'min_num_params'?",
        fsdp.size_based_auto_wrap_policy, { min_num_param = 3 })
    end)
  end)

  it('class policies wrap the root and objects of the classes', function()
    for _, policy in ipairs {
      fsdp.transformer_auto_wrap_policy { Encoder, Decoder },
      fsdp.ModuleWrapPolicy { Encoder, Decoder },
      fsdp.or_policy { fsdp.ModuleWrapPolicy { Encoder, Decoder } },
      fsdp.lambda_auto_wrap_policy(function(m) return ms.is(m, Encoder) or ms.is(m, Decoder) end),
    } do
      assert.same(LAYERS, wrapped_paths(wrapped(transformer(), { auto_wrap_policy = policy })))
    end
    assert.equal('ModuleWrapPolicy{Encoder, Decoder}',
      tostring(fsdp.ModuleWrapPolicy { Encoder, Decoder }))
    checks.raises('TypeError', 'entry 1 is a string, expected a class', fsdp.ModuleWrapPolicy,
      { 'Encoder' })
    checks.raises('TypeError', 'fsdp.ModuleWrapPolicy takes an array of classes: write '
      .. '{ nn.Linear }', fsdp.ModuleWrapPolicy, nn.Linear)
    checks.raises('TypeError', "'fn' is nil, expected a function", fsdp.lambda_auto_wrap_policy)
  end)

  it('a function wraps where it returns true or options', function()
    local function only_true(m) if ms.is(m, Encoder) or ms.is(m, Decoder) then return true end end
    local function options(m) return ms.is(m, Norm) and { sharding_strategy = 'NO_SHARD' } end
    local function full(m) return ms.is(m, Norm) and { mixed_precision = false } end
    local function protocol(m, recurse, numel)
      assert.is_true(numel >= 0)
      return recurse or only_true(m)
    end
    for _, policy in ipairs { only_true, fsdp.CustomPolicy(only_true),
      fsdp.lambda_auto_wrap_policy(only_true), fsdp.callable_policy(protocol) } do
      assert.same(LAYERS, wrapped_paths(wrapped(transformer(), { auto_wrap_policy = policy })))
    end
    for _, policy in ipairs { options, fsdp.lambda_auto_wrap_policy(options),
      fsdp.or_policy { function() end, options } } do
      assert.equal('NO_SHARD',
        wrapped(transformer(), { auto_wrap_policy = policy }).norm.sharding_strategy)
    end
    local model = wrapped(transformer(), { auto_wrap_policy = full,
      mixed_precision = { param_dtype = ms.bf16 } })
    assert.is_nil(model.norm.mixed_precision.param_dtype)
    checks.raises('ValueError', 'it returned 3', wrapped, transformer(),
      { auto_wrap_policy = fsdp.lambda_auto_wrap_policy(function() return 3 end) })
  end)

  it('a unit of another dtype is an error that names the options for it', function()
    local model = wrapped(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)), {
      mixed_precision = { param_dtype = ms.bf16 },
      auto_wrap_policy = function(m) return ms.is(m, nn.LayerNorm) and { mixed_precision = {} } end,
    })
    local _, err = pcall(model, ms.ones(1, 2))
    for _, text in ipairs { 'expected one dtype', 'module_classes_to_ignore',
      'cast_forward_inputs' } do
      assert.truthy(tostring(err):find(text, 1, true), tostring(err))
    end
  end)

  it('or_policy wraps inside modules that another policy wraps', function()
    local function container() return nn.Sequential(nn.Sequential(linear(), Norm(5))) end
    local function outer(m) return ms.is(m, nn.Sequential) end
    local both = fsdp.or_policy { outer, fsdp.transformer_auto_wrap_policy { Norm } }
    local function paths(policy)
      return wrapped_paths(wrapped(container(), { auto_wrap_policy = policy }))
    end
    assert.same({ '', '0', '0.1' }, paths(both))
    assert.same({ '', '0' }, paths(outer))
  end)

  it('warn when they wrap nothing', function()
    local function said(model, policy)
      local text = {}
      for _, w in ipairs(ms.capture_warnings(FSDP, model, { auto_wrap_policy = policy })) do
        text[#text + 1] = w.message:match('^auto_wrap_policy.*')
      end
      assert.is_true(#text <= 1)
      return text[1]
    end
    local nothing = 'auto_wrap_policy wrapped no module: nn.Sequential is one unit, gathered as a '
      .. 'whole'
    local function never() return false end
    assert.equal(nothing .. '; it has none of ModuleWrapPolicy{Norm, Encoder}',
      said(nested(), fsdp.ModuleWrapPolicy { Norm, Encoder }))
    for _, policy in ipairs {
      fsdp.CustomPolicy(never), fsdp.lambda_auto_wrap_policy(never),
      fsdp.size_based_auto_wrap_policy { min_num_params = 1000 },
    } do
      assert.equal(nothing, said(nested(), policy))
    end
    for _, policy in ipairs {
      fsdp.ModuleWrapPolicy { nn.Linear }, fsdp.always_wrap_policy,
      fsdp.transformer_auto_wrap_policy { nn.Linear },
    } do
      assert.is_nil(said(linear(), policy))
      assert.is_nil(said(nested(), policy))
    end
  end)

  describe('CustomPolicy', function()
    local mixed = { param_dtype = 'bf16', module_classes_to_ignore = { Norm } }

    local function settings(model, path)
      local m = model:get_submodule(path)
      return { m.sharding_strategy, m.backward_prefetch, m.mixed_precision.param_dtype or 'none' }
    end

    it('wraps with the options of the root where it returns true', function()
      local model
      local warnings = ms.capture_warnings(function()
        model = FSDP(transformer(), {
          auto_wrap_policy = fsdp.CustomPolicy(function(m)
            return ms.is(m, Norm) or ms.is(m, Encoder) or ms.is(m, Decoder)
          end),
          mixed_precision = mixed,
        })
      end)
      assert.same({ 'FULL_SHARD', 'BACKWARD_PRE', 'bf16' }, settings(model, ''))
      assert.same({ 'FULL_SHARD', 'BACKWARD_PRE', 'bf16' }, settings(model, 'encoder.0'))
      assert.same({ 'FULL_SHARD', 'BACKWARD_PRE', 'bf16' }, settings(model, 'decoder.1'))
      assert.same({ 'FULL_SHARD', 'BACKWARD_PRE', 'none' }, settings(model, 'norm'))
      assert.equal(6, #wrapped_paths(model))
      local found = false
      for _, w in ipairs(warnings) do
        found = found or w.message:find('These modules will be wrapped as separate FSDP instances '
          .. 'with mixed precision disabled.', 1, true)
      end
      assert.truthy(found)
    end)

    it('wraps with other options where it returns a table', function()
      local model = wrapped(transformer(), {
        auto_wrap_policy = fsdp.CustomPolicy(function(m)
          if ms.is(m, Norm) then return { sharding_strategy = 'NO_SHARD' } end
          if ms.is(m, Decoder) then
            return { sharding_strategy = 'SHARD_GRAD_OP', backward_prefetch = 'BACKWARD_POST' }
          end
          return ms.is(m, Encoder)
        end),
        mixed_precision = mixed,
      })
      assert.same({ 'FULL_SHARD', 'BACKWARD_PRE', 'bf16' }, settings(model, 'encoder.1'))
      assert.same({ 'SHARD_GRAD_OP', 'BACKWARD_POST', 'bf16' }, settings(model, 'decoder.0'))
      assert.same({ 'NO_SHARD', 'BACKWARD_PRE', 'none' }, settings(model, 'norm'))
    end)

    it('must return a boolean or a table of known options', function()
      checks.raises('ValueError', 'The lambda_fn passed to CustomPolicy should return False/True '
        .. 'or a kwarg dict, but it returned 3', wrapped, nested(),
        { auto_wrap_policy = fsdp.CustomPolicy(function() return 3 end) })
      checks.raises('ValueError', "did you mean 'sharding_strategy'?", wrapped, nested(), {
        auto_wrap_policy = fsdp.CustomPolicy(function() return { shardin_strategy = 'x' } end),
      })
    end)
  end)

  it('module_classes_to_ignore computes in full precision', function()
    local seen
    local Spy = nn.Module.extend('Spy', nn.LayerNorm)
    function Spy:forward(x)
      seen = { x:dtype(), self.weight:dtype() }
      return nn.LayerNorm.forward(self, x)
    end
    local model = wrapped(nn.Sequential(nn.Linear(4, 4), Spy(4), nn.Linear(4, 4)), {
      auto_wrap_policy = fsdp.always_wrap_policy,
      mixed_precision = { param_dtype = 'bf16', module_classes_to_ignore = { Spy } },
    })
    assert.equal('bf16', model(ms.ones(2, 4)):dtype())
    assert.same({ 'f32', 'f32' }, seen)
  end)

  it('refuse models that contain wrapped modules', function()
    for _, case in ipairs {
      { nn.Sequential(linear(), wrapped(linear())), '1' },
      { nn.Sequential(nn.Sequential(linear(), wrapped(linear()))), '0.1' },
    } do
      checks.raises('ValueError', 'FSDP auto wrapping requires modules to not already have FSDP '
        .. 'applied but found ' .. case[2] .. ' in', wrapped, case[1],
        { auto_wrap_policy = fsdp.always_wrap_policy })
    end
  end)

  it('wrap a module that stands in two places once', function()
    local shared = linear()
    for _, policy in ipairs { fsdp.always_wrap_policy, fsdp.ModuleWrapPolicy { nn.Linear } } do
      local model = wrapped(nn.Sequential(shared, nn.ReLU(), shared), { auto_wrap_policy = policy })
      assert.equal(model[1], model[3])
      assert.is_true(ms.is(model[1], FSDP))
      shared = linear()
    end
  end)

  describe('ignored modules', function()
    it('are not wrapped, and do not count', function()
      local model = nested()
      local always = wrapped(model, {
        auto_wrap_policy = fsdp.always_wrap_policy, ignored_modules = { model[2], model[3][1] },
      })
      assert.same({ '', '0', '2', '2.1' }, wrapped_paths(always))
      model = nested()
      local sized = wrapped(model, {
        auto_wrap_policy = fsdp.size_based_auto_wrap_policy { min_num_params = 40 },
        ignored_modules = { model[2], model[3][1] },
      })
      assert.same({ '' }, wrapped_paths(sized))
    end)

    it('keep their parameters out of units', function()
      local model = nn.Sequential(linear(), nn.Sequential(linear()))
      local root = wrapped(model, { ignored_states = { model[2] } })
      assert.equal(30, root:units()[1].numel)
      assert.same({ 5, 5 }, model[2][1].weight:shape())
      model = nn.Sequential(linear())
      assert.equal(25, wrapped(model, { ignored_states = { model[1].bias } }):units()[1].numel)
      model = nn.Sequential(linear()) -- one, without a list around it
      assert.equal(25, wrapped(model, { ignored_states = model[1].bias }):units()[1].numel)
      model = nn.Sequential(linear(), linear())
      assert.equal(30, wrapped(model, { ignored_modules = model[1] }):units()[1].numel)
    end)

    it('are checked', function()
      local model = nested()
      checks.raises('ValueError', 'ignored_modules expects nn.Module list elements but got types '
        .. '(number)', wrapped, model, { ignored_modules = { 3 } })
      checks.raises('ValueError', 'ignored_states expects all nn.Parameter or all nn.Module list '
        .. 'elements but got types (module, parameter)', wrapped, model,
        { ignored_states = { model[1], model[2].weight } })
      checks.raises('ValueError', '`ignored_modules` should not include FSDP modules', wrapped,
        nn.Sequential(linear()), { ignored_modules = { wrapped(linear()) } })
      checks.raises('ValueError', 'Cannot pass both ignored_modules and ignored_states at the same '
        .. 'time', wrapped, model, { ignored_modules = {}, ignored_states = {} })
      local warnings = ms.capture_warnings(FSDP, model, { ignored_modules = { model } })
      assert.equal('Trying to ignore the top-level module passed into the FSDP constructor itself '
        .. 'will result in all parameters being ignored', warnings[2].message)
    end)
  end)

  describe('enable_wrap', function()
    it('enables wrap() inside it only', function()
      local Model = nn.Module.extend('Model')
      function Model:init() self:child('lin', fsdp.wrap(linear())) end
      assert.is_false(ms.is(Model().lin, FSDP))
      local inside
      ms.capture_warnings(function()
        inside = fsdp.enable_wrap({ sharding_strategy = 'SHARD_GRAD_OP' }, Model)
      end)
      assert.is_true(ms.is(inside.lin, FSDP))
      assert.equal('SHARD_GRAD_OP', inside.lin.sharding_strategy)
      assert.is_false(ms.is(fsdp.wrap(linear()), FSDP))
    end)
  end)

  it('enable_wrap does not nest', function()
    checks.raises('NotImplementedError', 'You are already within an autowrap context and we '
      .. 'currently do not supported nested autowrap.', fsdp.enable_wrap, {}, function()
        fsdp.enable_wrap({}, function() end)
      end)
    assert.equal(4, fsdp.enable_wrap({}, function() return 4 end))
  end)

  it('give every instance the prefetch options of the root', function()
    for _, prefetch in ipairs { 'BACKWARD_PRE', 'BACKWARD_POST', 'none' } do
      for _, forward_prefetch in ipairs { true, false } do
        local function one() return nn.Linear(1, 1, { bias = false }) end
        local model = wrapped(nn.Sequential(one(), one(), one(), nn.Sequential(one())), {
          auto_wrap_policy = fsdp.size_based_auto_wrap_policy { min_num_params = 0 },
          backward_prefetch = prefetch,
          forward_prefetch = forward_prefetch,
        })
        for _, m in ipairs(model:modules()) do
          if ms.is(m, FSDP) then
            assert.equal(prefetch, m.backward_prefetch)
            assert.equal(forward_prefetch, m.forward_prefetch)
          end
        end
        assert.equal(6, #wrapped_paths(model))
        local opt = ms.optim.SGD(model:parameters(), { lr = 1e-2, momentum = 0.9 })
        local first, last
        for _ = 1, 6 do
          local loss = model(ms.ones(1, 1)):sum()
          last = loss:item()
          first = first or last
          loss:backward()
          opt:step()
          opt:zero_grad()
        end
        assert.is_true(last < first)
      end
    end
  end)
end)
