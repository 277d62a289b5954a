-- lua/moonshard/fsdp/{wrapper,options,plan,summon}.lua in a world of one: options, names, units,
-- lazy initialisation, casts, errors
local ms = require 'moonshard'
local nn, fsdp = ms.nn, ms.fsdp
local FSDP = fsdp.FSDP
local checks = require 'support.checks'
local scripts = require 'support.scripts'
local wrapped = require 'support.wrap'

local function messages(list)
  local out = {}
  for i, w in ipairs(list) do
    out[i] = w.kind .. ': ' .. w.message
  end
  return out
end

describe('FSDP', function()
  teardown(function()
    assert.equal(0, checks.live_handles())
  end)

  describe('options', function()
    it('have the defaults of PyTorch', function()
      local m = wrapped(nn.Linear(2, 2))
      assert.equal('FULL_SHARD', m.sharding_strategy)
      assert.equal('BACKWARD_PRE', m.backward_prefetch)
      assert.is_false(m.forward_prefetch)
      assert.is_false(m.use_orig_params)
      assert.is_nil(m.mixed_precision.param_dtype)
      assert.is_true(m.mixed_precision.cast_root_forward_inputs)
      assert.equal(0, m.rank)
      assert.equal(1, m.world_size)
    end)

    it('are of the instances that fsdp_modules lists, in their order', function()
      local m = nn.Sequential(wrapped(nn.Sequential(wrapped(nn.Linear(2, 2)), nn.Linear(2, 2))),
        nn.Linear(2, 2), wrapped(nn.Linear(2, 2)))
      local outer, last = m[1], m[3]
      assert.same({ outer, outer.module[1], last }, fsdp.fsdp_modules(m))
      assert.same({ outer, last }, fsdp.fsdp_modules(m, { root_only = true }))
      assert.same({ outer.module[1] }, fsdp.fsdp_modules(outer.module[1], { root_only = true }))
      assert.same({}, fsdp.fsdp_modules(m[2]))
      checks.raises('TypeError', "fsdp_modules: 'module' is", fsdp.fsdp_modules, 1)
    end)

    it('are checked when they are given', function()
      for _, case in ipairs {
        { 'ValueError', "did you mean 'sharding_strategy'?", { sharding_stratgy = 'x' } },
        { 'ValueError', "did you mean 'FULL_SHARD'?", { sharding_strategy = 'FULL_SHARDS' } },
        { 'ValueError', "'backward_prefetch' is 'PRE', expected one of BACKWARD_PRE",
          { backward_prefetch = 'PRE' } },
        { 'ValueError', "did you mean 'param_dtype'?",
          { mixed_precision = { param_dtyp = 'bf16' } } },
        { 'ValueError', 'Cannot pass both process_group and device_mesh at the same time',
          { process_group = 1, device_mesh = 1 } },
        { 'TypeError', "'cpu_offload' is a number, expected true or false", { cpu_offload = 1 } },
        { 'ValueError', "device_id is 'gpu', but the device of this process is '",
          { device_id = 'gpu' } },
        { 'TypeError', "'use_orig_params' is a string, expected true or false",
          { use_orig_params = 'no' } },
        { 'TypeError', "'process_group' is a number, expected a group of ranks",
          { process_group = 3 } },
        { 'ValueError', "'param_dtype' is i64, expected a floating dtype",
          { mixed_precision = { param_dtype = 'i64' } } },
        { 'TypeError', 'module_classes_to_ignore takes an array of classes: write { nn.Linear }',
          { mixed_precision = { module_classes_to_ignore = nn.Linear } } },
        { 'TypeError', "'ignored_modules' is a boolean, expected a list",
          { ignored_modules = false } },
        { 'TypeError', 'auto_wrap_policy is the class nn.Linear itself: write '
          .. 'fsdp.ModuleWrapPolicy { nn.Linear }', { auto_wrap_policy = nn.Linear } },
        { 'TypeError', 'auto_wrap_policy is a plain table: to wrap the modules of some classes '
          .. 'write fsdp.ModuleWrapPolicy { ... }', { auto_wrap_policy = { nn.Linear } } },
      } do
        checks.raises(case[1], case[2], wrapped, nn.Linear(1, 1), case[3])
      end
      checks.raises('TypeError', 'FSDP wraps a module, got a number', wrapped, 3)
    end)

    it('stay as given in a world of one, with a warning', function()
      local model
      local warnings = ms.capture_warnings(function()
        model = FSDP(nn.Sequential(nn.Linear(2, 2)), { auto_wrap_policy = fsdp.always_wrap_policy })
      end)
      assert.same({ 'UserWarning: FULL_SHARD shards nothing since the world size is 1. The '
        .. 'strategy stays as given.' }, messages(warnings))
      assert.equal('FULL_SHARD', model:units()[1].strategy)
      ms.no_grad(model, ms.ones(1, 2))
      assert.equal(1, model[1].weight:dim())
      local asked = { sharding_strategy = 'NO_SHARD' }
      assert.same({}, ms.capture_warnings(FSDP, nn.Linear(1, 1), asked))
      local whole = wrapped(nn.Linear(2, 2), asked)
      ms.no_grad(whole, ms.ones(1, 2))
      assert.equal(2, whole.weight:dim())
    end)

    it('log the events of each unit at MS_LOG=trace', function()
      scripts.with_script([[
        ms.dist.spawn(2, function()
          local model = ms.fsdp.FSDP(ms.nn.Sequential(ms.nn.Linear(4, 4), ms.nn.Linear(4, 4)),
            { auto_wrap_policy = ms.fsdp.ModuleWrapPolicy { ms.nn.Linear } })
          model(ms.ones(1, 4)):sum():backward()
        end)
      ]], function(path)
        local events = {}
        local output = scripts.shell('env MS_LOG=trace luajit ' .. path)
        for event, unit in output:gmatch "trace: rank 1: (%a+) unit '(%d)', model 1, coll" do
          events[#events + 1] = event .. ' ' .. unit
        end
        assert.same({
          'gather 0', 'unshard 0', 'reshard 0', 'gather 1', 'unshard 1', 'reshard 1', -- forward
          'gather 1', 'unshard 1', 'gather 0', 'reduce 1', 'reshard 1', 'unshard 0', 'reduce 0',
          'reshard 0',
        }, events, output)
        assert.is_nil(scripts.shell('env MS_LOG=info luajit ' .. path):find('trace', 1, true))
      end)
    end)

    it('warn about containers that have no forward', function()
      local warnings = ms.capture_warnings(FSDP, nn.ModuleList(nn.Linear(1, 1)),
        { sharding_strategy = 'NO_SHARD' })
      assert.same({ 'UserWarning: FSDP will not all-gather parameters for containers that do not '
        .. 'implement forward' }, messages(warnings))
    end)
  end)

  describe('refuses parameters that a unit cannot hold', function()
    local function with(...)
      local m = nn.Module()
      for i, p in ipairs { ... } do
        m:param('p' .. i, p[1], nil, p[2])
      end
      return m
    end

    it('with the messages of PyTorch', function()
      checks.raises('ValueError', "FSDP doesn't support scalar parameters. Change p2 to a 1D "
        .. 'tensor with numel equal to 1.', wrapped, with({ { 2 } }, { {} }))
      checks.raises('ValueError', 'Must flatten tensors with uniform dtype but got f32 and f64',
        wrapped, with({ { 2 } }, { { 2 }, { dtype = 'f64' } }))
      local mixed = function() return with({ { 2 } }, { { 2 }, { requires_grad = false } }) end
      checks.raises('ValueError', 'Must flatten tensors with uniform `requires_grad` when '
        .. '`use_orig_params=False`', wrapped, mixed())
      wrapped(mixed(), { use_orig_params = true })
    end)
  end)

  describe('shows the wrapped module', function()
    it('with its paths, fields and methods', function()
      local inner = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
      inner.note = 'mine'
      local model = wrapped(inner, {
        auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Linear }, use_orig_params = true,
      })
      local names = {}
      for name in model:named_parameters() do
        names[#names + 1] = name
      end
      assert.same({ '0.weight', '0.bias', '1.weight', '1.bias' }, names)
      assert.same(names, { unpack(model:state_dict()) })
      assert.equal('mine', model.note)
      assert.equal(inner, model.module)
      assert.equal(2, model:len())
      assert.is_true(ms.is(model[1], FSDP))
      assert.equal(2, model[1].in_features)
      assert.equal('1', model[2]:path())
      assert.equal('1', model[2].module:path())
    end)
  end)

  it('prints the wrapped module', function()
    assert.equal([[
FSDP(
  SHARD_GRAD_OP
  (_fsdp_wrapped_module): Linear(in_features=2, out_features=1, bias=true)
)]], tostring(wrapped(nn.Linear(2, 1), { sharding_strategy = 'SHARD_GRAD_OP' })))
  end)

  it('can wrap a part of a model that does not contain the wrapper', function()
    local alone = wrapped(nn.Sequential(nn.Linear(3, 3))[1])
    assert.same({ 2, 3 }, alone:forward(ms.randn(2, 3)):shape())
    assert.equal('nn.Linear', alone:units()[1].name)
    nn.Sequential(nn.Tanh(), alone)(ms.randn(2, 3))
    assert.equal('1', alone:units()[1].name)
  end)

  describe('units', function()
    it('hold the parameters that no nested instance holds', function()
      local model = wrapped(nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 1))), {
        auto_wrap_policy = fsdp.size_based_auto_wrap_policy { min_num_params = 4,
          force_leaf_modules = { nn.Linear } },
        use_orig_params = true,
      })
      local units = model:units()
      -- root: 3 x 3 weight padded from 9 to 12 for alignment, 3 biases; nested: 3 (+ 1) and 1
      assert.equal('nn.Sequential', units[1].name)
      assert.same({ 12, 15, 60 },
        { units[1].numel, units[1].padded_numel, units[1].shard_bytes })
      assert.equal('1', units[2].name)
      assert.same({ 4, 5, 20 }, { units[2].numel, units[2].padded_numel, units[2].shard_bytes })
      assert.equal('FULL_SHARD', units[2].strategy)
    end)

    it('hold a tied parameter in the instance around all its modules', function()
      local model = nn.Module()
      model:child('table', nn.Embedding(5, 4))
      model:child('middle', nn.Linear(4, 4))
      model:child('head', nn.Linear(4, 5, { bias = false, weight = model.table.weight }))
      function model:forward(ids) return self.head(self.middle(self.table(ids))) end
      local reference = nn.Module()
      reference:child('table', nn.Embedding(5, 4))
      local root = wrapped(model, { auto_wrap_policy = fsdp.always_wrap_policy })
      local units = root:units()
      assert.equal(2, #units)
      assert.equal(20, units[1].numel)
      assert.same({ { name = 'table.weight', places = { 'table.weight', 'head.weight' } } },
        units[1].shared)
      assert.equal('middle', units[2].name)
      local logits = root(ms.tensor({ 1, 2 }, { dtype = 'i64' }))
      logits:sum():backward()
      assert.same({ 'table.weight', 'middle.weight', 'middle.bias', 'head.weight' },
        { unpack(root:state_dict()) })
    end)

    it('cannot share a parameter without an instance around both', function()
      local a = wrapped(nn.Linear(2, 2, { bias = false }))
      local b = wrapped(nn.Linear(2, 2, { bias = false, weight = a.weight }))
      local both = nn.Sequential(a, b)
      checks.raises('ValueError', "parameter '0.weight' stands in 0.weight and 1.weight, which no "
        .. 'FSDP instance contains together', both.parameters, both)
    end)
  end)

  it('refuses a backward of its parameters during forward', function()
    local module = nn.Sequential { wrapped(nn.Linear(2, 2)), nn.Linear(2, 2) }
    local model, inner, x = wrapped(module), nil, ms.ones(1, 2)
    model(x):sum():backward()
    local own = ms.ones(2):requires_grad_(true)
    module[1].module:register_forward_hook(function()
      own:mul(own):sum():backward() -- no parameter of the model
    end)
    module[2]:register_forward_hook(function()
      checks.raises('AssertionError', "backward cannot begin during forward (unit 'nn.Sequential'",
        inner.backward, inner)
    end)
    inner = module[1](x):sum()
    local before = module[2].weight:grad():sum():item()
    model(x):sum():backward()
    assert.equal(2 * before, module[2].weight:grad():sum():item())
    assert.equal(8, own:grad():sum():item()) -- 2 elements, 2 forwards of the inner one
  end)

  it('allocates shards only', function()
    checks.live_handles()
    local before = ms.memory().live.parameter
    local model = wrapped(nn.Sequential(nn.Linear(50, 40, { bias = false })))
    model:parameters()
    assert.equal(before, ms.memory().live.parameter)
    model:materialize()
    assert.is_true(ms.memory().live.parameter - before < 1.5 * 50 * 40 * 4)
  end)

  it('has the initial values of the unwrapped module', function()
    local function make(wrap)
      ms.manual_seed(11)
      return wrap(nn.Sequential(wrap(nn.Linear(3, 3)), wrap(nn.Linear(3, 3))))
    end
    local plain = make(function(m) return m end)
    local x = ms.randn(2, 3)
    local by_hand = make(wrapped)
    local by_policy = wrapped(make(function(m) return m end),
      { auto_wrap_policy = fsdp.always_wrap_policy })
    local y = plain(x):hash()
    assert.equal(y, by_hand(x):hash())
    assert.equal(y, by_policy(x):hash())
  end)

  it('can be used after an error in forward', function()
    local thrown, broken = { 'x' }, true
    local Layer = nn.Module.extend('Layer', nn.Linear)
    function Layer:forward(x)
      if broken then
        error(thrown, 0)
      end
      return nn.Linear.forward(self, x)
    end
    local model = wrapped(nn.Sequential(nn.Linear(2, 2), Layer(2, 2)),
      { auto_wrap_policy = fsdp.always_wrap_policy })
    local ok, err = pcall(model, ms.ones(1, 2))
    assert.is_false(ok)
    assert.equal(thrown, err)
    broken = false
    model(ms.ones(1, 2)):sum():backward()
    for _, unit in ipairs(model:units()) do
      assert.equal('SHARDED', unit.state)
    end
  end)

  it('apply shows full parameters and keeps written values', function()
    local model = wrapped(nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 1))),
      { auto_wrap_policy = fsdp.always_wrap_policy, use_orig_params = true })
    local shapes = {}
    assert.equal(model, model:apply(function(m)
      if ms.is(m, nn.Linear) then
        shapes[#shapes + 1] = m.weight:shape()
        ms.no_grad(m.weight.fill_, m.weight, 2)
      end
    end))
    assert.same({ { 3, 2 }, { 1, 3 } }, shapes)
    checks.close({ { 2, 2, 2 } }, model:state_dict()['1.0.weight'])
  end)

  describe('mixed precision', function()
    local seen
    local Spy = nn.Module.extend('Spy', nn.Linear)
    function Spy:forward(x, extra)
      seen[#seen + 1] = { x:dtype(), self.weight:dtype(), extra and extra.mask[1]:dtype() }
      return nn.Linear.forward(self, x:to(self.weight:dtype()))
    end
    local Pair = nn.Module.extend('Pair')
    function Pair:init() self:child('a', Spy(2, 2)); self:child('b', Spy(2, 2)) end
    function Pair:forward(x, extra) return self.b(self.a(x, extra)) end

    before_each(function() seen = {} end)

    it('casts parameters and floating inputs of the root', function()
      local model = wrapped(Pair(), { mixed_precision = { param_dtype = 'bf16' } })
      local y = model(ms.ones(1, 2), { mask = { ms.ones(1), ms.ones(1, { dtype = 'i64' }) } })
      assert.same({ { 'bf16', 'bf16', 'bf16' }, { 'bf16', 'bf16' } }, seen)
      assert.equal('bf16', y:dtype())
      assert.equal('f32', model:state_dict()['a.weight']:dtype())
      y:sum():backward()
      assert.equal('f32', model.a.weight:grad():dtype())
    end)

    it('follows cast_root_forward_inputs and cast_forward_inputs', function()
      local low = { param_dtype = 'bf16', cast_root_forward_inputs = false }
      local model = wrapped(Pair(), { mixed_precision = low })
      model(ms.ones(1, 2))
      assert.equal('f32', seen[1][1])
      seen = {}
      low.cast_forward_inputs = true
      wrapped(Pair(), { mixed_precision = low })(ms.ones(1, 2))
      assert.equal('bf16', seen[1][1])
    end)

    it('a nested instance casts only with cast_forward_inputs', function()
      for _, casts in ipairs { false, true } do
        seen = {}
        local inner = wrapped(Spy(2, 2),
          { mixed_precision = { param_dtype = 'bf16', cast_forward_inputs = casts } })
        wrapped(nn.Sequential(inner))(ms.ones(1, 2))
        assert.equal(casts and 'bf16' or 'f32', seen[1][1])
      end
    end)

    it('an instance without parameters casts as a root only', function()
      local function given(root_casts, child_casts)
        seen = {}
        local dtype
        local empty = nn.Module()
        empty:child('pair', wrapped(Pair(), { mixed_precision = { param_dtype = 'bf16' } }))
        function empty:forward(x)
          dtype = x:dtype()
          return self.pair(x)
        end
        wrapped(empty, { mixed_precision = {
          param_dtype = 'bf16', cast_root_forward_inputs = root_casts,
          cast_forward_inputs = child_casts,
        } })(ms.ones(1, 2))
        return dtype
      end
      assert.equal('bf16', given(true, false))
      assert.equal('bf16', given(true, true))
      assert.equal('f32', given(false, true))
    end)
  end)

  describe('allows on the root only', function()
    local function tree()
      local model = wrapped(nn.Sequential(nn.Linear(2, 2)),
        { auto_wrap_policy = fsdp.always_wrap_policy })
      model(ms.ones(1, 2)):sum():backward()
      return model, model[1]
    end

    it('no_sync', function()
      local model, inner = tree()
      checks.raises('RuntimeError', '`no_sync()` on inner FSDP instances is not supported. Please '
        .. 'call `no_sync()` on root FSDP module.', inner.no_sync, inner, function() end)
      assert.equal('back', model:no_sync(function(x) return x end, 'back'))
      local thrown = {}
      local _, err = pcall(model.no_sync, model, function() error(thrown, 0) end)
      assert.equal(thrown, err)
    end)

    it('clip_grad_norm_', function()
      local model, inner = tree()
      checks.raises('RuntimeError', '`clip_grad_norm_()` should only be called on the root FSDP '
        .. 'instance', inner.clip_grad_norm_, inner, 1)
      -- gradients: weight all ones (4), bias ones (2)
      checks.close(math.sqrt(6), model:clip_grad_norm_(1):item())
      checks.close(1, model:clip_grad_norm_(9):item(), 1e-5)
    end)
  end)

  it('clip_grad_norm_ counts parameters no unit manages', function()
    local inner = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, { bias = false }))
    local model = wrapped(inner, { ignored_modules = { inner[2] } })
    model:materialize()
    model:load_state_dict {
      ['0.weight'] = ms.zeros(2, 2), ['0.bias'] = ms.ones(2), ['1.weight'] = ms.full({ 2, 2 }, 2),
    }
    model(ms.ones(1, 2)):sum():backward()
    -- second weight: ones (4); first layer: 2 + 2 = 4 in six places
    local total = math.sqrt(4 + 16 * 6)
    checks.close(total, model:clip_grad_norm_(1):item())
    local row = { 1 / total, 1 / total }
    checks.close({ row, row }, inner[2].weight:grad(), 1e-5)
    checks.close({ 4 / total, 4 / total }, inner[1].bias:grad(), 1e-5)
  end)

  it('clip_grad_norm_ warns when there are no gradients', function()
    local model = wrapped(nn.Linear(1, 1))
    local warnings = ms.capture_warnings(function()
      assert.equal(0, model:clip_grad_norm_(1):item())
    end)
    assert.truthy(warnings[1].message:find('Called FSDP.clip_grad_norm_() on rank 0 with no '
      .. 'gradients', 1, true))
  end)

  describe('summon_full_params', function()
    local function model()
      local m = wrapped(nn.Sequential(nn.Linear(2, 1)),
        { auto_wrap_policy = fsdp.always_wrap_policy, use_orig_params = true })
      return m, m[1].module
    end

    it('shows full parameters and keeps written values with writeback', function()
      local m, layer = model()
      local result = fsdp.summon_full_params(m, nil, ms.no_grad, function(x)
        assert.same({ 1, 2 }, layer.weight:shape())
        layer.weight:fill_(3)
        return x
      end, 'through')
      assert.equal('through', result)
      checks.close({ { 3, 3 } }, m:state_dict()['0.weight'])
      fsdp.summon_full_params(m, { writeback = false }, ms.no_grad, function()
        layer.weight:fill_(4)
      end)
      checks.close({ { 3, 3 } }, m:state_dict()['0.weight'])
    end)

    it('works on modules around wrapped ones', function()
      local m = model()
      assert.equal(7, fsdp.summon_full_params(nn.Sequential(m, nn.ReLU()), nil, function()
        return 7
      end))
    end)

    it('keeps nothing after an error inside', function()
      local m, layer = model()
      m:load_state_dict { ['0.weight'] = ms.ones(1, 2), ['0.bias'] = ms.ones(1) }
      local thrown = {}
      local _, err = pcall(fsdp.summon_full_params, m, nil, ms.no_grad, function()
        layer.weight:fill_(9)
        error(thrown, 0)
      end)
      assert.equal(thrown, err)
      checks.close({ { 1, 1 } }, m:state_dict()['0.weight'])
      checks.close({ { 3 } }, m(ms.ones(1, 2)))
    end)

    it('refuses unsupported options, nesting and use during forward', function()
      local m = model()
      local function summon(opts) fsdp.summon_full_params(m, opts, function() end) end
      checks.raises('NotImplementedError',
        'writeback=True and rank0_only=True is not supported yet', summon, { rank0_only = true })
      checks.raises('NotImplementedError', 'with_grads=True, use_orig_params=', summon,
        { with_grads = true, offload_to_cpu = true, writeback = false, rank0_only = true })
      checks.raises('ValueError', "did you mean 'writeback'?", summon, { writebak = false })
      checks.raises('AssertionError',
        'Cannot manually unshard parameters when already unsharding parameters',
        fsdp.summon_full_params, m, nil, function() summon() end)
      m[1].module:register_forward_hook(function() summon() end)
      checks.raises('AssertionError', 'Cannot manually unshard parameters during forward/backward',
        m, ms.ones(1, 2))
      local flat = wrapped(nn.Linear(1, 1), { sharding_strategy = 'NO_SHARD' })
      checks.raises('NotImplementedError', 'offload_to_cpu=True and NO_SHARD is not supported yet',
        fsdp.summon_full_params, flat, { offload_to_cpu = true }, function() end)
    end)
  end)
end)
