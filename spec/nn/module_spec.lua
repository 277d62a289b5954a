-- lua/moonshard/nn/{module,tree}.lua: children, buffers, names, calls, hooks, printing
local ms = require 'moonshard'
local nn = ms.nn
local checks = require 'support.checks'

local function names(module, ...)
  local out = {}
  for name in module:named_parameters(...) do
    out[#out + 1] = name
  end
  return out
end

local function paths(module)
  local out = {}
  for path in module:named_modules() do
    out[#out + 1] = path
  end
  return out
end

describe('nn.Module', function()
  teardown(function()
    assert.equal(0, checks.live_handles())
  end)

  it('declares parameters without memory, in order', function()
    local before = ms.memory().live_total
    local layer = nn.Linear(300, 200)
    assert.same({ 'weight', 'bias' }, names(layer))
    assert.equal(before, ms.memory().live_total)
    layer:materialize()
    assert.is_true(ms.memory().live.parameter >= 4 * (300 * 200 + 200))
  end)

  it('refuses names that are taken or are no names', function()
    local layer = nn.Linear(3, 2)
    for _, case in ipairs {
      { 'KeyError', "parameter 'weight' is already declared", layer.param, 'weight', { 1 } },
      { 'KeyError', "buffer 'bias' is already declared", layer.buffer, 'bias', ms.zeros(1) },
      { 'KeyError', "attribute 'forward' already exists in nn.Linear", layer.child, 'forward',
        nn.ReLU() },
      { 'KeyError', "child name 'a.b' contains a dot", layer.child, 'a.b', nn.ReLU() },
      { 'KeyError', "buffer name '' is empty", layer.buffer, '', ms.ones(1) },
      { 'TypeError', "parameter: 'name' is a number, expected a string", layer.param, 3, { 2 } },
      { 'TypeError', "child 'x' of nn.Linear is a number, expected a module", layer.child, 'x', 3 },
    } do
      checks.raises(case[1], case[2], case[3], layer, unpack(case, 4))
    end
  end)

  describe('a new field', function()
    it('registers modules in order of assignment', function()
      local Net = nn.Module.extend('my.Net')
      function Net:init()
        self.z = nn.Linear(2, 2)
        self:param('scale', { 2 })
        self.a = nn.Sequential(nn.Linear(2, 1))
        self:child('m', nn.ReLU())
        self.b = nn.Linear(1, 1)
      end
      function Net:forward(x) return self.b(self.m(self.a(self.z(x) * self.scale))) end
      local net = Net()
      assert.same({ '', 'z', 'a', 'a.0', 'm', 'b' }, paths(net))
      assert.same({ 'scale', 'z.weight', 'z.bias', 'a.0.weight', 'a.0.bias', 'b.weight', 'b.bias' },
        names(net))
      assert.equal('a.0', net.a[1]:path())
      net(ms.ones(1, 2)):sum():backward()
      assert.truthy(net.b.weight:grad())
    end)

    it('appends to a list at the next index only', function()
      local list = nn.ModuleList()
      list[1] = nn.ReLU()
      list[2] = nn.Tanh()
      assert.same({ '', '0', '1' }, paths(list))
      checks.raises('IndexError', 'entry 4 of nn.ModuleList, the next is 3', function()
        list[4] = nn.ReLU()
      end)
    end)

    it('ties a parameter of another module', function()
      local a, b = nn.Linear(2, 2), nn.Linear(2, 2, { bias = false })
      b.bias = a.bias
      local model = nn.Sequential(a, b)
      assert.same({ '0.weight', '0.bias', '1.weight' }, names(model))
      assert.equal(4 + 2 + 4, model:num_parameters())
      assert.equal(3, #model:parameters())
    end)

    it('registers no other value', function()
      local m = nn.Module()
      m.size, m.note, m.table, m.cache = 3, 'x', { 1, { 2 } }, ms.ones(2)
      assert.same({ '' }, paths(m))
      assert.same({}, names(m))
      assert.same({ 1, { 2 } }, m.table)
    end)

    it('refuses a plain table of modules', function()
      local function set(value)
        local Net = nn.Module.extend('my.Net')
        function Net:init() self.layers = value end
        return Net
      end
      local text = "field 'layers' of my.Net is a plain table of modules, which registers none of "
        .. 'them: write self.layers = nn.ModuleList { ... }'
      checks.raises('TypeError', text, set { nn.ReLU() })
      checks.raises('TypeError', text, set { deep = { nn.ReLU() } })
      local later = set({})()
      later.layers[1] = nn.Linear(1, 1)
      checks.raises('TypeError', text, later.parameters, later)
      checks.raises('TypeError', text, later, ms.ones(1, 1))
    end)

    it('refuses a module where it held another value', function()
      local m = nn.Module()
      m.act = false
      m.act = nn.ReLU()
      checks.raises('TypeError', "field 'act' of nn.Module became a module after it had held "
        .. 'another value', m.parameters, m)
      m.act = nil
      m.act = nn.ReLU()
      assert.same({ '', 'act' }, paths(m))
    end)

    it('removes what is set to nil', function()
      local model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.ReLU())
      model[1].bias = nil
      model[2] = nil
      model:buffer('count', ms.zeros(1))
      model.count = nil
      assert.same({ '0.weight' }, names(model))
      assert.same({ '', '0', '2' }, paths(model))
      assert.same({ '0.weight' }, { unpack(model:state_dict()) })
      assert.same({ 1, 2 }, model(ms.ones(1, 2)):shape())
    end)

    it('refuses requires_grad and a training mode that is no boolean', function()
      local model = nn.Sequential(nn.Dropout(0.5))
      checks.raises('TypeError', "nn.Sequential has no field 'requires_grad': write "
        .. 'module:requires_grad_(false)', function() model.requires_grad = false end)
      model:train()
      model[1].training = 0
      checks.raises('TypeError', "'training' is a number, expected true or false", model,
        ms.ones(1, 2))
    end)

    it('refuses another kind of value where something is declared', function()
      local layer = nn.Linear(2, 2)
      layer.weight = 3
      checks.raises('TypeError', "parameter 'weight' of nn.Linear is now a number, expected a "
        .. 'tensor', layer.parameters, layer)
      local model = nn.Sequential(nn.ReLU())
      model[1] = print
      checks.raises('TypeError', "child '0' of nn.Sequential is now a function, expected a module",
        model, ms.ones(1))
    end)
  end)

  it('refuses cycles', function()
    local m = nn.Sequential(nn.Sequential(nn.Sequential()))
    checks.raises('ValueError', "child 'x' of nn.Sequential is or contains that module", m.child, m,
      'x', m)
    checks.raises('ValueError', 'a tree has no cycles', function() m[1][1].up = m end)
    m[1] = m
    checks.raises('ValueError', 'a tree has no cycles', m.parameters, m)
    m[1] = nn.ReLU()
    assert.equal(2, #m:modules())
  end)

  it('has no values before it is materialized', function()
    local model = nn.Sequential(nn.Linear(2, 2))
    checks.raises('RuntimeError', "parameter 'weight' has no values yet: call its module's "
      .. 'materialize()', function()
      ms.no_grad(model[1].weight.fill_, model[1].weight, 1)
    end)
    model:parameters()
    checks.raises('RuntimeError', "parameter '0.weight' has no values yet", function()
      return model[1].weight:totable()
    end)
    model:materialize()
    assert.same({ 2, 2 }, model[1].weight:shape())
  end)

  describe('walks', function()
    local function pair()
      local inner = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
      return nn.Sequential(nn.Linear(2, 2), inner), inner
    end

    it('modules and parameters by path, parents first', function()
      local model = pair()
      assert.same({ '', '0', '1', '1.0', '1.1' }, paths(model))
      assert.same({ '0.weight', '0.bias', '1.0.weight', '1.0.bias' }, names(model))
      assert.same({}, names(model, false))
      assert.same({ 'weight', 'bias' }, names(model[1], false))
      local list = nn.Linear(3, 2):named_parameters()
      assert.same({ 'weight', { 2, 3 }, 2 }, { list[1].name, list[1].shape, #list })
    end)

    it('a module that stands in two places once', function()
      local shared = nn.Linear(2, 2)
      local model = nn.Sequential(shared, shared)
      assert.equal(2, #model:modules())
      assert.same({ '0.weight', '0.bias' }, names(model))
      assert.same({ '0.weight', '0.bias', '1.weight', '1.bias' }, names(model, true, false))
    end)

    it('lists in a for loop, again and again', function()
      local model = pair()
      for _, list in ipairs { model:parameters(), model:modules(), model:named_parameters() } do
        list() -- a loop that was left early
        for _ = 1, 2 do
          local n = 0
          for _ in list do
            n = n + 1
          end
          assert.equal(#list, n)
        end
      end
    end)

    it('finds a submodule by path', function()
      local model, inner = pair()
      assert.equal(inner, model:get_submodule('1'))
      assert.equal('1.0', inner[1]:path())
      checks.raises('KeyError', "nn.Sequential has no submodule '7'", model.get_submodule, model,
        '7')
    end)

    it('finds and lists parameters and buffers by path', function()
      local model, norm = nn.Sequential(nn.Linear(2, 2)), nn.BatchNorm1d(2)
      model:append(norm):append(norm)
      model:register_buffer('again', norm.running_mean)
      assert.equal(norm.bias, model:get_parameter('2.bias'))
      assert.equal(norm.running_var, model:get_buffer('1.running_var'))
      checks.raises('KeyError', "no parameter '0.running_var'", model.get_parameter, model,
        '0.running_var')
      checks.raises('KeyError', "no buffer '0.bias'", model.get_buffer, model, '0.bias')
      assert.equal(3, #model:buffers())
      assert.equal(1, #model:buffers(false))
      assert.equal('again', model:named_buffers()[1].name)
      assert.equal(7, #model:named_buffers(true, false))
    end)

    it('replaces a submodule by path', function()
      local model, inner = pair()
      local act = nn.Tanh()
      model:set_submodule('1.0', act)
      assert.equal(act, inner[1])
      checks.raises('KeyError', "has no child '9'", model.set_submodule, model, '1.9', act)
    end)

    it('declares by the names of PyTorch', function()
      local model = nn.Module.extend('Registered')()
      model:register_parameter('w', ms.ones(2))
      model:register_parameter('bias', nil)
      model:register_buffer('b', ms.zeros(1), { persistent = false })
      model:add_module('fc', nn.Linear(2, 1, { bias = false }))
      assert.same({ 'w', 'fc.weight' }, { unpack(model:state_dict()) })
      assert.is_true(model.w:requires_grad())
      checks.raises('TypeError', "register_parameter: 'tensor' is a number, expected a tensor",
        model.register_parameter, model, 'v', 1)
    end)

    it('children first in apply', function()
      local order = {}
      nn.Sequential(nn.ReLU(), nn.Sequential(nn.Tanh())):apply(function(m)
        order[#order + 1] = m._name
      end)
      assert.same({ 'nn.ReLU', 'nn.Tanh', 'nn.Sequential', 'nn.Sequential' }, order)
    end)
  end)

  describe('initial values', function()
    it('depend on the path from the outermost module, not on the module that is asked', function()
      local function values(ask)
        ms.manual_seed(7)
        local inner = nn.Linear(4, 4)
        local model = nn.Sequential(nn.Sequential(inner))
        ask(model, inner)
        return inner.weight:hash()
      end
      local from_root = values(function(model) model:materialize() end)
      local from_inside = values(function(_, inner) inner:materialize() end)
      local by_call = values(function(_, inner) inner(ms.ones(1, 4)) end)
      assert.equal(from_root, from_inside)
      assert.equal(from_root, by_call)
    end)

    it('differ between models and repeat after the same seed', function()
      local function three()
        ms.manual_seed(7)
        local first, second = nn.Linear(4, 4), nn.Linear(4, 4)
        local third = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 4))
        return third:materialize()[2].weight:hash(), second:materialize().weight:hash(),
          first:materialize().weight:hash()
      end
      local c, b, a = three()
      assert.is_true(a ~= b and b ~= c and a ~= c)
      assert.same({ c, b, a }, { three() })
    end)

    it('differ for another seed or path', function()
      local function weights(seed)
        ms.manual_seed(seed)
        local model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)):materialize()
        return model[1].weight:hash(), model[2].weight:hash()
      end
      local a, b = weights(1)
      assert.not_equal(a, b)
      assert.not_equal(a, (weights(2)))
      assert.equal(a, (weights(1)))
    end)
  end)

  describe('a call', function()
    it('releases tensors made inside, and names the module', function()
      local leaked
      local Leaky = nn.Module.extend('Leaky')
      function Leaky:forward(x)
        leaked = x + 1
        return leaked * 2
      end
      local model = nn.Sequential(Leaky())
      checks.close({ 4, 4 }, model(ms.ones(2)))
      checks.raises('RuntimeError', 'was released at the end of 0', function()
        leaked:item()
      end)
    end)

    it('needs a forward, which a script may replace', function()
      checks.raises('NotImplementedError', 'nn.ModuleList has no forward', nn.ModuleList(),
        ms.ones(1))
      local layer = nn.Linear(1, 1)
      checks.raises('TypeError', "nn.Linear: 'forward' is a number, expected a function", function()
        layer.forward = 3
      end)
      layer.forward = function(_, x) return x * 2 end
      checks.close({ 2 }, layer(ms.ones(1)))
      layer.forward = nil
      assert.same({ 1 }, layer(ms.ones(1)):shape())
    end)

    describe('that fails', function()
      local Attn = nn.Module.extend('my.Attn')
      function Attn:init(fail) self.fail = fail end
      function Attn:forward(x) return self.fail(x) end

      local function raised_by(fail)
        local _, err = pcall(nn.Sequential(nn.Sequential(Attn(fail))), ms.ones(1))
        return err
      end

      it('names the module once, with the stack of the script', function()
        local line = debug.getinfo(1, 'l').currentline + 1
        local function broken(x) local y = x:reshape(7) return y end
        local err = raised_by(function(x) local y = broken(x) return y end)
        assert.equal('ValueError', err.kind)
        local _, n = err.message:gsub('in forward of', '')
        assert.equal(1, n)
        assert.truthy(err.message:find('%(in forward of 0%.0 %(my%.Attn%), [^()]*module_spec%.lua:'
          .. line .. '%)$'), err.message)
        assert.truthy(err.traceback:find('module_spec.lua:' .. line, 1, true), err.traceback)
        assert.truthy(err.traceback:find('module_spec.lua:' .. line + 1, 1, true), err.traceback)
      end)

      it('names the module for errors of Lua, too', function()
        local err = raised_by(function() local none = nil return none.field end)
        assert.equal('RuntimeError', err.kind)
        assert.truthy(err.message:find("attempt to index local 'none'", 1, true), err.message)
        assert.truthy(err.message:find('(in forward of 0.0 (my.Attn), ', 1, true), err.message)
      end)

      it('raises the object that the script raised', function()
        for _, value in ipairs { 'stop', 7, { 'mine' }, true } do
          assert.equal(value, raised_by(function() error(value, 0) end))
        end
      end)
    end)
  end)

  it('can be extended, as can its subclasses', function()
    local Scaled = nn.Module.extend('Scaled')
    function Scaled:init(factor) self.factor = factor end
    function Scaled:forward(x) return x * self.factor end
    local Own = ms.class('Own', Scaled)
    for _, parent in ipairs { Scaled, Own } do
      local Child = parent.extend('Child')
      assert.is_true(ms.is(Child(3), Scaled))
      assert.is_true(ms.is(Child(3), parent))
      checks.close({ 3 }, Child(3)(ms.ones(1)))
    end
    assert.is_false(ms.is(nn.Linear.extend('Other', nn.Module)(), nn.Linear))
  end)

  it('counts entries of lists from 1', function()
    local list = nn.Sequential(nn.ReLU())
    checks.raises('IndexError', 'has no entry 0: they count from 1', function()
      return list[0]
    end)
    assert.is_nil(list[2])
    assert.equal(1, list:len())
    assert.equal(1, #list:children())
  end)

  describe('hooks', function()
    it('see and replace arguments and results, in order, until removed', function()
      local seen = {}
      local layer = nn.ReLU()
      local first = layer:register_forward_pre_hook(function(module, args)
        assert.equal(layer, module)
        seen[#seen + 1] = 'pre'
        return { args[1] - 3 }
      end)
      local second = layer:register_forward_hook(function(module, args, output)
        assert.equal(layer, module)
        seen[#seen + 1] = 'post ' .. args[1]:item()
        return output + 10
      end)
      checks.close({ 12 }, layer(ms.full({ 1 }, 5)))
      assert.same({ 'pre', 'post 2' }, seen)
      first:remove()
      checks.close({ 15 }, layer(ms.full({ 1 }, 5)))
      second:remove()
      checks.close({ 5 }, layer(ms.full({ 1 }, 5)))
      assert.equal(3, #seen)
    end)

    -- as torch.nn.Module.register_forward_hook and register_forward_pre_hook say
    it('get several results as a list, and may return one value or a list', function()
      local Pair = nn.Module.extend('Pair')
      function Pair:forward(...) return ... end
      local function outcome(pre, post)
        local pair, seen = Pair(), nil
        pair:register_forward_pre_hook(function() return pre end)
        pair:register_forward_hook(function(_, _, output)
          seen = output
          return post
        end)
        local results = { pair(1, 2) }
        return { seen, results }
      end
      local both = { n = 2, 1, 2 }
      assert.same({ both, { 1, 2 } }, outcome(nil, nil))
      assert.same({ both, { 3, 4 } }, outcome(nil, { 3, 4 }))
      assert.same({ both, { 'one' } }, outcome(nil, 'one'))
      assert.same({ 5, { 5 } }, outcome(5))
      assert.same({ { loss = 6 }, { { loss = 6 } } }, outcome { loss = 6 })
    end)

    it('get a table that is the one result as it is', function()
      local Table = nn.Module.extend('Table')
      function Table:forward(x) return x end
      local layer, of_hook = Table(), nil
      layer:register_forward_hook(function(_, _, output)
        of_hook = output
        return { output }
      end)
      local x = { 7, 8 }
      assert.same({ x }, layer(x))
      assert.equal(x, of_hook)
    end)

    it('may remove themselves while they run', function()
      local layer, calls, handle = nn.ReLU(), 0, nil
      handle = layer:register_forward_hook(function()
        calls = calls + 1
        handle:remove()
      end)
      layer:register_forward_hook(function() calls = calls + 10 end)
      layer(ms.ones(1))
      layer(ms.ones(1))
      assert.equal(21, calls)
    end)
  end)

  it('sets the mode of all modules', function()
    local model = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.5)))
    assert.equal(model, model:eval())
    assert.is_false(model[2][1].training)
    model:train()
    assert.is_true(model[2][1].training)
  end)

  it('sets requires_grad of all parameters, and drops gradients', function()
    local layer = nn.Linear(2, 1)
    layer(ms.ones(1, 2)):sum():backward()
    checks.close({ 1 }, layer.bias:grad())
    layer:zero_grad()
    assert.is_nil(layer.bias:grad())
    layer:requires_grad_(false)
    assert.is_false(layer(ms.ones(1, 2)):requires_grad())
  end)

  it('prints as a tree, equal neighbours of a list together', function()
    local model = nn.Sequential(nn.Linear(2, 3, { bias = false }),
      nn.ModuleList(nn.ReLU(), nn.ReLU(), nn.Tanh()))
    assert.equal([[
Sequential(
  (0): Linear(in_features=2, out_features=3, bias=false)
  (1): ModuleList(
    (0-1): 2 x ReLU()
    (2): Tanh()
  )
)]], tostring(model))
  end)

  it('keeps parameters and buffers beyond the scope that declared them', function()
    local model = ms.scope(function()
      local layer = nn.Linear(2, 1)
      layer:buffer('steps', ms.zeros(1))
      layer(ms.ones(1, 2))
      return layer
    end)
    assert.same({ 1, 2 }, model.weight:shape())
    checks.close({ 0 }, model.steps)
    model(ms.ones(1, 2))
  end)
end)
