-- What a script assigns to the fields of a plain module.
local ms = require 'moonshard'
local nn = ms.nn
local checks = require 'support.checks'

describe('names that only say what to write', function()
  it('are free for children and parameters', function()
    local Net = ms.nn.Module.extend('Net')
    function Net:init()
      self.plan = ms.nn.Linear(2, 2)
      self:param('no_sync', { 2 }, ms.nn.init.ones())
    end
    function Net:forward(x) return self.plan(x) * self.no_sync end
    local net = Net()
    assert.same({ 1, 2 }, net(ms.ones(1, 2)):shape())
    assert.equal(3, #net:parameters())
    checks.raises('KeyError', "parameter 'no_sync' is already declared", net.param, net, 'no_sync',
      { 2 })
    checks.raises('KeyError', "attribute 'train' already exists", net.param, net, 'train', { 2 })
  end)
end)

describe('the field of a parameter', function()
  it('takes no plain tensor, which no optimizer would train', function()
    for _, ready in ipairs { false, true } do
      local layer = nn.Linear(2, 2)
      local model = nn.Sequential(layer)
      if ready then
        model(ms.ones(1, 2))
      end
      local old = layer.weight
      for _, shape in ipairs { { 2, 2 }, { 3 } } do
        for _, use in ipairs { function() model(ms.ones(1, 2)) end,
          function() layer:parameters() end } do
          layer.weight = ms.full(shape, 3)
          checks.raises('TypeError', "parameter '0.weight' of 0 (nn.Linear) was replaced by a "
            .. ('plain tensor (%s), expected a parameter or nil'):format(table.concat(shape, ', ')),
            use)
          assert.equal(old, layer.weight)
        end
      end
      model(ms.ones(1, 2))
      ms.no_grad(function() layer.weight:copy_(ms.full({ 2, 2 }, 3)) end)
      assert.equal(3, layer.weight[1][1]:item())
      local other = nn.Linear(2, 2):materialize()
      layer.weight = other.weight
      assert.equal(other.weight, layer:parameters()[1])
    end
  end)

  it('ties one of another module, where tie() would declare another', function()
    local net = nn.Module()
    net.wte, net.head = nn.Embedding(5, 3), nn.Linear(3, 5, { bias = false })
    checks.raises('KeyError', "tie: parameter 'weight' of nn.Linear is already declared, expected "
      .. 'a name that has none; to tie that one: module.weight = t', net.head.tie, net.head,
      'weight', net.wte.weight)
    net.head.weight = net.wte.weight
    assert.equal(1, #net:parameters())
    function net:forward(ids) return self.head(self.wte(ids)) end
    net:materialize()
    ms.no_grad(net.wte.weight.fill_, net.wte.weight, 1)
    net(ms.arange(2)):sum():backward() -- rows 0 and 1 are taken, and multiplied with all five
    checks.close({ 5 + 2, 5 + 2, 2, 2, 2 }, net.head.weight:grad():narrow(2, 1, 1):reshape(5))
  end)
end)

describe('a tensor in a field', function()
  local Scaled = nn.Module.extend('Scaled')
  function Scaled:init()
    self.w = ms.ones(2, { requires_grad = true })
    self._own = ms.ones(2, { requires_grad = true })
  end
  function Scaled:forward(x)
    return x * self.w
  end

  for first, use in pairs {
    ['call'] = function(model) model(ms.ones(2)) end,
    ['parameters()'] = function(model) model:parameters() end,
    ['state_dict()'] = function(model) model:state_dict() end,
  } do
    it('that requires grad and is no parameter is warned of once, at the first ' .. first,
      function()
        local model = nn.Sequential { Scaled() }
        local function warnings(fn)
          return ms.capture_warnings(fn, model)
        end
        local said = warnings(use)
        assert.equal(1, #said)
        assert.equal("field 'w' of '0' (Scaled) is a tensor that requires grad, but no parameter: "
          .. "it is not in parameters(), and nothing shards it; write self:param('w', { size, "
          .. "... }, rule), or self:tie('w', t) for a tensor there is", said[1].message)
        assert.same({}, warnings(use))
        assert.same({}, warnings(function() model(ms.ones(2)) end))
        model[1].late = ms.ones(2, { requires_grad = true })
        assert.truthy(warnings(model.state_dict)[1].message:find("field 'late'", 1, true))
      end)
  end
end)

describe('a tensor assigned to the field of a buffer', function()
  local Mean = nn.Module.extend('Mean') -- the running mean of its inputs, as norms over batches do
  function Mean:init()
    self:buffer('b', ms.zeros(2))
  end
  function Mean:forward(x)
    self.b = self.b * 0.5 + x:mean(1) * 0.5
    return x - self.b
  end

  it('is the buffer from then on, when forward made it', function()
    local model = nn.Sequential(Mean(), nn.ReLU())
    for _, expected in ipairs { 4, 6, 7 } do
      checks.close({ 8 - expected, 8 - expected }, model(ms.full({ 1, 2 }, 8))[1])
      collectgarbage()
      checks.close({ expected, expected }, model[1].b)
      checks.close({ expected, expected }, model:state_dict()['0.b'])
    end
    local first = Mean()
    function first:forward(x)
      self.b = x * 2
      return self.b
    end
    checks.close({ 6, 6 }, first(ms.full({ 2 }, 3))) -- one tensor, twice kept
    checks.close({ 6, 6 }, first.b)
  end)

  it('also where a hook or the module above made it', function()
    local model = Mean()
    function model:forward(x)
      return x + self.b
    end
    local hook = model:register_forward_hook(function(module) module.b = module.b + 1 end)
    for step = 0, 2 do
      checks.close({ step, step }, model(ms.zeros(2)))
    end
    hook.remove()
    local above = nn.Sequential(model)
    function above:forward(x)
      self[1].b = self[1].b + 1
      return self[1](x)
    end
    for step = 4, 6 do
      checks.close({ step, step }, above(ms.zeros(2)))
      checks.close({ step, step }, model.b)
    end
  end)

  it('is refused when it has been released, and the buffer stays', function()
    local model = Mean()
    local above = nn.Sequential(model)
    function above:forward(x)
      local y = self[1](x)
      self[1].b = self[1].b + 1
      return y
    end
    above(ms.ones(1, 2))
    checks.raises('RuntimeError', "buffer '0.b' of 0 (Mean) was replaced by a tensor(released at "
      .. 'the end of nn.Sequential), expected one that lives; the field shows the buffer again. '
      .. "Assign it in Mean's own forward, or write into it instead: module.b:copy_(t)", above,
      ms.ones(1, 2))
    checks.close({ 0.5, 0.5 }, model.b)
    model.b = 'x'
    checks.raises('TypeError', "buffer 'b' of Mean is now a string, expected a tensor", above,
      ms.ones(1, 2))
  end)
end)

describe('what a forward assigned to buffers before it failed', function()
  teardown(function()
    assert.equal(0, checks.live_handles())
  end)

  -- Halves its buffer, times over, and fails where it is told to.
  local Halves = nn.Module.extend('Halves')
  function Halves:init()
    self:buffer('b', ms.full({ 2 }, 16))
  end
  function Halves:forward(x, times)
    for _ = 1, times or 1 do
      self.b = self.b * 0.5
    end
    return self.fails and ms.error('ValueError', 'on purpose') or x * self.b
  end

  local function fails(model, ...)
    checks.raises('ValueError', 'on purpose', model, ms.ones(2), ...)
  end

  -- Buffers of `model`, of which `layer` is part, say `value`, whoever asks, and the next call goes
  -- on from there.
  local function assert_is(value, model, layer)
    checks.close({ value, value }, layer.b)
    checks.close({ value, value }, select(2, model:named_buffers()()))
    local sd = model:state_dict()
    checks.close({ value, value }, sd[sd[1]])
    model:hash()
    checks.close({ value / 2, value / 2 }, model(ms.ones(2)))
    checks.close({ value / 2, value / 2 }, layer.b)
  end

  it('is undone at once, however often it was assigned', function()
    local model = Halves()
    model(ms.ones(2))
    for times = 1, 3 do
      model.fails = true
      fails(model, times)
      fails(model, times)
      model.fails = nil
      assert_is(2 ^ (4 - times), model, model)
    end
  end)

  it('in the first call, too', function()
    local model = Halves()
    model.fails = true
    fails(model)
    model.fails = nil
    assert_is(16, model, model)
  end)

  it('also by hooks, and when a hook is what fails', function()
    local model = Halves()
    local hook = model:register_forward_hook(function() ms.error('ValueError', 'on purpose') end)
    fails(model)
    hook.remove()
    assert_is(16, model, model)
    local assigns = model:register_forward_pre_hook(function(module) module.b = module.b + 4 end)
    model.fails = true
    fails(model)
    model.fails = nil
    assigns.remove()
    assert_is(8, model, model)
  end)

  it('also when a module above fails, or a scope, behind calls that ended well', function()
    local layer = Halves()
    local model = nn.Sequential(nn.Sequential(layer, nn.ReLU()))
    local hook = model:register_forward_hook(function() ms.error('ValueError', 'on purpose') end)
    fails(model)
    hook.remove()
    assert_is(16, model, layer)
    checks.raises('ValueError', 'on purpose', ms.scope, function()
      model(ms.ones(2))
      model[1](ms.ones(2))
      ms.error('ValueError', 'on purpose')
    end)
    assert_is(8, model, layer)
    ms.scope(function()
      model(ms.ones(2))
      pcall(ms.scope, function()
        model(ms.ones(2))
        error('inside')
      end)
    end)
    assert_is(2, model, layer)
  end)

  it('also by a module above, which fails before or in its call', function()
    for _, failing in ipairs { 'above', 'below' } do
      local layer = Halves()
      local model = nn.Sequential(nn.Sequential(layer))
      local forward = model[1].forward
      model[1].forward = function(self, x)
        self[1].b = self[1].b + 1
        return failing == 'above' and ms.error('ValueError', 'on purpose') or forward(self, x)
      end
      layer.fails = true
      fails(model)
      layer.fails, model[1].forward = nil, nil
      assert_is(16, model, layer)
    end
  end)

  it('is undone in an `ms.scope` that fails while the forward goes on', function()
    for _, rounds in ipairs { 0, 1 } do
      local layer = Halves()
      local model = nn.Sequential(layer)
      local forward = layer.forward
      function layer:forward(x)
        for _ = 1, rounds do
          self.b = self.b + 16
        end
        for i = 1, 2 do
          local ok, err = pcall(ms.scope, function(a, b, c, d, e)
            assert(a == 1 and b == nil and c == 3 and d == nil and e == 5)
            self.b = ms.scope(function() return self.b + i end)
            forward(self, x)
            ms.error('ValueError', 'on purpose')
          end, 1, nil, 3, nil, 5)
          assert(not ok and err.kind == 'ValueError')
        end
        return forward(self, x)
      end
      checks.close({ 8 * (rounds + 1), 8 * (rounds + 1) }, model(ms.ones(2)))
      layer.forward = nil
      assert_is(8 * (rounds + 1), model, layer)
    end
  end)

  it('is undone in such a scope also where the field showed nothing before', function()
    local layer = Halves()
    local model = nn.Sequential(layer)
    layer.b = nil
    function layer:forward(x)
      pcall(ms.scope, function()
        self.b = ms.ones(2)
        ms.error('ValueError', 'on purpose')
      end)
      return x
    end
    model(ms.ones(2))
    assert.is_nil(layer.b)
  end)

  it('and nothing else: not what the script assigned, nor what was written in place', function()
    local layer = Halves()
    local model = nn.Sequential(layer)
    model(ms.ones(2))
    layer.fails = true
    layer.b = ms.full({ 2 }, 4)
    fails(model)
    layer.fails = nil
    assert_is(4, model, layer)
    local hook = model:register_forward_pre_hook(function() layer.b:add_(30) end)
    layer.fails = true
    fails(model)
    hook.remove()
    checks.close({ 32, 32 }, layer.b)
    layer.b = nil
    function layer:forward()
      self.b = ms.ones(2)
      ms.error('ValueError', 'on purpose')
    end
    fails(model)
    assert.is_nil(layer.b)
  end)

  it('is undone where buffers were declared late, too', function()
    local layer = Halves()
    local model = nn.Sequential(layer):materialize()
    model:buffer('c', ms.ones(2))
    function model:forward(x)
      self.c = self[1](x)
      ms.error('ValueError', 'on purpose')
    end
    fails(model)
    checks.close({ 1, 1 }, model:state_dict()['c'])
    checks.close({ 16, 16 }, layer.b)
  end)

  it('shows what was declared, where forward declared it', function()
    local model = Halves.extend('Lazy')()
    function model:forward(x)
      if not self.c then
        self:buffer('c', ms.full({ 2 }, 3))
      end
      self.c = self.c * 2
      return self.done and x * self.c or ms.error('ValueError', 'on purpose')
    end
    fails(model)
    checks.close({ 3, 3 }, model:state_dict()['c'])
    model.done = true
    checks.close({ 6, 6 }, model(ms.ones(2)))
  end)

  it('is undone where the module that fails stands in one that is not called', function()
    local layer = Halves()
    local model = nn.Sequential(nn.Sequential(layer))
    model(ms.ones(2))
    local forward = model[1].forward
    model[1].forward = function(self, x)
      self[1].b = self[1].b + 1
      forward(self, x)
      ms.error('ValueError', 'on purpose')
    end
    fails(model[1])
    checks.close({ 8, 8 }, layer.b)
    function model:forward(x) -- ends well
      layer.b = layer.b + layer.b
      return pcall(self[1], x) and x or layer(x)
    end
    checks.close({ 8, 8 }, model(ms.ones(2)))
    checks.close({ 8, 8 }, layer.b)
  end)

  it('is undone below a module that was called before it had buffers', function()
    local layer = nn.ReLU()
    local model = nn.Sequential(nn.Sequential(layer))
    model(ms.ones(2))
    layer:buffer('b', ms.full({ 2 }, 3))
    local forward = model.forward
    function model:forward(x)
      layer.b = layer.b + 1
      forward(self, x)
      ms.error('ValueError', 'on purpose')
    end
    fails(model)
    checks.close({ 3, 3 }, layer.b)
  end)

  it('and what was loaded meanwhile stays', function()
    local layer = Halves()
    local model = nn.Sequential(layer)
    local sd = { ['0.b'] = ms.full({ 2 }, 9) }
    checks.raises('ValueError', 'on purpose', ms.scope, function()
      model(ms.ones(2))
      model:load_state_dict(sd)
      ms.error('ValueError', 'on purpose')
    end)
    assert_is(9, model, layer)
    local hook = layer:register_forward_hook(function()
      model:load_state_dict(sd)
      layer.b = layer.b + 1
      ms.error('ValueError', 'on purpose')
    end)
    fails(model)
    hook.remove()
    assert_is(9, model, layer)
  end)
end)
