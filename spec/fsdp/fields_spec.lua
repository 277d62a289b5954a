-- Assignments to fields of a wrapped model are refused where units would not see them.
local ms = require 'moonshard'
local nn, fsdp = ms.nn, ms.fsdp
local checks = require 'support.checks'

local Net = nn.Module.extend('my.Net')
function Net:init()
  self.body = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
  self.head = nn.Linear(2, 2)
end
function Net:forward(x) return self.head(self.body(x)) end

local POLICIES = {
  { 'alone', fsdp.ModuleWrapPolicy { nn.Linear } }, -- the root has no unit
  { 'with its parent', function() return false end },
}

local function wrapped(policy)
  return fsdp.FSDP(Net(), { auto_wrap_policy = policy, use_orig_params = true })
end

-- Calls that check the fields.
local USES = {
  function(model) model(ms.ones(1, 2)) end,
  function(model) model:parameters() end,
  function(model) model:state_dict() end,
  function(model) fsdp.summon_full_params(model, nil, function() end) end,
}

describe('a field of a wrapped model', function()
  for _, case in ipairs(POLICIES) do
    local how, policy = unpack(case)

    it(('whose module is in a unit %s cannot be replaced after the first use')
      :format(how), function()
      local model = wrapped(policy)
      local y = model(ms.ones(1, 2)):hash()
      local old = model.head
      for _, change in ipairs {
        { nn.Linear(2, 2), 'replaced by a nn.Linear' }, { nil, 'set to nil' },
        { 3, 'replaced by a number' },
      } do
        for _, use in ipairs(USES) do
          model.head = change[1]
          checks.raises('RuntimeError', "child 'head' of my.Net was " .. change[2] .. ' after FSDP '
            .. 'had made its units, which hold the parameters of the old one; the field shows that '
            .. 'again', use, model)
          assert.equal(old, model.head)
          assert.equal(y, model(ms.ones(1, 2)):hash())
        end
      end
    end)

    it(('whose parameter is in a unit %s is written back or cannot be removed')
      :format(how), function()
      local model = wrapped(policy)
      local y = model(ms.ones(1, 2)):hash()
      for _, change in ipairs { { nil, 'set to nil' }, { 3, 'replaced by a number' } } do
        for _, use in ipairs(USES) do
          model.head.weight = change[1]
          checks.raises('RuntimeError', "parameter 'head.weight' of head (nn.Linear) was "
            .. change[2] .. ' after FSDP took it into a unit, which would never see that; the '
            .. 'field shows the parameter again', use, model)
          assert.equal(y, model(ms.ones(1, 2)):hash())
        end
      end
      local weight = model.head.weight
      ms.no_grad(model, ms.ones(1, 2)) -- shows the shard from here on
      model.head.weight = ms.ones(3)
      checks.raises('RuntimeError', "Cannot writeback when the parameter shape changes: "
        .. "'head.weight' of head (nn.Linear) has shape (4), the tensor that replaced it (3)",
        model.parameters, model)
      model.head.weight = ms.ones(4)
      model:parameters()
      assert.equal(weight, model.head.weight)
      checks.close({ { 1, 1 }, { 1, 1 } }, model:state_dict()['head.weight'])
    end)
  end

  it('refuses a plain tensor for a parameter before the first use, too', function()
    local model = wrapped()
    model.head.weight = ms.ones(2, 2)
    local text = "parameter 'head.weight' of head (nn.Linear) was replaced by a tensor (2, 2) "
      .. 'after FSDP wrapped the model; the field shows the parameter again. Write into it '
      .. 'instead: fsdp.summon_full_params('
    checks.raises('RuntimeError', text, model.parameters, model)
    assert.equal(4, #model:parameters())
  end)

  it('can be replaced or tied before the first use', function()
    local model = wrapped()
    model.head = nn.Linear(2, 3)
    model.head = nil
    model.head = nn.Linear(2, 2)
    model.head.weight = model.body[1].weight
    model.head.bias = nil
    model.note = 'mine'
    assert.equal('mine', model.module.note)
    assert.same({ 1, 2 }, model(ms.ones(1, 2)):shape())
    assert.equal(6, model:units()[1].numel)
    assert.same({ { name = 'body.0.weight', places = { 'body.0.weight', 'head.weight' } } },
      model:units()[1].shared)
  end)

  describe('that is a wrapped list', function()
    local Listed = nn.Module.extend('my.Listed')
    function Listed:init() self.blocks = nn.ModuleList { nn.Linear(2, 2), nn.Linear(2, 2) } end
    function Listed:forward(x)
      assert.equal(2, #self.blocks)
      for _, block in ipairs(self.blocks) do
        x = block(x)
      end
      return x
    end

    local function listed(policy, strategy)
      ms.manual_seed(1)
      return fsdp.FSDP(Listed(), {
        auto_wrap_policy = policy, sharding_strategy = strategy or 'NO_SHARD',
      })
    end
    local function lists(module) return ms.is(module, nn.ModuleList) end
    local x = ms.ones(1, 2)

    it('can be iterated and counted', function()
      local y = listed(function() return false end)(x)
      for _, policy in ipairs { fsdp.always_wrap_policy, fsdp.CustomPolicy(lists),
        fsdp.ModuleWrapPolicy { nn.Linear } } do
        assert.equal(y:hash(), listed(policy)(x):hash())
      end
      local twice = fsdp.FSDP(fsdp.FSDP(nn.Sequential(nn.Linear(2, 2), nn.Tanh())))
      local found = {}
      for i, module in ipairs(twice) do
        found[i] = module
      end
      assert.same({ twice.module[1], twice.module.module[2] }, found)
    end)

    it('can be changed before the first use', function()
      for _, of in ipairs { function(list) return list end,
        function(list) return list.module end } do
        local model = listed(fsdp.always_wrap_policy)
        local list = of(model.blocks)
        local a, b, c = nn.Tanh(), nn.GELU(), nn.ReLU()
        list[1] = a
        list[2] = nil
        assert.equal('blocks.0', model:named_modules()[5].path)
        assert.equal(a, model.blocks[1])
        assert.equal(a, model.blocks.module[1])
        assert.equal(1, #model.blocks)
        list[2] = b
        assert.equal(b, model.blocks[2])
        assert.equal(b, model.blocks.module[2])
        list:append(c)
        assert.equal(3, #model.blocks)
        assert.equal(c, model.blocks.module[3])
        assert.equal('blocks.2', c:path())
      end
    end)

    it('cannot be changed after the first use', function()
      for _, of in ipairs { function(list) return list end,
        function(list) return list.module end } do
        local model = listed(fsdp.always_wrap_policy)
        local y = model(x):hash()
        local old, list = model.blocks[2], of(model.blocks)
        for _, change in ipairs { { nn.Linear(2, 2) }, { nil } } do
          list[2] = change[1]
          checks.raises('RuntimeError', "child 'blocks.1' of blocks (nn.ModuleList) was ", model, x)
          assert.equal(old, model.blocks[2])
          assert.equal(old, model.blocks.module[2])
          assert.equal(y, model(x):hash())
        end
      end
    end)
  end)

  it('cannot be added after the first use', function()
    local model = wrapped(POLICIES[1][2])
    model(ms.ones(1, 2))
    checks.raises('RuntimeError', "child '2' of nn.Sequential is new, but FSDP has made its units",
      function() model.body[3] = nn.Linear(2, 2) end)
    checks.raises('RuntimeError', "child 'extra' of my.Net is new", function()
      model.extra = nn.Linear(2, 2)
    end)
    checks.raises('RuntimeError', "parameter 'extra' of nn.Linear is new", function()
      model.head.module:param('extra', { 2 })
    end)
    checks.raises('RuntimeError', "child 'head' of my.Net is new, but FSDP has made its units",
      function() model.module:set_child('head', nn.Linear(2, 2)) end)
    checks.raises('RuntimeError', "child 'extra' of fsdp.FSDP is new",
      function() model:child('extra', nn.Linear(2, 2)) end)
    checks.raises('RuntimeError', "child '_fsdp_wrapped_module' of fsdp.FSDP is new",
      function() model:set_child('_fsdp_wrapped_module', nn.Linear(2, 2)) end)
    checks.raises('KeyError', 'cannot be replaced', function() model.head.module = nil end)
    model.head = nil
    checks.raises('RuntimeError', "child 'head' of my.Net is new", function()
      model.head = nn.Linear(2, 2)
    end)
  end)
end)
