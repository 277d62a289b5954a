-- Assignments to fields of a plain module.
local ms = require 'moonshard'
local nn = ms.nn
local checks = require 'support.checks'

describe('the field of a parameter', function()
  it('refuses a plain tensor, which no optimizer would train', function()
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

  it('ties a parameter of another module', function()
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

describe('a tensor assigned to the field of a buffer', function()
  local Mean = nn.Module.extend('Mean') -- the running mean of its inputs
  function Mean:init()
    self:buffer('b', ms.zeros(2))
  end
  function Mean:forward(x)
    self.b = self.b * 0.5 + x:mean(1) * 0.5
    return x - self.b
  end

  it('replaces the buffer', function()
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
    checks.close({ 6, 6 }, first(ms.full({ 2 }, 3)))
    checks.close({ 6, 6 }, first.b)
  end)

  it('replaces the buffer when forward fails after that', function()
    local model = Mean()
    function model:forward(x)
      Mean.forward(self, x)
      error 'late'
    end
    for _, expected in ipairs { 4, 6 } do
      local ok, err = pcall(model, ms.full({ 1, 2 }, 8))
      assert.is_false(ok)
      assert.truthy(tostring(err):find('late', 1, true), err)
      checks.close({ expected, expected }, model.b)
    end
  end)

  it('replaces the buffer in a hook and in the forward of a parent', function()
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
end)
