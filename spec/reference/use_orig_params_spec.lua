-- test_fsdp_use_orig_params.py
local ffi = require 'ffi'
local ms = require 'moonshard'
local nn, fsdp, optim, ops = ms.nn, ms.fsdp, ms.optim, ms.ops
local checks = require 'support.checks'
local reference = require 'support.reference'
local scripts = require 'support.scripts'
local util = require 'moonshard.base.util'

ffi.cdef 'int setenv(const char *name, const char *value, int overwrite);'

local W = 2

-- -- models --------------------------------------------------------------------------------------

local TwoLinears = nn.Module.extend 'TwoLinears'

function TwoLinears:init(bias)
  self:child('lin1', nn.Linear(5, 5, { bias = bias }))
  self:child('lin2', nn.Linear(5, 7))
end

function TwoLinears:forward(x) return self.lin2(self.lin1(x):relu()) end

local function two_linears(bias)
  ms.manual_seed(42)
  return TwoLinears(bias):materialize()
end

local function sum_loss(seed)
  return function(model, rank)
    ms.manual_seed(seed + rank)
    return model(ms.randn(2, 5)):sum()
  end
end

local function shared_loss(model, rank)
  local function tokens(length, first)
    return (ms.arange(2 * length) + first):to('i64'):reshape(length, 2)
  end
  local tgt = tokens(4, 3 * rank)
  return ops.cross_entropy(model(tokens(6, rank), tgt), tgt, { reduction = 'sum' })
end

-- -- what a rank holds ---------------------------------------------------------------------------

-- First element (from 1) and last one of each parameter that this rank holds. Collective.
local function held(model, rank)
  local ranges = {}
  for name, p in model:named_parameters() do
    local first = 1
    for r, n in ipairs(ms.dist.all_gather(ms.tensor({ p:numel() }, { dtype = 'i64' }))) do
      first = first + (r <= rank and n:item() or 0)
    end
    ranges[name] = { first, first + p:numel() - 1 }
  end
  return ranges
end

local function elements(t, range)
  local flat = t:reshape(-1):totable()
  return { unpack(flat, range[1], range[2]) }
end

local function ranks(fn)
  ms.dist.spawn(W, fn)
end

local function each_strategy(fn)
  for _, strategy in ipairs(reference.STRATEGIES) do
    ranks(function(rank) fn(strategy, rank) end)
  end
end

-- -- parity with a plain model trained on the inputs of all ranks -------------------------------

local ITERATIONS = 10

local function wrapped(opts, module)
  return reference.wrap(module or reference.shared_transformer(), util.merged({
    auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.TransformerEncoderLayer,
      nn.TransformerDecoderLayer },
    use_orig_params = true,
  }, opts))
end

-- Weights, biases.
local function param_groups(model)
  local weights, biases = {}, {}
  for name, p in model:named_parameters() do
    table.insert(name:find 'weight' and weights or biases, p)
  end
  return { { params = weights, weight_decay = 0.1, lr = 1e-2 },
    { params = biases, weight_decay = 0.01, lr = 1e-3 } }
end

local function freeze_biases(model)
  for name, p in model:named_parameters() do
    p:requires_grad_(name:find 'bias' == nil)
  end
end

local ADAM = { lr = 5e-3, eps = 1e-4 } -- the gradient of the bias of keys is rounding alone

local function train_plain(Optimizer, prepare)
  local plain = reference.shared_transformer()
  local opt = Optimizer(param_groups(plain), ADAM)
  if prepare then
    prepare(plain)
  end
  local losses = {}
  for i = 1, ITERATIONS do
    opt:zero_grad()
    losses[i] = {}
    for rank = 0, W - 1 do
      local loss = shared_loss(plain, rank)
      losses[i][rank] = loss:item()
      loss:backward(ms.full({}, 1 / W))
    end
    opt:step()
  end
  return plain, losses
end

-- Gradients are dropped before the forward and between it and the backward in turn.
local function same_training(plain, losses, rank, model, opt, set_to_none)
  for i = 1, ITERATIONS do
    if i % 2 == 1 then
      opt:zero_grad { set_to_none = set_to_none }
    end
    local loss = shared_loss(model, rank)
    checks.close(losses[i][rank], loss, 1e-4)
    if i % 2 == 0 then
      opt:zero_grad { set_to_none = set_to_none }
    end
    loss:backward()
    opt:step()
  end
  reference.same_parameters(plain, model)
end

-- The losses and parameters of a model of flat parameters and of one of original ones, which take
-- two forwards before each backward and `between` them.
local function same_two_forwards(between)
  for _, offload_params in ipairs(reference.OFFLOADS) do
    each_strategy(function(strategy, rank)
      local models, opts = {}, {}
      for i, use_orig_params in ipairs { false, true } do
        models[i] = wrapped { sharding_strategy = strategy, use_orig_params = use_orig_params,
          cpu_offload = { offload_params = offload_params } }
        opts[i] = optim.Adam(models[i]:parameters(), { lr = 1e-2, foreach = false })
      end
      for _ = 1, 3 do
        local totals = {}
        for i, model in ipairs(models) do
          opts[i]:zero_grad()
          local first = shared_loss(model, rank)
          between(model)
          totals[i] = first + shared_loss(model, rank + 1)
          totals[i]:backward()
          opts[i]:step()
        end
        assert.equal(totals[1]:item(), totals[2]:item())
      end
      assert.equal(models[1]:hash(), models[2]:hash())
    end)
  end
end

describe('TestFSDPUseOrigParamsMultipleParamGroups', function()
  it('test_fsdp_compile', function()
    for _, skip in ipairs { true, false } do
      each_strategy(function(strategy, rank)
        local calls, opts, graphs = {}, {}, ms.compile_report().graphs
        for i = 1, 2 do
          local model = wrapped { sharding_strategy = strategy }
          opts[i] = optim.Adam(model:parameters(), { lr = 1e-2 })
          calls[i] = i == 1 and model or ms.compile(model, { skip_fsdp_guards = skip })
        end
        for _ = 1, ITERATIONS do
          local losses = {}
          for i = 1, 2 do
            opts[i]:zero_grad()
            local loss = shared_loss(calls[i], rank)
            losses[i] = loss:item()
            loss:backward()
            opts[i]:step()
          end
          assert.equal(losses[1], losses[2])
        end
        assert.equal(graphs + 1, ms.compile_report().graphs)
      end)
    end
  end)

  it('test_diff_hyperparams', function()
    each_strategy(function(strategy, rank)
      local plain, losses = train_plain(optim.AdamW)
      for _, foreach in ipairs { false, true } do
        local options = util.merged(ADAM, { foreach = foreach })
        for _, set_to_none in ipairs { false, true } do
          for _, prefetch in ipairs { 'none', 'BACKWARD_PRE', 'BACKWARD_POST' } do
            for _, before in ipairs { false, true } do
              local module, opt = reference.shared_transformer(), nil
              if before then
                opt = optim.AdamW(param_groups(module), options)
              end
              local model = wrapped({ sharding_strategy = strategy,
                backward_prefetch = prefetch }, module)
              opt = opt or optim.AdamW(param_groups(model), options)
              same_training(plain, losses, rank, model, opt, set_to_none)
            end
          end
        end
      end
    end)
  end)

  it('test_diff_hyperparams_cpu_offload', function()
    each_strategy(function(strategy, rank)
      local plain, losses = train_plain(optim.Adam)
      local model = wrapped { sharding_strategy = strategy,
        cpu_offload = { offload_params = reference.OFFLOADS[2] } }
      same_training(plain, losses, rank, model, optim.Adam(param_groups(model), ADAM), false)
    end)
  end)

  it('test_diff_trainability', function()
    each_strategy(function(strategy, rank)
      local plain, losses = train_plain(optim.Adam, freeze_biases)
      for _, foreach in ipairs { false, true } do
        local model = wrapped { sharding_strategy = strategy }
        local opt = optim.Adam(param_groups(model), util.merged(ADAM, { foreach = foreach }))
        freeze_biases(model)
        same_training(plain, losses, rank, model, opt, false)
      end
    end)
  end)

  it('test_multiple_optimizers', function()
    for _, strategy in ipairs { 'FULL_SHARD', 'SHARD_GRAD_OP' } do
      ranks(function(rank)
        local plain = reference.shared_transformer()
        local model = wrapped { sharding_strategy = strategy }
        local ranges = held(model, rank)
        local on_weights, on_biases = {}, {}
        local eps = 1e-2 -- the gradient of the bias of keys is rounding alone
        for i, m in ipairs { plain, model } do
          local weights, biases = {}, {}
          for name, p in m:named_parameters() do
            table.insert(name:find 'weight' and weights or biases, p)
          end
          on_weights[i] = optim.Adam(weights, { lr = 5e-3, eps = eps })
          on_biases[i] = optim.AdamW(biases, { lr = 1e-2, eps = eps })
        end
        local function finish(loss)
          reference.backward_all(plain, W, shared_loss)
          loss:backward()
          for i = 1, 2 do
            on_weights[i]:step()
            on_biases[i]:step()
          end
          reference.same_parameters(plain, model)
        end
        finish(shared_loss(model, rank))
        for i = 1, 2 do
          on_weights[i]:zero_grad()
        end
        local loss = shared_loss(model, rank)
        local n = 0
        local shown = model:named_parameters()
        for i, entry in ipairs(strategy == 'FULL_SHARD' and plain:named_parameters() or {}) do
          local range, grad = ranges[entry.name], shown[i].tensor:grad()
          if range[2] < range[1] or entry.tensor:grad() == nil then
            assert.is_nil(grad)
          else
            checks.close(elements(entry.tensor:grad(), range), grad:reshape(-1), 1e-5)
            n = n + 1
          end
        end
        assert(n > 0 or strategy ~= 'FULL_SHARD')
        finish(loss)
        finish(shared_loss(model, rank)) -- each optimizer has counted its own steps
      end)
    end
  end)
end)

describe('TestFSDPUseOrigParamsUnshardReshard', function()
  it('test_multiple_forward', function()
    same_two_forwards(function() end)
  end)

  it('test_summon_between_two_forwards', function()
    same_two_forwards(function(model)
      fsdp.summon_full_params(model, nil, function() end)
    end)
  end)
end)

describe('TestFSDPUseOrigParamsParamAccess', function()
  it('test_access_params_after_forward', function()
    -- lin1: 25 and 1 of padding; lin2: 35, 1 of alignment, 7, and 1 of padding
    local HELD = {
      { ['lin1.weight'] = { 1, 13 }, ['lin2.weight'] = { 1, 22 }, ['lin2.bias'] = { 1, 0 } },
      { ['lin1.weight'] = { 14, 25 }, ['lin2.weight'] = { 23, 35 }, ['lin2.bias'] = { 1, 7 } },
    }
    each_strategy(function(strategy, rank)
      local plain = two_linears(false)
      local model = reference.wrap(two_linears(false), {
        auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Linear }, use_orig_params = true,
        sharding_strategy = strategy,
      })
      local plain_opt = optim.Adam(plain:parameters(), { lr = 1e-2 })
      local opt = optim.Adam(model:parameters(), { lr = 1e-2 })
      local function shows(whole)
        local shown = model:named_parameters()
        for i, entry in ipairs(plain:named_parameters()) do
          local t = entry.tensor
          assert(shown[i].name == entry.name)
          if whole then
            assert.same(t:shape(), shown[i].tensor:shape())
            checks.close(t:totable(), shown[i].tensor, 1e-5)
          else
            assert.equal(1, shown[i].tensor:dim())
            checks.close(elements(t, HELD[rank + 1][entry.name]), shown[i].tensor, 1e-5)
          end
        end
      end
      local loss_of = sum_loss(1)
      local loss = loss_of(model, rank)
      shows(strategy ~= 'FULL_SHARD')
      reference.backward_all(plain, W, loss_of)
      loss:backward()
      plain_opt:step()
      opt:step()
      shows(strategy == 'NO_SHARD')
      loss_of(model, rank)
      shows(strategy ~= 'FULL_SHARD')
    end)
  end)
end)

describe('TestFSDPUseOrigParamsWriteback', function()
  local function new_parameter(values)
    return values:clone():detach():requires_grad_(true)
  end

  it('test_param_writeback', function()
    for _, name in ipairs { 'lin1', 'lin2' } do
      for _, change_data in ipairs { true, false } do
        ranks(function()
          local plain = two_linears(true)
          ms.no_grad(plain[name].weight.fill_, plain[name].weight, 2)
          local model = reference.wrap(two_linears(true), { use_orig_params = true })
          model:parameters() -- shards from here on
          local linear = model.module[name]
          local twos = ms.full(linear.weight:shape(), 2)
          if change_data then
            linear.weight:set_data(twos)
          else
            linear.weight = new_parameter(twos)
          end
          reference.same_parameters(plain, model)
        end)
      end
    end
  end)

  it('test_grad_writeback', function()
    local function change(p, how)
      local twos = ms.full(p:shape(), 2)
      if how == 'data' then
        if p:grad() then
          ms.no_grad(function() p:grad():copy_(twos) end)
        end
      else
        p:set_grad(how == 'variable' and twos or nil)
      end
    end
    for _, name in ipairs { 'lin1', 'lin2' } do
      for _, how in ipairs { 'variable', 'data', 'none' } do
        ranks(function(rank)
          local plain = two_linears(true)
          local model = reference.wrap(two_linears(true), { use_orig_params = true })
          local plain_opt = optim.Adam(plain:parameters(), { lr = 1e-2 })
          local opt = optim.Adam(model:parameters(), { lr = 1e-2 })
          for step = 1, 2 do -- the second adds to the gradients of the first
            reference.backward_all(plain, W, sum_loss(7 * step))
            sum_loss(7 * step)(model, rank):backward()
            if step == 1 then
              change(plain[name].weight, how)
              change(model.module[name].weight, how)
            end
            plain_opt:step()
            opt:step()
            reference.same_parameters(plain, model)
          end
        end)
      end
    end
  end)

  it('test_writeback_shape_mismatch', function()
    ranks(function(rank)
      local model = reference.wrap(two_linears(true), { use_orig_params = true })
      model:parameters()
      local linear = model.module[rank == 0 and 'lin1' or 'lin2'] -- this rank holds elements of it
      local larger = ms.ones(linear.weight:size(1) + 1)
      local ok, err = pcall(function()
        linear.weight = new_parameter(larger)
        linear.weight:set_grad(larger)
        fsdp.summon_full_params(model, nil, function() end)
      end)
      assert.is_false(ok)
      assert.truthy(tostring(err):find('RuntimeError: Cannot writeback', 1, true), tostring(err))
    end)
  end)

  it('test_writeback_between_fwd_and_bwd_for_no_reshard_raises', function()
    for _, change in ipairs {
      function(linear) linear.weight:set_data(linear.weight:clone():detach()) end,
      function(linear) linear.module.weight = new_parameter(linear.weight) end,
    } do
      ranks(function(rank)
        local model = reference.wrap(two_linears(true), { sharding_strategy = 'SHARD_GRAD_OP',
          use_orig_params = true, auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Linear } })
        local loss = sum_loss(1)(model, rank)
        checks.raises('AssertionError',
          'FSDP does not support changing the parameters between forward and backward', function()
            change(model.lin1)
            loss:backward()
          end)
      end)
    end
  end)

  it('test_no_reshard_and_mixed_precision', function()
    for _, full_precision in ipairs { '0', '1' } do
      ranks(function(rank)
        ffi.C.setenv('FSDP_USE_FULL_PREC_IN_EVAL', full_precision, 1)
        local model = reference.wrap(two_linears(true), { sharding_strategy = 'SHARD_GRAD_OP',
          use_orig_params = true, auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Linear },
          mixed_precision = { param_dtype = 'f16' } })
        local x = ms.randn(2, 5, { seed = rank + 1 })
        local function evaluate()
          model:eval()
          assert.equal(full_precision == '1' and 'f32' or 'f16', model(x):dtype())
        end
        model(x)
        fsdp.summon_full_params(model, nil, function() end)
        local loss = model(x):sum()
        evaluate()
        loss:backward() -- of a forward in f16, after one in f32
        model:train()
        model(x):sum():backward()
        evaluate()
        fsdp.state_dict_type(model, 'SHARDED_STATE_DICT', function()
          model:load_state_dict(model:state_dict())
        end)
        model(x):sum():backward()
        local grad = model.lin1.weight:grad()
        assert.is_true(grad:norm():item() > 0)
      end)
    end
  end)
end)

describe('TestFSDPUseOrigParamsFQNs', function()
  it('test_named_parameters_in_forward', function()
    local Model = nn.Module.extend 'Model'
    function Model:init() self:child('lin', nn.Linear(5, 5)) end
    function Model:forward(x)
      local seen = {}
      for name, p in self:named_parameters() do
        seen[#seen + 1] = { name, p:shape() }
      end
      assert.same({ { 'lin.weight', { 5, 5 } }, { 'lin.bias', { 5 } } }, seen)
      return self.lin(x)
    end
    ranks(function()
      reference.wrap(Model(), { use_orig_params = true })(ms.ones(2, 5))
    end)
  end)
end)

describe('TestFSDPUseOrigParamsNoSync', function()
  -- One parameter each; the flat one has one dimension and may have padding.
  local function same(flat, original)
    local f, o = flat:parameters()[1], original:parameters()[1]
    assert.same({ 1, 1, 1 }, { #flat:parameters(), #original:parameters(), f:dim() })
    checks.close(o:reshape(-1):totable(), f:narrow(1, 1, o:numel()))
    checks.close(o:grad():reshape(-1):totable(), f:grad():narrow(1, 1, o:grad():numel()))
    return o:grad():clone()
  end

  it('test_no_sync_correctness', function()
    for _, strategy in ipairs(reference.STRATEGIES) do
      ranks(function(rank)
        local function linear(use_orig_params)
          ms.manual_seed(42)
          return reference.wrap(nn.Linear(7, 1, { bias = false }):materialize(),
            { sharding_strategy = strategy, use_orig_params = use_orig_params })
        end
        local flat, original = linear(false), linear(true)
        local x, grad = ms.randn(2, 7, { seed = rank + 1 }), ms.randn(2, 1, { seed = rank + 11 })
        local function backward()
          for _, model in ipairs { flat, original } do
            model(x):backward(grad)
          end
          return same(flat, original)
        end
        local once = backward()
        flat:zero_grad()
        original:zero_grad()
        flat:no_sync(original.no_sync, original, backward)
        assert.same({ 1, 7 }, original.weight:grad():shape())
        checks.close((once * 2):totable(), backward())
      end)
    end
  end)

  it('test_no_sync_mixed_precision', function()
    each_strategy(function(strategy)
      local model = reference.wrap(nn.Linear(3, 3), {
        sharding_strategy = strategy, use_orig_params = true,
        mixed_precision = { param_dtype = 'f16', reduce_dtype = 'f32' },
      })
      local function backward(dtype)
        local n = 0
        model(ms.ones(2, 3)):sum():backward()
        for _, p in model:named_parameters() do
          if p:grad() then
            assert.equal(dtype, p:grad():dtype())
            n = n + 1
          end
        end
        assert(n > 0)
      end
      model:no_sync(function()
        backward 'f16'
        backward 'f16'
      end)
      backward 'f32'
    end)
  end)
end)

describe('TestFSDPUseOrigParamsInit', function()
  it('test_non_uniform_requires_grad', function()
    ranks(function()
      local module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
      module[1].bias:requires_grad_(false)
      module[2].bias:requires_grad_(false)
      local model = reference.wrap(module, { use_orig_params = true })
      for i = 1, 2 do
        assert.is_true(model[i].weight:requires_grad())
        assert.is_false(model[i].bias:requires_grad())
      end
    end)
  end)
end)

describe('TestMultiTensorApply', function()
  for name, device in pairs { cpu = 'cpu', cuda = 'fake' } do -- the order does not matter
    it('test_multi_tensor_apply_size0_tensors_' .. name, function()
      scripts.with_script([[
        for _ = 1, 1000 do
          assert(ms.empty(0):mul_(0.1):numel() == 0)
        end]], function(path)
        local output, code = scripts.shell(('env MS_DEVICE=%s luajit %s'):format(device, path))
        assert.equal(0, code, output)
      end)
    end)
  end
end)
