-- Gradients of sharded parameters: reduced shards, accumulation inside no_sync, set_grad,
-- parameters without a gradient and frozen parameters.
local ms = require 'moonshard'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim
local checks = require 'support.checks'
local runs = require 'support.runs'
local wrap = require 'support.wrap'

local STRATEGIES = { 'FULL_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD' }

-- A pass whose gradient for the weight (1, 7) is k * (rank + 1) in every element.
local function pass(model, rank, k)
  model(ms.full({ 1, 7 }, k * (rank + 1))):sum():backward()
end

local function linear(strategy, precision)
  ms.manual_seed(1)
  local model = wrap(nn.Linear(7, 1, { bias = false }), {
    sharding_strategy = strategy, mixed_precision = precision,
  })
  return model
end

describe('gradients of sharded parameters', function()
  for _, strategy in ipairs(STRATEGIES) do
    it('are local inside no_sync and reduced after it, with ' .. strategy, function()
      ms.dist.spawn(2, function(rank)
        local model = linear(strategy)
        local function shape_of_reduced()
          return strategy == 'NO_SHARD' and { 1, 7 } or { rank == 0 and 4 or 3 }
        end
        pass(model, rank, 1)
        assert.same(shape_of_reduced(), model.weight:grad():shape())
        checks.close(1.5, model.weight:grad():mean():item())
        model:no_sync(pass, model, rank, 1)
        assert.same({ 1, 7 }, model.weight:grad():shape())
        checks.close(rank + 1, model.weight:grad():mean():item())
        model:no_sync(pass, model, rank, 10)
        checks.close(11 * (rank + 1), model.weight:grad():mean():item())
        pass(model, rank, 100)
        assert.same(shape_of_reduced(), model.weight:grad():shape())
        checks.close(1.5 * 112, model.weight:grad():mean():item())
      end)
    end)

    for _, reduce_dtype in ipairs { 'f32', 'bf16' } do
      it(('have param_dtype inside no_sync and f32 after, with %s in %s')
        :format(strategy, reduce_dtype), function()
        ms.dist.spawn(2, function(rank)
          local model = linear(strategy, { param_dtype = 'bf16', reduce_dtype = reduce_dtype })
          for k = 1, 3 do -- small integers: exact in bf16
            model:no_sync(pass, model, rank, 1)
            assert.equal('bf16', model.weight:grad():dtype())
            assert.equal(k * (rank + 1), model.weight:grad():mean():item())
          end
          pass(model, rank, 1)
          assert.equal('f32', model.weight:grad():dtype())
          assert.equal(6, model.weight:grad():mean():item())
        end)
      end)
    end

    it('stay in param_dtype with keep_low_precision_grads, with ' .. strategy, function()
      ms.dist.spawn(2, function(rank)
        local hashes = {}
        for i, keeps in ipairs { false, true } do
          local model = linear(strategy, { param_dtype = 'bf16', keep_low_precision_grads = keeps })
          local opt = optim.SGD(model:parameters(), { lr = 0.1, momentum = 0.9 })
          model:no_sync(pass, model, rank, 1)
          pass(model, rank, 1)
          pass(model, rank, 1)
          assert.equal(keeps and 'bf16' or 'f32', model.weight:grad():dtype())
          assert.equal(4.5, model.weight:grad():mean():item())
          opt:step()
          hashes[i] = model:hash()
        end
        assert.equal(hashes[1], hashes[2])
      end)
    end)
  end

  it('are dropped by zero_grad inside no_sync', function()
    ms.dist.spawn(2, function(rank)
      ms.manual_seed(1)
      local model = fsdp.FSDP(nn.Sequential { nn.Linear(3, 2), nn.Linear(2, 2) })
      local all = optim.SGD(model:parameters(), { lr = 0.1 })
      local first = optim.SGD({ model[1].weight, model[1].bias }, { lr = 0.1 })
      local function run()
        model(ms.full({ 1, 3 }, rank + 1)):sum():backward()
      end
      run()
      local once = model:clip_grad_norm_(1e9):item()
      all:zero_grad()
      model:no_sync(run)
      all:zero_grad()
      assert.is_nil(model[1].weight:grad())
      assert.is_nil(model[2].bias:grad())
      run()
      checks.close(once, model:clip_grad_norm_(1e9):item())
      all:zero_grad()
      model:no_sync(run)
      first:zero_grad()
      assert.is_nil(model[1].weight:grad())
      checks.close(1, model[2].bias:grad():mean():item())
      run()
      -- the second layer's bias has twice the mean gradient of 1; who holds it can tell
      local grad = model[2].bias:grad()
      assert.equal(rank == 1, grad ~= nil)
      if grad then
        checks.close(2, grad:mean():item())
      end
    end)
  end)

  for _, strategy in ipairs(STRATEGIES) do
    for world = 1, 2 do
      it(('can be set, with %s on %d ranks'):format(strategy, world), function()
        ms.dist.spawn(world, function(rank)
          local model = linear(strategy)
          local mean = (world + 1) / 2 -- over ranks, of rank + 1
          pass(model, rank, 1)
          local shape = model.weight:grad():shape()
          model.weight:set_grad(nil)
          model.weight:set_grad(ms.full(shape, 5))
          pass(model, rank, 1)
          checks.close(5 + mean, model.weight:grad():mean():item())
          model:no_sync(pass, model, rank, 1)
          checks.raises('ValueError', "the accumulated gradient of 'weight' has shape (7), "
            .. 'expected (1, 7)', model.weight.set_grad, model.weight, ms.full({ 7 }, 1))
          checks.raises('TypeError', "the accumulated gradient of 'weight' is i64, expected f32",
            model.weight.set_grad, model.weight, ms.full({ 1, 7 }, 8, { dtype = 'i64' }))
          local copy = model.weight:grad()
          checks.raises('RuntimeError', 'is a copy of what no_sync has accumulated; give another '
            .. 'value to set_grad()', copy.fill_, copy, 8)
          checks.raises('RuntimeError', 'is a copy', copy:narrow(2, 1, 1).fill_,
            copy:narrow(2, 1, 1), 8)
          model.weight:set_grad(copy:mul(0):add(8))
          checks.close(8, model.weight:grad():mean():item())
          pass(model, rank, 1)
          checks.close(5 + mean + 8 + mean, model.weight:grad():mean():item())
        end)
      end)
    end
  end

  for _, strategy in ipairs(STRATEGIES) do
    it('that a script holds keep their values after zero_grad, with ' .. strategy, function()
      ms.dist.spawn(1, function()
        local model = linear(strategy)
        pass(model, 0, 1)
        local held = model.weight:grad()
        model.weight:set_grad(nil)
        pass(model, 0, 10)
        checks.close(1, held:mean():item())
        checks.close(10, model.weight:grad():mean():item())
        model:zero_grad()
        pass(model, 0, 100)
        checks.close(1, held:mean():item())
        checks.close(100, model.weight:grad():mean():item())
      end)
    end)
  end

  -- Three backwards with gradients 1, 2 and 4. Frozen before the third, a parameter has 3.
  it('of parameters that are frozen before the last backward stay', function()
    local Scaled = nn.Module.extend('my.Scaled')
    function Scaled:init()
      self:param('w', { 5 }, nn.init.ones())
    end
    function Scaled:forward(x)
      return x * self.w
    end
    local Net = nn.Module.extend('my.Net')
    function Net:init()
      self.frozen, self.trained = Scaled(), Scaled()
    end
    function Net:forward(x)
      return self.frozen(x) + self.trained(x)
    end
    for _, policy in ipairs { fsdp.always_wrap_policy, function() return false end } do
      for _, strategy in ipairs(STRATEGIES) do
        ms.dist.spawn(2, function()
          local model = wrap(Net(), {
            auto_wrap_policy = policy, sharding_strategy = strategy, use_orig_params = true,
          })
          local function run(k)
            model(ms.full({ 5 }, k)):sum():backward()
          end
          local frozen, trained = model.frozen.w, model.trained.w
          local function check(n, m)
            for p, mean in pairs { [frozen] = n, [trained] = m } do
              if p:numel() > 0 then
                checks.close(ms.full(p:shape(), mean):totable(), p:grad())
              end
            end
          end
          for _, added in ipairs { 3, 6 } do -- the second time it adds to the first
            model:no_sync(function()
              run(1)
              run(2)
            end)
            frozen:requires_grad_(false)
            run(4)
            check(added, added / 3 * 7)
            frozen:requires_grad_(true)
          end
        end)
      end
    end
  end)

  it('from before wrapping are dropped with a warning', function()
    ms.dist.spawn(2, function()
      local model = nn.Linear(7, 1):materialize()
      model.weight:set_grad(ms.ones(1, 7))
      local warnings = ms.capture_warnings(function() fsdp.FSDP(model):parameters() end)
      assert.equal(1, #warnings)
      assert.truthy(warnings[1].message:find("had before they were wrapped: 'weight'; wrap first",
        1, true), warnings[1].message)
      assert.is_nil(model.weight:grad())
    end)
  end)

  it('must be reduced before a step', function()
    ms.dist.spawn(2, function(rank)
      local model = linear('FULL_SHARD')
      local opt = optim.SGD(model:parameters(), { lr = 0.1 })
      model:no_sync(pass, model, rank, 1)
      checks.raises('RuntimeError', 'accumulated inside no_sync and is not reduced yet', opt.step,
        opt)
      checks.raises('RuntimeError', 'were accumulated inside no_sync and are not reduced yet',
        model.clip_grad_norm_, model, 1)
      pass(model, rank, 1)
      opt:step()
    end)
  end)
end)

describe('a parameter that no backward reached', function()
  local Net = nn.Module.extend('my.Net')
  function Net:init()
    self.first = nn.Linear(3, 3)
    self.pair = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
  end
  -- Uses the first n layers of the pair; default: one.
  function Net:forward(x, n)
    x = self.first(x)
    for i = 1, n or 1 do
      x = self.pair[i](x)
    end
    return x
  end

  local POLICIES = {
    function() return false end, -- all in one unit
    fsdp.ModuleWrapPolicy { nn.Linear }, -- each in its own
  }

  local function wrapped(strategy, policy)
    ms.manual_seed(2)
    local model = wrap(Net(), {
      auto_wrap_policy = policy, sharding_strategy = strategy, use_orig_params = true,
    })
    return model, optim.AdamW(model:parameters(), { lr = 0.1, weight_decay = 0.1 })
  end

  local function steps(model, opt, rank)
    for _, n in ipairs { 1, 2, 1, 0 } do
      model(ms.full({ 1, 3 }, rank + 1), n):sum():backward()
      opt:step()
      opt:zero_grad()
    end
  end

  -- run() must end with the same hash for every strategy and policy, on one rank and on two.
  local function same_for_all(run)
    for world = 1, 2 do
      ms.dist.spawn(world, function(rank)
        local expected
        for _, strategy in ipairs(STRATEGIES) do
          for _, policy in ipairs(POLICIES) do
            local model, opt = wrapped(strategy, policy)
            run(model, opt, rank)
            expected = expected or model:hash()
            assert.equal(expected, model:hash())
          end
        end
      end)
    end
  end

  it('has no gradient and is not stepped', function()
    same_for_all(function(model, opt, rank)
      local unused = model:state_dict()['pair.1.weight']:hash()
      model(ms.full({ 1, 3 }, rank + 1)):sum():backward()
      assert.is_nil(model.pair[2].weight:grad())
      opt:step()
      assert.equal(unused, model:state_dict()['pair.1.weight']:hash())
      opt:zero_grad()
      steps(model, opt, rank)
    end)
  end)

  it('on one rank counts as zero for the mean', function()
    ms.dist.spawn(2, function(rank)
      local model = wrapped('FULL_SHARD', POLICIES[1])
      local function run(n)
        model(ms.ones(1, 3), n):sum():backward()
      end
      run(rank == 1 and 2 or 1)
      local grad = model.pair[2].bias:grad() -- of a sum: ones
      assert.equal(rank == 1, grad ~= nil)
      if grad then
        checks.close({ 0.5, 0.5, 0.5 }, grad)
      end
    end)
  end)

  it('keeps a gradient that a script set', function()
    ms.dist.spawn(2, function(rank)
      for _, strategy in ipairs(STRATEGIES) do
        for _, policy in ipairs(POLICIES) do
          local model = wrapped(strategy, policy)
          local bias = model.pair[2].bias
          model:state_dict() -- after the first use parameters show shards
          if bias:numel() > 0 then
            bias:set_grad(ms.full(bias:shape(), 5))
          end
          model(ms.full({ 1, 3 }, rank + 1)):sum():backward()
          if bias:numel() > 0 then
            checks.close(5, bias:grad():mean():item())
          end
        end
      end
    end)
  end)

  it('in the last micro-batch is reduced with earlier micro-batches', function()
    same_for_all(function(model, opt, rank)
      local function run(n)
        model(ms.full({ 1, 3 }, rank + 1), n):sum():backward()
      end
      for skipped = 1, 2 do -- with one leaf to reduce, and with two
        for _ = 1, skipped do
          model:no_sync(run, 2)
        end
        run(0)
        opt:step()
        opt:zero_grad()
      end
    end)
  end)
end)

-- Frozen and trainable parameters in one unit, wholly frozen units, and trainable ones before them.
local function adapted()
  ms.manual_seed(3)
  local model = nn.Sequential {
    nn.Linear(4, 5), -- trainable
    nn.Sequential { nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5) }, -- frozen before trainable
    nn.Sequential { nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5) }, -- trainable before frozen
    nn.Sequential { nn.Linear(5, 5), nn.GELU(), nn.Linear(5, 5) }, -- frozen
    nn.Sequential { nn.Linear(5, 5), nn.GELU(), nn.Linear(5, 5) }, -- frozen
    nn.Sequential { nn.Linear(5, 5), nn.GELU(), nn.Linear(5, 5) }, -- frozen
    nn.Linear(5, 2),
  }
  for _, module in ipairs {
    model[2][1], model[3][3], model[4], model[5], model[6],
  } do
    module:requires_grad_(false)
  end
  return model
end

local function input(rank)
  return ms.arange(8):to('f32'):reshape({ 2, 4 }):mul(0.1 * (rank + 1)):sub(0.3)
end

-- The last (rank 1) or first elements of twice the expected gradient. Returns how many there are.
local function check_part(expected, grad, rank)
  local got = grad:reshape({ grad:numel() }):totable()
  local first = rank == 1 and #expected - #got or 0
  for i = 1, #got do
    checks.close(2 * expected[first + i], got[i], 1e-5)
  end
  return #got
end

local function wrapped(strategy)
  local model, units = adapted(), {}
  for i = 1, #model do
    units[model[i]] = true
  end
  return wrap(model, {
    auto_wrap_policy = fsdp.CustomPolicy(function(m) return units[m] or false end),
    sharding_strategy = strategy, use_orig_params = true,
  })
end

-- Gradients of the unsharded model by name; false for frozen parameters.
local function gradients_of_both()
  local model, out = adapted(), {}
  for rank = 0, 1 do
    model(input(rank)):sum():backward(ms.full({}, 0.5))
  end
  for name, p in model:named_parameters() do
    out[name] = p:requires_grad() and p:grad():reshape({ p:numel() }):totable() or false
  end
  return out
end

describe('backward past frozen parameters', function()
  for _, strategy in ipairs(STRATEGIES) do
    it('gives the gradients of the unsharded model, with ' .. strategy, function()
      local expected = runs.alone(gradients_of_both)
      ms.dist.spawn(2, function(rank)
        local model = wrapped(strategy)
        local arena = model:plan().arena
        for _ = 1, 2 do
          model(input(rank)):sum():backward()
        end
        assert.equal(arena, model:plan().arena) -- no unit kept its slot
        local checked, all = 0, 0
        for name, p in model:named_parameters() do
          assert.equal(p:requires_grad(), expected[name] ~= false, name)
          all = all + (expected[name] and #expected[name] or 0)
          if p:grad() then
            checked = checked + check_part(expected[name], p:grad(),
              strategy ~= 'NO_SHARD' and rank or 0)
          end
        end
        local total = ms.dist.all_reduce(ms.full({ 1 }, checked)):item()
        assert.equal(strategy == 'NO_SHARD' and 2 * all or all, total)
      end)
    end)
  end

  it('works for graphs in any order, and for unused ones', function()
    ms.dist.spawn(2, function(rank)
      local model = wrapped('FULL_SHARD')
      local arena = model:plan().arena
      local function loss()
        return model(input(rank)):sum()
      end
      loss():backward()
      local once = model:clip_grad_norm_(1e9):item()
      local a, b = loss(), loss()
      a:backward()
      local c = loss()
      b:backward()
      c:backward()
      checks.close(4 * once, model:clip_grad_norm_(1e9):item(), 1e-5)
      loss() -- a validation that forgot no_grad
      loss():backward()
      checks.close(5 * once, model:clip_grad_norm_(1e9):item(), 1e-5)
      assert.equal(arena, model:plan().arena)
    end)
  end)
end)
