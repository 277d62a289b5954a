-- Flat parameters, which parameters() shows with use_orig_params = false.
local ms = require 'moonshard'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim
local checks = require 'support.checks'
local wrap = require 'support.wrap'

-- Two units of 15 and 9 elements; the second rank has one padding element of each.
local function model(opts)
  ms.manual_seed(3)
  opts.auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Linear }
  local module = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3, { bias = false }))
  return wrap(module:materialize(), opts)
end

describe('a flat parameter', function()
  it('stands for the parameters of its unit, in order of the instances', function()
    ms.dist.spawn(2, function()
      local m = model {}
      local names, sizes = {}, {}
      for name, p in m:named_parameters() do
        names[#names + 1], sizes[#sizes + 1] = name, p:numel()
      end
      assert.same({ '0._flat_param', '2._flat_param' }, names)
      assert.same({ 8, 5 }, sizes)
      assert.same({ '0.weight', '0.bias', '2.weight' }, { unpack(m:state_dict()) })
      fsdp.summon_full_params(m, nil, function()
        assert.equal('0.weight', m:named_parameters()[1].name)
      end)
    end)
  end)

  it('shows the values and gradients that the original parameters have', function()
    for _, strategy in ipairs { 'FULL_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD' } do
      ms.dist.spawn(2, function(rank)
        local hashes = {}
        for _, use_orig_params in ipairs { true, false } do
          local m = model { sharding_strategy = strategy, use_orig_params = use_orig_params }
          local opt = optim.SGD(m:parameters(), { lr = 0.1, momentum = 0.9 })
          for _ = 1, 2 do
            opt:zero_grad()
            m(ms.ones(2, 4) * (rank + 1)):sum():backward()
            for p in m:parameters() do
              local g = p:grad() or ms.zeros(0) -- of original parameters this rank may have none
              g:mul_(0.5) -- writes reach what the optimizer reads
            end
            opt:step()
          end
          ms.no_grad(function()
            for p in m:parameters() do
              p:mul_(2)
            end
          end)
          hashes[#hashes + 1] = m:hash()
        end
        assert.equal(hashes[1], hashes[2])
      end)
    end
  end)

  it('takes no hooks, which the original parameters do', function()
    ms.dist.spawn(2, function()
      local m, n = model {}, 0
      local p = m:parameters()[1]
      for _, name in ipairs { 'hook', 'accumulate_hook' } do
        checks.raises('NotImplementedError', 'hooks of flat parameters', p[name], p, print)
        m.module[1].weight[name](m.module[1].weight, function() n = n + 1 end)
      end
      m(ms.ones(1, 4)):sum():backward()
      assert.equal(2, n)
    end)
  end)

  it('takes a gradient, drops it and is frozen as the original parameters are', function()
    ms.dist.spawn(2, function()
      local m = model {}
      local p = m:parameters()[1]
      local weight, bias = m.module[1].weight, m.module[1].bias
      p:set_grad(ms.arange(8):to 'f32')
      checks.close(ms.arange(weight:numel()):totable(), weight:grad())
      checks.close(ms.arange(7):totable(), p:grad():narrow(1, 1, 7)) -- rank 1 has a padding
      p:set_grad(nil)
      assert.is_nil(weight:grad())
      assert.is_nil(p:grad())
      p:requires_grad_(false)
      assert.is_false(bias:requires_grad())
      checks.raises('ValueError', 'has shape (3), expected (8)', p.set_grad, p, ms.ones(3))
    end)
  end)
end)
