-- lua/moonshard/nn/buffer.lua: buffers under mixed precision, in modules and state dicts
local ms = require 'moonshard'
local nn = ms.nn
local checks = require 'support.checks'
local wrap = require 'support.wrap'

local function wrapped(module, mixed_precision)
  return wrap(module, { mixed_precision = mixed_precision })
end

describe('buffer_dtype', function()
  after_each(checks.close_library)

  it('casts buffers once; state dicts give the originals', function()
    local Buffered = nn.Module.extend('Buffered', nn.Linear)
    function Buffered:forward(x) return nn.Linear.forward(self, x) + self.shift end
    local layer = Buffered(2, 2)
    layer:buffer('shift', ms.full({ 2 }, 0.1))
    layer:buffer('ticks', ms.zeros(1, { dtype = 'i64' }))
    local model = wrapped(layer, { param_dtype = 'bf16', buffer_dtype = 'bf16' })
    model(ms.ones(1, 2))
    assert.equal('bf16', layer.shift:dtype())
    assert.equal('i64', layer.ticks:dtype())
    checks.close({ 0.1, 0.1 }, model:state_dict()['shift'])
    layer.shift:fill_(0.5) -- from here on the cast buffer has the value
    checks.close({ 0.5, 0.5 }, model:state_dict()['shift'])
    model:load_state_dict({ shift = ms.full({ 2 }, 0.3) }, { strict = false })
    checks.close({ 0.3, 0.3 }, model:state_dict()['shift'])
    checks.close({ 0.3, 0.3 }, layer.shift, 2e-3) -- bf16 keeps eight bits
    assert.equal('f32', model:state_dict()['shift']:dtype())
  end)

  it('leaves the buffers of ignored modules', function()
    local inner = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    for i = 1, 2 do
      inner[i]:buffer('shift', ms.full({ 2 }, 0.1))
    end
    wrap(inner, { ignored_modules = { inner[2] }, mixed_precision = { buffer_dtype = 'bf16' } })(
      ms.ones(1, 2))
    assert.equal('bf16', inner[1].shift:dtype())
    assert.equal('f32', inner[2].shift:dtype())
  end)

  it('does not apply to a buffer that a script replaces', function()
    for _, replace in ipairs {
      function(layer, tensor) layer:set_buffer('scale', tensor) end,
      function(layer, tensor) layer.scale = tensor end,
    } do
      local layer = nn.Linear(2, 2)
      layer:buffer('scale', ms.ones(2))
      local model = wrapped(layer, { buffer_dtype = 'bf16' })
      model(ms.ones(1, 2))
      replace(layer, ms.full({ 2 }, 5))
      checks.close({ 5, 5 }, model:state_dict()['scale'])
      model:load_state_dict({ scale = ms.full({ 2 }, 7) }, { strict = false })
      checks.close({ 7, 7 }, layer.scale)
      checks.close({ 7, 7 }, model:state_dict()['scale'])
    end
  end)

  it('applies to buffers that forward assigns; state dicts have the declared dtype', function()
    local Mean = nn.Module.extend('Mean', nn.Linear)
    function Mean:init()
      nn.Linear.init(self, 2, 2)
      self:buffer('b', ms.zeros(2))
    end
    function Mean:forward(x)
      ms.no_grad(function() self.b = self.b * 0.5 + x:mean(1):to(self.b:dtype()) * 0.5 end)
      return nn.Linear.forward(self, x - self.b:to(x:dtype()))
    end
    for _, dtype in ipairs { 'f32', 'bf16' } do
      local layer = Mean()
      local model = wrapped(nn.Sequential(layer), { param_dtype = 'bf16', buffer_dtype = dtype })
      for _, expected in ipairs { 4, 6, 7 } do
        model(ms.full({ 1, 2 }, 8)):sum():backward()
        assert.equal(dtype, layer.b:dtype())
        checks.close({ expected, expected }, model:state_dict()['0.b'])
        assert.equal('f32', model:state_dict()['0.b']:dtype())
      end
      model:load_state_dict({ ['0.b'] = ms.full({ 2 }, 0.3) }, { strict = false })
      checks.close({ 0.3, 0.3 }, model:state_dict()['0.b'])
      model(ms.full({ 1, 2 }, 0.3))
      checks.close({ 0.3, 0.3 }, model:state_dict()['0.b'], 2e-3)
    end
  end)
end)
