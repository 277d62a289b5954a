-- fully_shard: modules that are sharded in place, as PyTorch's FSDP2.
local ms = require 'moonshard'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim
local checks = require 'support.checks'
local wrap = require 'support.wrap'
local runs = require 'support.runs'

local function gpt()
  ms.manual_seed(1)
  return runs.gpt()
end

-- Two steps on this rank's tokens; the hash of all parameters after them.
local function trained(model, rank, state)
  local opt = optim.AdamW(model:parameters(), { lr = 0.01 })
  local ids = ms.tensor({ { 1, 2, 3, rank }, { 4, 3, 2, 1 } }, { dtype = 'i64' })
  for _ = 1, 2 do
    model(ids, ids):backward()
    opt:step()
    opt:zero_grad()
  end
  return state:hash()
end

-- A GPT with each block and the root sharded.
local function sharded_gpt(opts)
  local model = gpt()
  for _, block in ipairs(model.h) do
    fsdp.fully_shard(block, opts)
  end
  return fsdp.fully_shard(model, opts)
end

describe('fully_shard', function()
  it('trains to the bits of FSDP, for every precision', function()
    for _, case in ipairs {
      { mp_policy = {}, mixed_precision = nil },
      { mp_policy = { param_dtype = 'bf16' },
        mixed_precision = { param_dtype = 'bf16', reduce_dtype = 'f32' } },
      { mp_policy = { param_dtype = 'bf16', reduce_dtype = 'bf16' },
        mixed_precision = { param_dtype = 'bf16' } },
    } do
      ms.dist.spawn(2, function(rank)
        local wrapped = wrap(gpt(), {
          auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.TransformerBlock },
          mixed_precision = case.mixed_precision, use_orig_params = true,
        })
        local model = sharded_gpt { mp_policy = case.mp_policy }
        assert.equal(trained(wrapped, rank, wrapped),
          trained(model, rank, fsdp.get_state(model)))
      end)
    end
  end)

  it('casts inputs and outputs as its policy says', function()
    local seen
    local Net = nn.Module.extend('Net')
    function Net:init() self.linear = nn.Linear(2, 2) end
    function Net:forward(x, n)
      seen = x:dtype()
      return self.linear(x:to(self.linear.weight:dtype())), n
    end
    ms.dist.spawn(1, function()
      for _, case in ipairs {
        { { param_dtype = 'bf16' }, 'bf16', 'bf16' },
        { { param_dtype = 'bf16', cast_forward_inputs = false }, 'f32', 'bf16' },
        { { param_dtype = 'bf16', output_dtype = 'f32' }, 'bf16', 'f32' },
        { { output_dtype = 'f64' }, 'f32', 'f64' },
      } do
        local model = fsdp.fully_shard(Net(), { mp_policy = case[1] })
        local out, n = model(ms.ones(1, 2), 3)
        assert.same({ case[2], case[3], 3 }, { seen, out:dtype(), n })
        out:sum():backward()
        assert.equal('f32', model.linear.weight:grad():dtype())
      end
    end)
  end)

  it('compares output_dtype between ranks', function()
    checks.raises('CommError', "output_dtype of mp_policy of '' is -1 on rank 0 and",
      ms.dist.spawn, 2, function(rank)
        local policy = { output_dtype = rank == 1 and 'f64' or nil }
        fsdp.fully_shard(nn.Linear(2, 2), { mp_policy = policy })(ms.ones(1, 2))
      end)
  end)

  it('explains operators of two dtypes by its policies', function()
    ms.dist.spawn(1, function()
      local opts = { mp_policy = { param_dtype = 'f64', output_dtype = 'f32' } }
      local model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
      fsdp.fully_shard(model[1], opts)
      fsdp.fully_shard(model, opts)
      checks.raises('RuntimeError', 'the mp_policy of each module casts its inputs to param_dtype '
        .. 'with cast_forward_inputs, and its results to output_dtype', model, ms.ones(1, 2))
    end)
  end)

  it('leaves ignored parameters as they are', function()
    ms.dist.spawn(2, function(rank)
      local model = nn.Linear(4, 2)
      fsdp.fully_shard(model, { ignored_params = { model.bias } })
      model(ms.full({ 1, 4 }, rank + 1)):sum():backward()
      assert.same({ 2 }, model.bias:shape())
      assert.same({ 1, 1 }, model.bias:grad():totable()) -- not reduced
      checks.close({ 1.5, 1.5, 1.5, 1.5 }, model.weight:grad())
    end)
  end)

  it('gives modules of one class one new class, with its methods first', function()
    ms.dist.spawn(1, function()
      local a, b = nn.Linear(2, 2), nn.Linear(2, 2)
      function b.extra_repr() return '' end
      fsdp.fully_shard(a)
      assert.equal(b, fsdp.fully_shard(b))
      assert.equal(getmetatable(a), getmetatable(b))
      local plain = nn.Linear(2, 2)
      for _, case in ipairs {
        { a, true }, { fsdp.replicate(nn.Linear(2, 2)), true }, { plain, false },
        { wrap(nn.Linear(2, 2)), false },
      } do
        assert.equal(case[2], ms.is(case[1], fsdp.FSDPModule))
      end
      assert.is_true(ms.is(a, nn.Linear))
      assert.equal('FSDPLinear()', tostring(b))
      local model = nn.Sequential(a)
      for _, sharded in ipairs { a, model } do
        checks.raises('AssertionError', 'FSDP does not support deepcopy. Please use state dict for '
          .. 'serialization.', sharded.deepcopy, sharded)
      end
    end)
  end)

  it('asks shard_placement_fn once for each parameter of its own', function()
    ms.dist.spawn(2, function()
      local model = nn.Sequential(nn.Linear(2, 4), nn.Linear(2, 4), nn.Linear(4, 2))
      model[2].weight = model[1].weight
      fsdp.fully_shard(model[3])
      local seen = {}
      fsdp.fully_shard(model, { ignored_params = { model[1].bias }, shard_placement_fn = function(p)
        seen[#seen + 1] = p:shape()
        return #seen > 1 and ms.dist.Shard(-1) or ms.dist.Shard(1)
      end })
      assert.same({ { 4, 2 }, { 4 } }, seen)
    end)
  end)

  -- Options with a placement for the parameters of nn.Linear(1, 1), or for one of them.
  local function placed(value, name)
    local n = 0
    return { shard_placement_fn = function()
      n = n + 1
      return (name ~= 'bias' or n == 2) and value or nil
    end }
  end

  it('has its methods on a module that nn.checkpoint wraps', function()
    ms.dist.spawn(1, function()
      local model = fsdp.fully_shard(nn.checkpoint_wrapper(nn.Linear(2, 2)))
      model:set_requires_gradient_sync(false)
      model(ms.ones(1, 2)):sum():backward()
      assert.equal('FSDPCheckpointWrapper', model._name)
      assert.is_true(ms.is(model, fsdp.FSDPModule))
    end)
  end)

  it('refuses what it cannot shard', function()
    ms.dist.spawn(1, function()
      local mesh3 = ms.dist.init_device_mesh('cpu', { 1, 1, 1 })
      local nameless = ms.dist.init_device_mesh('cpu', { 1, 1 })
      local scalar = nn.Linear(1, 1)
      scalar:param('scale', {}, { kind = 'constant', value = 1 })
      local once = fsdp.fully_shard(nn.Linear(1, 1))
      local used = fsdp.fully_shard(nn.Sequential(nn.Linear(1, 1)))
      used(ms.ones(1, 1))
      local first = nn.Linear(1, 1)
      for _, case in ipairs {
        { 'ValueError', 'fully_shard does not support containers that do not implement forward',
          nn.ModuleList {} },
        { 'AssertionError', 'Each distinct composable distributed API can only be applied to a '
          .. 'module once.', once },
        { 'ValueError', 'fully_shard expects a 1D or 2D DeviceMesh but got DeviceMesh',
          nn.Linear(1, 1), { mesh = mesh3 } },
        { 'AssertionError', 'Please init the 2D mesh for HSDP with mesh_dim_names specified',
          nn.Linear(1, 1), { mesh = nameless } },
        { 'ValueError', "fully_shard doesn't support scalar parameters. Change scale to a 1D "
          .. 'tensor with numel equal to 1.', scalar },
        { 'ValueError', 'reshard_after_forward should be a bool or an int', nn.Linear(1, 1),
          { reshard_after_forward = 'yes' } },
        { 'ValueError', 'If passing reshard_after_forward as an int, it should be a factor of 1, '
          .. 'not 2', nn.Linear(1, 1), { reshard_after_forward = 2 } },
        { 'TypeError', "fully_shard: 'module' is a table, expected a module", {} },
        { 'TypeError', "'offload_policy' is a table, expected a fsdp.OffloadPolicy",
          nn.Linear(1, 1), { offload_policy = { pin_memory = true } } },
        { 'AssertionError', "Shard dim 2 is invalid for 'bias' of 1 dimensions", nn.Linear(1, 1),
          placed(ms.dist.Shard(2), 'bias') },
        { 'AssertionError', 'Shard dim -3 is invalid', nn.Linear(1, 1), placed(ms.dist.Shard(-3)) },
        { 'NotImplementedError', "shard_placement_fn gives Shard(-1) for 'weight', but fully_shard "
          .. 'divides dimension 1', nn.Linear(1, 1), placed(ms.dist.Shard(-1)) },
        { 'ValueError', "Invalid shard_placement_fn result for 'weight': expected nil or "
          .. 'dist.Shard(dim), got Replicate()', nn.Linear(1, 1), placed(ms.dist.Replicate()) },
        { 'ValueError', 'Invalid shard_placement_fn result', nn.Linear(1, 1), placed(1) },
        { 'TypeError', "'ignored_params[1]' is a FSDPLinear, expected a parameter", nn.Linear(1, 1),
          { ignored_params = { once } } },
        { 'RuntimeError', "'weight' of nn.Linear is in the group of 'FSDPSequential', which was "
          .. 'used already', used[1] },
        { 'ValueError', 'Change scale to a 1D tensor', { first, scalar } },
      } do
        checks.raises(case[1], case[2], fsdp.fully_shard, case[3], case[4])
      end
      fsdp.fully_shard(first) -- not sharded by the list that was refused
    end)
  end)

  it('has the module that runs first as its root', function()
    ms.dist.spawn(2, function()
      local inner = fsdp.fully_shard(nn.Linear(2, 2))
      local model = fsdp.fully_shard(nn.Sequential(inner, nn.Linear(2, 2)))
      inner(ms.ones(1, 2))
      checks.raises('RuntimeError', 'FSDP state has already been lazily initialized for 0\n'
        .. 'FSDP requires running forward through the root module first', model, ms.ones(1, 2))
    end)
  end)

  it('has its settings from before the first use on', function()
    ms.dist.spawn(2, function(rank)
      local function grads(prepare, ...)
        ms.manual_seed(1)
        local model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        fsdp.fully_shard(model[1])
        fsdp.fully_shard(model)
        prepare(model, ...)
        model(ms.full({ 1, 2 }, rank + 1)):sum():backward()
        local out = {}
        for i = 1, 2 do
          local grad = model[i].bias:grad()
          out[i] = grad and grad:totable()[1]
        end
        return out, model
      end
      local plain = grads(function() end)
      assert.equal(1, plain[2]) -- d sum / d bias, the mean over ranks
      local divided = grads(function(model)
        model:set_gradient_divide_factor(4) -- this module only
        model[1]:set_modules_to_forward_prefetch { model }
        model:set_modules_to_backward_prefetch { model[1] }
        model:set_is_last_backward(true)
      end)
      assert.same({ plain[1], 0.5 }, divided)
      local unsynced, model = grads(function(model)
        model:set_requires_gradient_sync(false, false)
        model:set_reshard_after_backward(false)
      end)
      assert.equal(plain[1], unsynced[1])
      model:set_requires_gradient_sync(true)
      model(ms.full({ 1, 2 }, rank + 1)):sum():backward()
      assert.same({ 2 }, model[2].bias:grad():totable()) -- of two backwards
    end)
  end)

  it('drops gradients and full parameters of an iteration that failed', function()
    ms.dist.spawn(2, function(rank)
      local model = fsdp.fully_shard(nn.Sequential(fsdp.fully_shard(nn.Linear(2, 2)),
        nn.Linear(2, 2)))
      local x, fails = ms.full({ 1, 2 }, rank + 1), false
      model:reset_iter_state() -- before the first use
      local function pass(sync)
        model:set_requires_gradient_sync(sync)
        model(x):sum():backward()
      end
      local function grads()
        local out = {}
        for i, p in ipairs(model:parameters()) do
          out[i] = p:grad() and p:grad():totable() or 'none'
        end
        return out
      end
      model[1]:register_forward_hook(function() return fails and error 'on purpose' or nil end)
      pass(true)
      local wanted = grads()
      model:reset_iter_state()
      pass(false)
      fails = true
      assert.is_false(pcall(model, x))
      fails = false
      model(x) -- the root stays gathered
      model:reset_iter_state()
      assert.same({ 'none', 'none', 'none', 'none' }, grads())
      assert.same({ 1, 2 }, model[2].weight:shape())
      pass(true)
      assert.same(wanted, grads())
      checks.raises('RuntimeError', 'reset_iter_state must be called on the root FSDP module',
        model[1].reset_iter_state, model[1])
    end)
  end)

  it('gives reduced gradients to a hook of the module, in the dtype of the reduction', function()
    ms.dist.spawn(4, function(rank)
      local mesh = ms.dist.init_device_mesh('cpu', { 2, 2 }, { mesh_dim_names = { 'dp', 'fsdp' } })
      for _, case in ipairs { -- the mesh, elements of a rank's part
        { nil, 1 }, { mesh, 2 }, { fsdp.replicate, 4 },
      } do
        local replicas, seen = case[1] == fsdp.replicate, {}
        local model = nn.Sequential(nn.Linear(4, 4, { bias = false }), nn.Linear(4, 1))
        local shard = replicas and fsdp.replicate or fsdp.fully_shard
        local opts = { mesh = not replicas and case[1] or nil,
          mp_policy = { reduce_dtype = 'f64' } }
        nn.init.constant_(model[2].weight, 1)
        shard(model[1], opts)
        shard(model, opts)
        model[1]:set_all_reduce_hook(function(grad)
          seen[#seen + 1] = { grad:dtype(), grad:numel(), grad:sum():item() }
          ms.dist.all_reduce(grad, 'sum') -- may communicate
          checks.raises('AssertionError', 'set_all_reduce_hook during backward',
            model[1].set_all_reduce_hook, model[1], print)
        end)
        for _, sync in ipairs { false, true } do
          model:set_requires_gradient_sync(sync)
          model(ms.full({ 1, 4 }, rank)):sum():backward()
        end
        -- inputs of 0 to 3, whose mean is 1.5, in two backwards
        assert.same({ { 'f64', 4 * case[2], 3 * 4 * case[2] } }, seen)
        checks.close({ 12 }, model[1].weight:grad():reshape(-1):narrow(1, 1, 1), 0)
        assert.equal('f32', model[1].weight:grad():dtype())
      end
    end)
  end)

  it('gathers parameters with unshard, at once or in two halves', function()
    ms.dist.spawn(2, function()
      local model = fsdp.fully_shard(nn.Linear(2, 4))
      assert.is_nil(model:unshard())
      assert.same({ 4, 2 }, model.weight:shape())
      model:reshard()
      assert.same({ 2, 2 }, model.weight:shape()) -- rows of this rank
      local handle = model:unshard { async_op = true }
      assert.same({ 2, 2 }, model.weight:shape())
      handle:wait()
      handle:wait()
      assert.same({ 4, 2 }, model.weight:shape())
    end)
  end)

  it('gathers a root by what its option says, and by what was set', function()
    ms.dist.spawn(2, function()
      for _, case in ipairs {
        { nil, nil, 0 }, { true, nil, 1 }, { false, nil, 0 }, { nil, true, 1 }, { true, false, 0 },
      } do
        local model = fsdp.fully_shard(nn.Linear(2, 2), { reshard_after_forward = case[1] })
        if case[2] ~= nil then
          model:set_reshard_after_forward(case[2])
        end
        model(ms.ones(1, 2)):sum():backward()
        local loss = model(ms.ones(1, 2)):sum()
        local before = ms.dist.counts().all_gather
        loss:backward()
        assert.equal(case[3], ms.dist.counts().all_gather - before)
      end
    end)
  end)

  it('runs a registered method as a forward', function()
    ms.dist.spawn(2, function()
      local Net = nn.Linear.extend('Net')
      function Net:encode(x) return { self.weight:shape(), self:forward(x) } end
      local model = fsdp.fully_shard(Net(2, 4))
      fsdp.register_fsdp_forward_method(model, 'encode')
      local out = model:encode(ms.ones(1, 2))
      assert.same({ 4, 2 }, out[1])
      out[2]:sum():backward()
      assert.same({ 2 }, model.bias:grad():shape())
      checks.raises('ValueError', 'FSDPNet does not have a method decode',
        fsdp.register_fsdp_forward_method, model, 'decode')
      fsdp.register_fsdp_forward_method(nn.Linear(1, 1), 'decode')
    end)
  end)

  it('refuses a call that would compute with rows', function()
    ms.dist.spawn(2, function()
      local model = fsdp.fully_shard(nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1)))
      local x = ms.ones(1, 2)
      nn.init.constant_(model[1].weight, 1)
      nn.init.constant_(model[1].bias, 0)
      ms.no_grad(model, x)
      checks.raises('RuntimeError', "0 (nn.Linear) was called outside the forward of "
        .. "'FSDPSequential', which gathers its parameters: 'weight' is this rank's shard (2, 2) "
        .. 'of (4, 2)', model[1], x)
      model:unshard()
      assert.same({ { 2, 2, 2, 2 } }, model[1](x):totable())
    end)
  end)

  it('checks what its methods are given', function()
    ms.dist.spawn(1, function()
      local model = fsdp.fully_shard(nn.Linear(2, 2))
      checks.raises('ValueError', 'reshard_after_forward should be a bool, got a number',
        model.set_reshard_after_forward, model, 2)
      checks.raises('ValueError', 'Expects FSDPModule but got a nn.Linear',
        model.set_modules_to_backward_prefetch, model, { nn.Linear(1, 1) })
      checks.raises('TypeError', "'requires_gradient_sync' is a number, expected true or false",
        model.set_requires_gradient_sync, model, 1)
      checks.raises('ValueError', "'factor' is 0, expected a finite number above 0",
        model.set_gradient_divide_factor, model, 0)
      checks.raises('ValueError', 'max_input_buffers must be a positive int',
        model.set_reduce_scatter_max_input_buffers, model, 0)
      checks.raises('TypeError', 'max_input_buffers must be an int',
        model.set_reduce_scatter_max_input_buffers, model, true)
      checks.raises('ValueError', 'Expects list of FSDPModules but got a nn.Linear',
        fsdp.share_comm_ctx, { model, nn.Linear(1, 1) })
      checks.raises('TypeError', "'hook' is a number, expected a function",
        model.set_all_reduce_hook, model, 1)
      fsdp.share_comm_ctx { model, model }
    end)
  end)

  it('keeps a setting that may not change', function()
    ms.dist.spawn(2, function()
      local model = fsdp.fully_shard(nn.Linear(2, 2))
      local out, seen = model(ms.ones(1, 2)), nil
      out:hook(function()
        seen = select(2, pcall(model.set_requires_gradient_sync, model, false))
      end)
      out:sum():backward()
      assert.matches('set_requires_gradient_sync%(%) before it', tostring(seen))
      model.bias:set_grad(nil)
      model:set_requires_all_reduce(true)
      model(ms.ones(1, 2)):sum():backward()
      assert.same({ 1 }, model.bias:grad():totable()) -- reduced: this rank's part
    end)
  end)

  -- Three linear layers, of which the first and the last are one group.
  local function grouped(opts)
    ms.manual_seed(1)
    local model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    fsdp.fully_shard({ model[1], model[3] }, opts)
    fsdp.fully_shard(model[2], opts)
    return fsdp.fully_shard(model, opts)
  end

  local function gathers_of(fn, ...)
    local before = ms.dist.counts().all_gather
    fn(...)
    return ms.dist.counts().all_gather - before
  end

  it('gathers the modules of a list as one group', function()
    ms.dist.spawn(2, function(rank)
      local x = ms.full({ 1, 2 }, rank + 1)
      local model = grouped()
      ms.manual_seed(1)
      local wrapped = wrap(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)),
        { use_orig_params = true })
      local state = fsdp.get_state(model)
      model(x):sum():backward()
      local loss
      assert.equal(2, gathers_of(function() loss = model(x):sum() end))
      assert.equal(2, #state:units())
      assert.equal(2, gathers_of(loss.backward, loss))
      for _, m in ipairs { model, wrapped } do
        local opt = optim.SGD(m:parameters(), { lr = 0.1 })
        opt:zero_grad()
        m(x):sum():backward()
        opt:step()
      end
      assert.equal(wrapped:hash(), state:hash())
      -- a member alone: its own gather, freed at the end
      assert.equal(1, gathers_of(function() loss = model[3](x):sum() end))
      assert.equal(1, gathers_of(loss.backward, loss))
    end)
  end)

  it('ends a group of which not all modules ran with the root', function()
    ms.dist.spawn(2, function()
      local Net = nn.Module.extend('Net')
      function Net:init() self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2) end
      function Net:forward(x, fails)
        local out = self.a(x)
        return fails and error('on purpose', 0) or out
      end
      local model = Net()
      fsdp.fully_shard { model.a, model.b, model.a }
      fsdp.fully_shard(model)
      local function state_of() return fsdp.get_state(model):units()[1].state end
      model(ms.ones(1, 2)):sum():backward()
      local out = model(ms.ones(1, 2))
      assert.equal('SHARDED', state_of())
      out:sum():backward()
      assert.is_false(pcall(model, ms.ones(1, 2), true))
      assert.equal('SHARDED', state_of())
      assert.equal(1, gathers_of(model, ms.ones(1, 2)))
    end)
  end)

  it('leaves out modules inside others of a list, and needs one root', function()
    ms.dist.spawn(2, function()
      local outer = nn.Sequential(nn.Linear(2, 2))
      local list = { outer[1], outer, nn.Linear(2, 2) }
      assert.equal(list, fsdp.fully_shard(list))
      assert.equal('nn.Linear', getmetatable(outer[1])._name)
      checks.raises('RuntimeError', 'FSDP requires a single root module but got [FSDPSequential, '
        .. 'FSDPLinear]', outer, ms.ones(1, 2))
    end)
  end)

  it('refuses a parameter that is in two groups', function()
    ms.dist.spawn(2, function()
      local function tied()
        local model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
        model[3].weight = model[1].weight
        return model
      end
      local model = tied()
      fsdp.fully_shard(model[3])
      fsdp.fully_shard(model)
      checks.raises('ValueError', "Parameter '2.weight' is shared with a parameter already managed "
        .. 'by another FSDP group', model, ms.ones(1, 2))
      model = tied()
      fsdp.fully_shard { model[1], model[3] }
      fsdp.fully_shard(model)
      model(ms.ones(1, 2)):sum():backward()
      assert.equal(5, #model:parameters())
    end)
  end)

  it('has a group that knows what it is used for', function()
    ms.dist.spawn(2, function()
      local seen = {}
      local model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
      fsdp.fully_shard(model[1])
      fsdp.fully_shard(model[2])
      fsdp.fully_shard(model)
      local group = fsdp.get_state(model[2]):param_group()
      local function see() seen[#seen + 1] = group:training_state() end
      model[2]:register_forward_hook(see)
      model[2]:register_full_backward_pre_hook(see)
      model[1]:register_full_backward_hook(see)
      see()
      model(ms.ones(1, 2):requires_grad_()):sum():backward()
      see()
      assert.same({ 'IDLE', 'FORWARD', 'PRE_BACKWARD', 'POST_BACKWARD', 'IDLE' }, seen)
    end)
  end)
end)

describe('a mesh of two dimensions', function()
  it('divides parameters along the second', function()
    ms.dist.spawn(4, function(rank)
      local mesh = ms.dist.init_device_mesh('cpu', { 2, 2 }, { mesh_dim_names = { 'dp', 'fsdp' } })
      local wrapped = wrap(gpt(), {
        auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.TransformerBlock }, use_orig_params = true,
      })
      local model = sharded_gpt { mesh = mesh }
      local state = fsdp.get_state(model)
      assert.equal(trained(wrapped, rank, wrapped), trained(model, rank, state))
      assert.same({ 7 - rank % 2, 10 }, model.wte.weight:shape()) -- of 13 rows
      local ids = ms.tensor({ { 1, 2, 3, 4 } }, { dtype = 'i64' })
      for _, case in ipairs { { false, 0 }, { true, 2 } } do
        local before = ms.dist.counts().reduce_scatter
        model:set_requires_all_reduce(case[1])
        model(ids, ids):backward()
        assert.equal(case[2], ms.dist.counts().reduce_scatter - before)
      end
    end)
  end)
end)

describe('replicate', function()
  it('averages gradients of whole parameters', function()
    ms.dist.spawn(2, function(rank)
      local model = nn.Linear(2, 2)
      assert.equal(model, fsdp.replicate(model))
      model(ms.full({ 1, 2 }, rank + 1)):sum():backward()
      assert.same({ { 1.5, 1.5 }, { 1.5, 1.5 } }, model.weight:grad():totable())
      assert.equal('ReplicateLinear', getmetatable(model)._name)
    end)
  end)

  it('refuses meshes of two dimensions, and modules that are sharded', function()
    ms.dist.spawn(1, function()
      local mesh = ms.dist.init_device_mesh('cpu', { 1, 1 })
      checks.raises('ValueError', 'replicate expects a 1D DeviceMesh but got DeviceMesh',
        fsdp.replicate, nn.Linear(1, 1), { mesh = mesh })
      checks.raises('RuntimeError', 'Cannot apply `replicate()` on a Module already managed by '
        .. '`fully_shard`', fsdp.replicate, fsdp.fully_shard(nn.Linear(1, 1)))
      checks.raises('AssertionError', 'Each distinct composable distributed API can only be '
        .. 'applied to a module once.', fsdp.replicate, fsdp.replicate(nn.Linear(1, 1)))
    end)
  end)
end)

describe('fsdp.ParamGroup', function()
  it('has a state for a while, also until an error', function()
    local group = fsdp.ParamGroup {}
    local function nested()
      return group:training_state(), group:use_training_state('PRE_BACKWARD', function()
        return group:training_state()
      end), group:training_state()
    end
    assert.same({ 'FORWARD', 'PRE_BACKWARD', 'FORWARD' },
      { group:use_training_state('FORWARD', nested) })
    assert.is_false(pcall(group.use_training_state, group, 'FORWARD', error, 'on purpose'))
    assert.equal('IDLE', group:training_state())
    checks.raises('ValueError', 'expected one of IDLE, FORWARD', group.use_training_state, group,
      'TRAINING', error)
  end)
end)

describe('fsdp.set_', function()
  it('overwrites a tensor', function()
    local x = ms.zeros(2)
    assert.equal(x, fsdp.set_(x, ms.ones(2)))
    assert.same({ 1, 1 }, x:totable())
  end)
end)
