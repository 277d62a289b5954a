-- First values of sharded models: from rank 0, or by a function of the script; and what explain()
-- and register_forward_method() do with a model.
local ms = require 'moonshard'
local nn, fsdp = ms.nn, ms.fsdp
local checks = require 'support.checks'
local wrap = require 'support.wrap'

local Net = nn.Module.extend 'my.Net'

function Net:init()
  self.a = nn.Linear(4, 3)
  self.b = nn.Linear(3, 2, { bias = false })
  self:buffer('shift', ms.zeros(1))
end

function Net:forward(x) return self.b(self.a(x)) + self.shift end

function Net:encode(x) return self.a(x) + x:sum() * 0 end

describe('a sharded model', function()
  it('takes the parameters and buffers of rank 0', function()
    ms.manual_seed(7)
    local expected = Net():materialize():hash()
    ms.dist.spawn(2, function(rank)
      ms.manual_seed(7 + rank)
      local module = Net():materialize()
      ms.no_grad(module.shift.fill_, module.shift, rank + 5)
      local model = wrap(module, { sync_module_states = true,
        auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Linear } })
      assert.equal(expected, model:hash())
      assert.equal(5, model.shift:item())
    end)
  end)

  it('has the values that param_init_fn gives, shard by shard', function()
    local function init(m)
      if ms.is(m, nn.Linear) then
        nn.init.kaiming_normal_(m.weight)
        if m.bias then nn.init.constant_(m.bias, 3) end
      end
    end
    ms.manual_seed(7)
    local plain = Net()
    init(plain.a)
    init(plain.b)
    local expected = plain:hash()
    ms.dist.spawn(2, function()
      for _, policy in ipairs { fsdp.ModuleWrapPolicy { nn.Linear }, fsdp.always_wrap_policy } do
        ms.manual_seed(7)
        local model = wrap(Net(), { param_init_fn = init, auto_wrap_policy = policy })
        assert.equal(expected, model:hash())
      end
      checks.raises('ValueError', 'to be callable', fsdp.FSDP, Net(), { param_init_fn = 42 })
    end)
  end)

  it('passes whole parameters to param_init_fn, a tied one once', function()
    local function init(m)
      for _, p in ipairs(m:parameters(false)) do
        nn.init.eye_(p)
        p:detach():add_(p:detach())
      end
    end
    ms.dist.spawn(2, function()
      for n = 0, 7 do
        local module = nn.Sequential(nn.Linear(3, 3, { bias = false }),
          nn.Linear(3, 3, { bias = false }))
        module[2].weight = module[1].weight
        local model = wrap(module, { param_init_fn = init, use_orig_params = n % 4 > 1,
          sync_module_states = n > 3,
          auto_wrap_policy = n % 2 == 1 and fsdp.ModuleWrapPolicy { nn.Linear } or nil })
        local state = model:state_dict()
        for _, name in ipairs(state) do
          checks.close({ 2, 0, 0, 0, 2, 0, 0, 0, 2 }, state[name])
        end
      end
    end)
  end)

  it('calls param_init_fn again where it failed', function()
    ms.dist.spawn(2, function()
      local calls = 0
      local function init(m)
        calls = calls + 1
        assert(calls ~= 2, 'out of luck')
        nn.init.constant_(m.weight, 7)
        nn.init.zeros_(m.bias)
      end
      local model = wrap(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), { param_init_fn = init })
      assert.is_false((pcall(model, ms.ones(1, 2))))
      assert.equal(14 * 14, model(ms.ones(1, 2))[1][1]:item())
      assert.equal(3, calls)
    end)
  end)

  it('is explained', function()
    ms.dist.spawn(2, function()
      local module = Net()
      module.b:requires_grad_(false)
      local model = wrap(module, { auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Linear },
        mixed_precision = { param_dtype = 'bf16', reduce_dtype = 'f32' } })
      local lines = {}
      for line in fsdp.explain(model):gmatch '[^\n]+' do
        lines[#lines + 1] = line
      end
      assert.same({
        'the root (my.Net): no parameters of its own [by hand]',
        'a (nn.Linear): FULL_SHARD, 2 parameters, 15 elements, 32 bytes a rank, f32, computes in '
          .. 'bf16, reduces in f32 [chosen by ModuleWrapPolicy{nn.Linear}]',
        'b (nn.Linear): FULL_SHARD, 1 parameter, 1 of them frozen, 6 elements, 12 bytes a rank, '
          .. 'f32, computes in bf16, reduces in f32 [chosen by ModuleWrapPolicy{nn.Linear}]',
      }, lines)
    end)
  end)

  it('runs a method as a forward', function()
    ms.manual_seed(7)
    local module, x = Net():materialize(), ms.ones(2, 4)
    local expected = module:encode(x):hash()
    ms.dist.spawn(2, function()
      ms.manual_seed(7)
      for _, shard in ipairs { wrap, fsdp.composable } do
        local model = shard(Net(), {})
        fsdp.register_forward_method(model, 'encode')
        local y = model:encode(x)
        assert.equal(expected, y:hash())
        y:sum():backward()
        ms.manual_seed(7)
      end
      checks.raises('ValueError', "has no method 'decode'", fsdp.register_forward_method,
        wrap(Net(), {}), 'decode')
    end)
  end)
end)
