-- Tables as arguments and results of wrapped forwards.
local ms = require 'moonshard'
local nn, fsdp = ms.nn, ms.fsdp
local checks = require 'support.checks'

-- A nested instance between two layers. It returns give(y); the outer module reads y with take().
local function nested(give, take)
  local Inner = nn.Module.extend('my.Inner')
  function Inner:init() self.linear = nn.Linear(4, 4) end
  function Inner:forward(x) return give(self.linear(x)) end
  local Outer = nn.Module.extend('my.Outer')
  function Outer:init(inner)
    self.first, self.inner, self.last = nn.Linear(4, 4), inner, nn.Linear(4, 4)
  end
  function Outer:forward(x) return self.last(take(self.inner(self.first(x)))) end
  return Inner, Outer
end

describe('what a wrapped forward returns', function()
  local ways = {
    ['under the key 0'] = { function(y) return { [0] = y } end, function(r) return r[0] end },
    ['under a fraction and a flag'] = {
      function(y) return { [0.5] = { [true] = y } } end, function(r) return r[0.5][true] end,
    },
    ['behind a hole'] = { function(y) return { nil, nil, y } end, function(r) return r[3] end },
    ['in a table that holds itself'] = {
      function(y)
        local t = { y = y }
        t.self = t
        return t
      end, function(r) return r.self.self.y end,
    },
  }
  for name, way in pairs(ways) do
    it('is differentiated ' .. name, function()
      ms.dist.spawn(2, function()
        local Inner, Outer = nested(way[1], way[2])
        ms.manual_seed(1)
        local model = fsdp.FSDP(Outer(fsdp.FSDP(Inner())))
        model(ms.ones(2, 4)):sum():backward()
        local norm = model:clip_grad_norm_(math.huge):item()
        ms.manual_seed(1)
        local plain = Outer(Inner())
        plain(ms.ones(2, 4)):sum():backward()
        local squares = 0
        for p in plain:parameters() do
          squares = squares + (p:grad() * p:grad()):sum():item()
        end
        checks.close(math.sqrt(squares), norm, 1e-5)
      end)
    end)
  end
end)

describe('what a wrapped forward is given', function()
  it('is cast in a table that holds itself, which stays one', function()
    local dtype, same
    local Net = nn.Module.extend('my.Net')
    function Net:init() self.linear = nn.Linear(2, 2) end
    function Net:forward(t)
      dtype, same = t[0]:dtype(), t.self == t
      return self.linear(t[0])
    end
    local model = fsdp.FSDP(Net(), { mixed_precision = { param_dtype = 'bf16' } })
    local given = { [0] = ms.ones(1, 2) }
    given.self = given
    assert.equal('bf16', model(given):dtype())
    assert.equal('bf16', dtype)
    assert.is_true(same)
    assert.equal('f32', given[0]:dtype())
  end)

  it('is the same table where it holds nothing to cast', function()
    local Net = nn.Module.extend('my.Net')
    function Net:init() self.linear = nn.Linear(2, 2) end
    function Net:forward(t)
      t.cache.calls = t.cache.calls + 1
      return self.linear(t.x)
    end
    local model = fsdp.FSDP(Net(), { mixed_precision = { param_dtype = 'bf16' } })
    local given = { x = ms.ones(1, 2), cache = { calls = 0 } }
    model(given)
    assert.equal(1, given.cache.calls)
  end)
end)
