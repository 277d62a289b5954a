-- Hooks inside the backward of a sharded model. One rank naps, so that results that depend on
-- timing would differ.
local ms = require 'moonshard'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim
local checks = require 'support.checks'
local wrap = require 'support.wrap'

local STRATEGIES = { 'FULL_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD' }

local function nap()
  local till = ms.time() + 0.01
  while ms.time() < till do
  end
end

-- Three units. `on_backward(i)` runs when the gradient reaches the output of unit i.
local function model_of(strategy, on_backward, prefetch)
  ms.manual_seed(1)
  local layers = nn.Sequential { nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2) }
  if on_backward then
    for i = 1, 3 do
      layers[i]:register_forward_hook(function(_, _, out)
        if out:requires_grad() then
          out:hook(function() on_backward(i) end)
        end
      end)
    end
  end
  if not strategy then
    return layers
  end
  local model = wrap(layers, {
    auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Linear }, use_orig_params = true,
    sharding_strategy = strategy, backward_prefetch = prefetch,
  })
  return model
end

local function backward(model, late)
  local loss = model(ms.ones(2, 4)):sum()
  if late then
    nap()
  end
  loss:backward()
end

local function gradients(model)
  local out = {}
  for name, p in model:named_parameters() do
    local grad = p:grad()
    out[name] = grad and grad:totable() or 'none'
  end
  return out
end

-- On two ranks, of which one and then the other is late.
local function with_a_late_rank(fn)
  for late = 0, 1 do
    ms.dist.spawn(2, function(rank)
      fn(rank == late, rank)
    end)
  end
end

describe('hooks inside the backward of a sharded model', function()
  for _, strategy in ipairs(STRATEGIES) do
    it('may not step, drop or scale gradients, with ' .. strategy, function()
      with_a_late_rank(function(late)
        local model, opt, act
        model = model_of(strategy, function() act() end)
        opt = optim.SGD(model:parameters(), { lr = 0.1 })
        for name, call in pairs { -- in any order
          step = function() opt:step() end,
          zero_grad = function() opt:zero_grad() end,
          clip_grad_norm_ = function() model:clip_grad_norm_(1) end,
          set_grad = function() model[3].weight:set_grad(nil) end,
          set_gradient_factor = function() model:set_gradient_factor(10) end,
        } do
          act = function()
            checks.raises('AssertionError', name .. ' during backward, when the gradients of unit ',
              call)
          end
          backward(model, late)
        end
        act = function() end
        opt:zero_grad()
        backward(model, late)
        model:clip_grad_norm_(1) -- ranks still agree
        opt:step()
      end)
    end)

    it('may not begin no_sync, with ' .. strategy, function()
      ms.dist.spawn(2, function(rank)
        local norms = {}
        for _, tries in ipairs { false, true } do
          local model
          local function begin()
            checks.raises('AssertionError', 'gradients cannot change during backward',
              model.no_sync, model, function() end)
          end
          model = model_of(strategy, tries and begin or function() end)
          for step = 1, 3 do
            if step == 2 then
              model:no_sync(function() end)
            end
            model(ms.full({ 2, 4 }, rank + step)):sum():backward()
            norms[step] = norms[step] or model:clip_grad_norm_(1e9):item()
            assert.equal(norms[step], model:clip_grad_norm_(1e9):item())
            model:zero_grad()
          end
        end
      end)
    end)

    it('may freeze parameters for the next backward, with ' .. strategy, function()
      with_a_late_rank(function(late)
        local model, freezes
        model = model_of(strategy, function(i)
          if freezes and i == 1 then
            for _, p in model:named_parameters() do
              p:requires_grad_(false)
            end
          end
        end)
        backward(model)
        local expected = gradients(model)
        model:zero_grad()
        freezes = true
        backward(model, late)
        assert.same(expected, gradients(model))
      end)
    end)

    it('may run forwards, with ' .. strategy, function()
      for _, prefetch in ipairs { 'BACKWARD_PRE', 'BACKWARD_POST' } do
        ms.dist.spawn(2, function()
          local model, again
          model = model_of(strategy, function() again() end, prefetch)
          again = function() end
          backward(model)
          local expected = gradients(model)
          model:zero_grad()
          again = function()
            ms.no_grad(model, ms.ones(3, 4))
            model[3](ms.ones(3, 4))
          end
          backward(model)
          assert.same(expected, gradients(model))
        end)
      end
    end)

    it('run once per parameter after the reduction, with ' .. strategy, function()
      with_a_late_rank(function(late)
        local model, calls, seen = model_of(strategy), {}, {}
        for name, p in model:named_parameters() do
          p:accumulate_hook(function(leaf)
            local grad = leaf:grad()
            calls[#calls + 1], seen[name] = name, grad and grad:totable() or 'none'
          end)
        end
        model:no_sync(backward, model, late)
        assert.same({}, calls) -- not reduced yet
        backward(model, late)
        assert.same(gradients(model), seen)
        assert.same({ '0.weight', '0.bias', '1.weight', '1.bias', '2.weight', '2.bias' }, calls)
      end)
    end)

    it('may step each parameter on its own, with ' .. strategy, function()
      with_a_late_rank(function(late)
        local plain, model = model_of(), model_of(strategy)
        local opt = optim.SGD(plain:parameters(), { lr = 0.1, momentum = 0.9 })
        for _, p in model:named_parameters() do
          local own = optim.SGD({ p }, { lr = 0.1, momentum = 0.9 })
          p:accumulate_hook(function()
            own:step()
            own:zero_grad()
          end)
        end
        for _ = 1, 3 do
          backward(plain)
          opt:step()
          opt:zero_grad()
          backward(model, late) -- both ranks the same: their mean is exact
        end
        local sd = model:state_dict()
        for name, p in plain:named_parameters() do
          assert.same(p:totable(), sd[name]:totable())
        end
      end)
    end)
  end

  it('run on all ranks for gradients of one rank', function()
    ms.dist.spawn(2, function(rank)
      ms.manual_seed(1)
      local layers = nn.Sequential { nn.Linear(4, 4), nn.Linear(4, 4) }
      function layers:forward(x)
        return rank == 0 and self[2](self[1](x)) or self[1](x)
      end
      local model, calls = fsdp.FSDP(layers, { use_orig_params = true }), {}
      for name, p in model:named_parameters() do
        p:accumulate_hook(function() calls[#calls + 1] = name end)
      end
      backward(model)
      assert.same({ '0.weight', '0.bias', '1.weight', '1.bias' }, calls)
    end)
  end)

  it('that catch a failed forward end the backward', function()
    ms.dist.spawn(2, function()
      local model
      model = model_of('FULL_SHARD', function(i)
        assert.equal(i ~= 1, (pcall(model, ms.ones(3, i == 1 and 5 or 4))))
      end)
      checks.raises('RuntimeError', "the gradients of unit '0' were given up when a forward inside "
        .. 'this backward failed', backward, model)
    end)
  end)

  it('that fail drop the gradients of that backward', function()
    ms.dist.spawn(2, function()
      local model, fails = model_of 'FULL_SHARD', true
      model[3].bias:accumulate_hook(function()
        assert(not fails, 'an odd end')
      end)
      assert.truthy(tostring(select(2, pcall(backward, model))):find('an odd end', 1, true))
      for _, grad in pairs(gradients(model)) do -- any order
        assert.equal('none', grad)
      end
      fails = false
      backward(model)
      model:clip_grad_norm_(1)
    end)
  end)

  it('may step parameters that no unit holds', function()
    ms.dist.spawn(2, function()
      local model, opt
      local other = nn.Linear(4, 4):materialize()
      model = model_of('FULL_SHARD', function()
        opt:step()
        opt:zero_grad()
      end)
      opt = optim.SGD(other:parameters(), { lr = 0.1 })
      local before = other.weight:totable()
      model(other(ms.ones(2, 4))):sum():backward() -- reaches the hook before the other layer
      assert.same(before, other.weight:totable())
      backward(model)
      assert.not_same(before, other.weight:totable())
    end)
  end)
end)
