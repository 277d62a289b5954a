-- lua/moonshard/nn/{module,tree}.lua: declaring, walking, naming, calling, hooks, printing
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

describe('nn.Module', function()
  teardown(function()
    assert.equal(0, checks.live_handles())
  end)

  describe('declares', function()
    it('parameters without memory, in order', function()
      local before = ms.memory().live_total
      local layer = nn.Linear(300, 200)
      assert.same({ 'weight', 'bias' }, names(layer))
      assert.equal(before, ms.memory().live_total)
      layer:materialize()
      assert.is_true(ms.memory().live.parameter >= 4 * (300 * 200 + 200))
    end)

    it('nothing twice, naming what exists', function()
      local layer = nn.Linear(3, 2)
      checks.raises('KeyError', "parameter 'weight' is already declared", layer.param, layer,
        'weight', { 1 })
      checks.raises('KeyError', "buffer 'bias' is already declared", function()
        layer:buffer('bias', ms.zeros(1))
      end)
      checks.raises('KeyError', "attribute 'forward' already exists in nn.Linear", layer.child,
        layer, 'forward', nn.ReLU())
      checks.raises('KeyError', "child name 'a.b' contains a dot", layer.child, layer, 'a.b',
        nn.ReLU())
      checks.raises('KeyError', "buffer name '' is empty", layer.buffer, layer, '', ms.ones(1))
      checks.raises('TypeError', "parameter: 'name' is a number, expected a string", layer.param,
        layer, 3, { 2 })
      checks.raises('TypeError', "child 'x' of nn.Linear is a number, expected a module",
        layer.child, layer, 'x', 3)
    end)
  end)

  describe('registers what is assigned to a new field:', function()
    local function paths(module)
      local out = {}
      for path in module:named_modules() do
        out[#out + 1] = path
      end
      return out
    end

    it('modules, in order of assignment among what is declared', function()
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

    it('entries of a list, the next one only', function()
      local list = nn.ModuleList()
      list[1] = nn.ReLU()
      list[2] = nn.Tanh()
      assert.same({ '', '0', '1' }, paths(list))
      checks.raises('IndexError', 'entry 4 of nn.ModuleList, the next is 3', function()
        list[4] = nn.ReLU()
      end)
    end)

    it('parameters of other modules, tied', function()
      local a, b = nn.Linear(2, 2), nn.Linear(2, 2, { bias = false })
      b.bias = a.bias
      assert.same({ '0.weight', '0.bias', '1.weight' }, names(nn.Sequential(a, b)))
    end)

    it('but no other values', function()
      local m = nn.Module()
      m.size, m.note, m.table, m.cache = 3, 'x', { 1, { 2 } }, ms.ones(2)
      assert.same({ '' }, paths(m))
      assert.same({}, names(m))
      assert.same({ 1, { 2 } }, m.table)
    end)

    it('and refuses tables of modules, with the line to write', function()
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

    it('and refuses a module in place of another value, which it cannot see', function()
      local m = nn.Module()
      m.act = false
      m.act = nn.ReLU()
      checks.raises('TypeError', "field 'act' of nn.Module became a nn.ReLU after it had held "
        .. 'something else', m.parameters, m)
      m.act = nil
      m.act = nn.ReLU()
      assert.same({ '', 'act' }, paths(m))
    end)

    it('and forgets what is set to nil', function()
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

    it('and refuses fields that have a meaning in PyTorch and none here', function()
      local model = nn.Sequential(nn.Dropout(0.5))
      checks.raises('TypeError', "nn.Sequential has no field 'requires_grad': write "
        .. 'module:requires_grad_(false)', function() model.requires_grad = false end)
      checks.raises('TypeError', "nn.Dropout: 'training' is a number, expected true or false",
        function() model[1].training = 0 end)
      model:train()
      model[1].training = 0 -- a field that exists by now
      checks.raises('TypeError', "'training' is a number, expected true or false", model,
        ms.ones(1, 2))
    end)

    it('and refuses values of another kind where something is declared', function()
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

  it('refuses trees with cycles, however deep', function()
    local m = nn.Sequential(nn.Sequential(nn.Sequential()))
    checks.raises('ValueError', "child 'x' of nn.Sequential is or contains that module", m.child, m,
      'x', m)
    checks.raises('ValueError', 'a tree has no cycles', function() m[1][1].up = m end)
    m[1] = m
    checks.raises('ValueError', 'a tree has no cycles', m.parameters, m)
    m[1] = nn.ReLU()
    assert.equal(2, #m:modules())
  end)

  it('has no values before it is materialised, and says so', function()
    local model = nn.Sequential(nn.Linear(2, 2))
    checks.raises('RuntimeError', "parameter 'weight' has no values yet: call its module, or that "
      .. "module's materialize()", function()
      ms.no_grad(model[1].weight.fill_, model[1].weight, 1)
    end)
    model:parameters()
    checks.raises('RuntimeError', "parameter '0.weight' has no values yet: call its module, or "
      .. "that module's materialize()", function() return model[1].weight:totable() end)
    model:materialize():apply(function(m)
      if ms.is(m, nn.Linear) then
        ms.no_grad(m.weight.fill_, m.weight, 3)
      end
    end)
    checks.close({ { 3, 3 }, { 3, 3 } }, model[1].weight)
  end)

  describe('walks', function()
    local function pair()
      local inner = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
      return nn.Sequential(nn.Linear(2, 2), inner), inner
    end

    it('modules, parents first, by 0-based path', function()
      local paths = {}
      for path in pair():named_modules() do
        paths[#paths + 1] = path
      end
      assert.same({ '', '0', '1', '1.0', '1.1' }, paths)
    end)

    it('parameters by path, and those of one module alone', function()
      local model = pair()
      assert.same({ '0.weight', '0.bias', '1.0.weight', '1.0.bias' }, names(model))
      assert.same({}, names(model, false))
      assert.same({ 'weight', 'bias' }, names(model[1], false))
    end)

    it('the same list as an array with shapes', function()
      local list = nn.Linear(3, 2):named_parameters()
      assert.equal('weight', list[1].name)
      assert.same({ 2, 3 }, list[1].shape)
      assert.equal(2, #list)
    end)

    it('a module reached twice once', function()
      local shared = nn.Linear(2, 2)
      local model = nn.Sequential(shared, shared)
      assert.equal(2, #model:modules())
      assert.same({ '0.weight', '0.bias' }, names(model))
      assert.same({ '0.weight', '0.bias', '1.weight', '1.bias' }, names(model, true, false))
    end)

    it('all of them in a plain for, again and again', function()
      local model = pair()
      local function count(list)
        local n = 0
        for _ in list do
          n = n + 1
        end
        return n
      end
      for _, list in ipairs { model:parameters(), model:modules(), model:named_parameters() } do
        list() -- as a loop that was left
        assert.equal(#list, count(list))
        assert.equal(#list, count(list))
      end
      local params = model:parameters()
      assert.equal(params[1], params())
      assert.equal(params[2], params())
      assert.equal(2, count(model:children()))
    end)

    it('finds a submodule by path', function()
      local model, inner = pair()
      assert.equal(inner, model:get_submodule('1'))
      assert.equal('1.0', inner[1]:path())
      checks.raises('KeyError', "nn.Sequential has no submodule '7'", model.get_submodule, model,
        '7')
    end)
  end)

  describe('ties', function()
    it('a parameter under a second name, counted and trained once', function()
      local a = nn.Linear(2, 3, { bias = false })
      local model = nn.Sequential(a, nn.Linear(2, 3, { bias = false, weight = a.weight }))
      assert.same({ '0.weight' }, names(model))
      assert.equal(6, model:num_parameters())
      assert.equal(1, #model:parameters())
    end)
  end)

  describe('names and fills parameters', function()
    it('by their path from the outermost module, whoever asks', function()
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

    it('differently for another tree, alike after the same seed', function()
      local function pair()
        ms.manual_seed(7)
        local first, second = nn.Linear(4, 4), nn.Linear(4, 4)
        local third = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 4))
        return third:materialize()[2].weight:hash(), second:materialize().weight:hash(),
          first:materialize().weight:hash()
      end
      local c, b, a = pair()
      assert.is_true(a ~= b and b ~= c and a ~= c)
      assert.same({ c, b, a }, { pair() })
      ms.manual_seed(7)
      assert.equal(a, nn.Linear(4, 4):materialize().weight:hash())
    end)

    it('differently for another seed, path or parameter', function()
      local function weights(seed)
        ms.manual_seed(seed)
        local model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)):materialize()
        return model[1].weight:hash(), model[2].weight:hash()
      end
      local a, b = weights(1)
      local c = weights(2)
      assert.not_equal(a, b)
      assert.not_equal(a, c)
      assert.equal(a, (weights(1)))
    end)
  end)

  describe('is called', function()
    it('in a scope named by its path: what was made inside is released', function()
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

    describe('and what goes wrong in it says where', function()
      local Attn = nn.Module.extend('my.Attn')
      function Attn:init(fail) self.fail = fail end
      function Attn:forward(x) return self.fail(x) end

      local function raised_by(fail)
        local _, err = pcall(nn.Sequential(nn.Sequential(Attn(fail))), ms.ones(1))
        return err
      end

      it('once, with the stack of the script', function()
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
        assert.equal('ValueError: ' .. err.message, tostring(err))
        assert.equal(tostring(err), ('%s'):format(err))
      end)

      it('also of the errors of Lua', function()
        local line = debug.getinfo(1, 'l').currentline + 1
        local err = raised_by(function(x) local y = x.missing.field return y end)
        local lua = raised_by(function() local none = nil return none.field end)
        assert.equal('KeyError', err.kind)
        assert.equal('RuntimeError', lua.kind)
        assert.truthy(lua.message:find("attempt to index local 'none'", 1, true), lua.message)
        assert.truthy(lua.message:find('(in forward of 0.0 (my.Attn), ', 1, true), lua.message)
        assert.truthy(lua.traceback:find('module_spec.lua:' .. line + 1, 1, true), lua.traceback)
      end)

      it('with the nearest method, where there is none of that name', function()
        local err = raised_by(function() return nn.ReLU():evl() end)
        assert.truthy(err.message:find("attempt to call method 'evl' (a nil value), did you mean "
          .. "'eval'? (in forward of", 1, true), err.message)
        err = raised_by(function() return nn.ReLU():xyz() end)
        assert.truthy(err.message:find("'xyz' (a nil value) (in forward of", 1, true), err.message)
      end)

      it('and what a script chose to raise stays what it is', function()
        for _, value in ipairs { 'stop', 7, { 'mine' }, true } do
          assert.equal(value, raised_by(function() error(value, 0) end))
        end
      end)
    end)

    it('without a forward, says so', function()
      checks.raises('NotImplementedError', 'nn.ModuleList has no forward', nn.ModuleList(),
        ms.ones(1))
    end)
  end)

  describe('of another class', function()
    it('inherits from the class that is extended', function()
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
      local Layer = nn.Linear.extend('Layer')
      assert.is_true(ms.is(Layer(3, 2), nn.Linear))
      assert.same({ 2 }, Layer(3, 2)(ms.ones(3)):shape())
      assert.is_false(ms.is(nn.Linear.extend('Other', nn.Module)(), nn.Linear))
    end)
  end)

  describe('called otherwise than it is meant', function()
    it('counts entries of lists from 1', function()
      local Own = nn.Sequential.extend('Own')
      for name, list in pairs {
        ['nn.ModuleList'] = nn.ModuleList { nn.ReLU() },
        ['nn.Sequential'] = Own(nn.ReLU()),
      } do
        checks.raises('IndexError', name .. ' has no entry 0: they count from 1', function()
          return list[0]
        end)
        checks.raises('IndexError', name .. ' has no entry -1', function() return list[-1] end)
        assert.is_nil(list[2]) -- where loops over lists end
        assert.equal(1, list:len())
        assert.equal(1, #list:children())
      end
    end)

    it('has a function for its forward', function()
      local layer = nn.Linear(1, 1)
      checks.raises('TypeError', "nn.Linear: 'forward' is a number, expected a function", function()
        layer.forward = 3
      end)
      layer.forward = function(_, x) return x * 2 end
      checks.close({ 2 }, layer(ms.ones(1)))
      layer.forward = nil
      assert.same({ 1 }, layer(ms.ones(1)):shape())
    end)
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
    it('see what forward returned, and give what takes its place', function()
      local Pair = nn.Module.extend('Pair')
      function Pair:forward(a, b) -- luacheck: ignore self
        return a, b
      end
      local function outcome(pre, post)
        local pair, seen = Pair(), nil
        pair:register_forward_pre_hook(pre)
        pair:register_forward_hook(function(_, _, output)
          seen = output
          return post
        end)
        local n = select('#', pair(1, 2))
        return seen, n, pair(1, 2)
      end
      local function none() end
      local seen, n, a, b = outcome(none, nil)
      assert.same({ { n = 2, 1, 2 }, 2, 1, 2 }, { seen, n, a, b })
      seen, n, a, b = outcome(none, { 3, 4 })
      assert.same({ { n = 2, 1, 2 }, 2, 3, 4 }, { seen, n, a, b })
      seen, n, a = outcome(none, 'one')
      assert.same({ { n = 2, 1, 2 }, 1, 'one' }, { seen, n, a })
      seen = outcome(function() return 5 end)
      assert.same({ n = 2, 5 }, seen)
      seen = outcome(function() return { loss = 6 } end)
      assert.same({ n = 2, { loss = 6 } }, seen)

      local Table = nn.Module.extend('Table')
      function Table:forward(x) -- luacheck: ignore self
        return x
      end
      local layer, of_hook = Table(), nil
      layer:register_forward_hook(function(_, _, output)
        of_hook = output
        return { output }
      end)
      local x = { 7, 8 }
      assert.same({ x }, layer(x)) -- one result that is a table stays one
      assert.equal(x, of_hook)
      assert.same({ n = 1 }, { n = select('#', layer(nil)) })
      assert.is_nil(of_hook)
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

  describe('sets all at once', function()
    it('the mode', function()
      local model = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.5)))
      assert.equal(model, model:eval())
      assert.is_false(model[2][1].training)
      model:train()
      assert.is_true(model[2][1].training)
    end)

    it('requires_grad, and drops gradients', function()
      local layer = nn.Linear(2, 1)
      layer(ms.ones(1, 2)):sum():backward()
      checks.close({ 1 }, layer.bias:grad())
      layer:zero_grad()
      assert.is_nil(layer.bias:grad())
      layer:requires_grad_(false)
      assert.is_false(layer(ms.ones(1, 2)):requires_grad())
    end)

    it('apply visits children first', function()
      local order = {}
      nn.Sequential(nn.ReLU(), nn.Sequential(nn.Tanh())):apply(function(m)
        order[#order + 1] = m._name
      end)
      assert.same({ 'nn.ReLU', 'nn.Tanh', 'nn.Sequential', 'nn.Sequential' }, order)
    end)
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

  it('parameters outlive the scope they were declared in', function()
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
