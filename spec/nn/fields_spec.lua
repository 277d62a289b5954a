-- What a script assigns to the fields of a plain module.
local ms = require 'moonshard'
local nn = ms.nn
local checks = require 'support.checks'

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
end)

describe('a tensor in a field', function()
  it('that requires grad and is no parameter is warned of at the first call', function()
    local Scaled = nn.Module.extend('Scaled')
    function Scaled:init()
      self.w = ms.ones(2, { requires_grad = true })
      self._own = ms.ones(2, { requires_grad = true })
    end
    function Scaled:forward(x)
      return x * self.w
    end
    local model = nn.Sequential { Scaled() }
    local said = ms.capture_warnings(function()
      model(ms.ones(2))
      model(ms.ones(2))
    end)
    assert.equal(1, #said)
    assert.equal("field 'w' of '0' (Scaled) is a tensor that requires grad, but no parameter: "
      .. "it is not in parameters(), and nothing shards it; write self:param('w', { size, ... }, "
      .. "rule), or self:tie('w', t) for a tensor there is", said[1].message)
  end)
end)
