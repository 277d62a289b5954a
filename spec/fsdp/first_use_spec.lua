-- lua/moonshard/fsdp/{wrapper,plan}.lua: the first use of a wrapped model is whole, or the next use
-- makes it whole
local ms = require 'moonshard'
local nn, fsdp = ms.nn, ms.fsdp
local checks = require 'support.checks'

-- Two units, of which the outer one has a tied parameter, values that were written, and a buffer.
local Tied = nn.Module.extend('Tied')

function Tied:init()
  self.first, self.second, self.last = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)
  self.second.weight = self.first.weight
  self.drop = nn.Dropout(0.5)
  self:buffer('scale', ms.full({ 2 }, 0.1))
end

function Tied:forward(x)
  return self.last(self.drop(self.second(self.first(x)))) * self.scale
end

local function wrapped(module, opts)
  local model
  ms.capture_warnings(function() model = fsdp.FSDP(module, opts) end)
  return model
end

local function tied()
  ms.manual_seed(1)
  local module = Tied()
  module:materialize()
  ms.no_grad(function() module.first.bias:fill_(3) end)
  return wrapped(module, {
    auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Linear },
    mixed_precision = { param_dtype = 'bf16', buffer_dtype = 'bf16' },
  })
end

-- What comes out, what state dicts say, and what is trained.
local function outcome(model, x)
  local y = model(x)
  y:sum():backward()
  local sd, said = model:state_dict(), { y:hash(), model:hash() }
  for _, name in ipairs(sd) do
    said[#said + 1] = ('%s %s %s'):format(name, sd[name]:dtype(), sd[name]:hash())
  end
  for _, p in ipairs(model:parameters()) do
    said[#said + 1] = p:grad():hash()
  end
  return said
end

describe('the first use of FSDP', function()
  teardown(function()
    assert.equal(0, checks.live_handles())
  end)

  it('after an error between any two instructions of it, begins anew', function()
    local x = ms.ones(1, 3)
    local expected = outcome(tied(), x)
    local model = tied()
    local n = checks.interrupted(function() model(x) end, function()
      ms.manual_seed(1)
      assert.same(expected, outcome(model, x))
      model = tied()
    end, 61) -- of tens of thousands
    assert.is_true(n > 10000)
  end)

  it('goes on when what ended it is mended', function()
    local layer = nn.Linear(2, 2)
    layer:buffer('scale', ms.ones(2))
    local model = wrapped(layer, { mixed_precision = { buffer_dtype = 'bf16' } })
    layer.scale:release()
    checks.raises('TypeError', 'released', model, ms.ones(1, 2))
    ms.collect()
    checks.raises('TypeError', 'released', model, ms.ones(1, 2))
    layer:set_buffer('scale', ms.ones(2))
    model(ms.ones(1, 2)):sum():backward()
    assert.equal('bf16', layer.scale:dtype())
    assert.equal('SHARDED', model:units()[1].state)
  end)
end)
