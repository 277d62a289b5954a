-- lua/moonshard/nn/watched.lua: what it costs that calls look at the fields below them
local ms = require 'moonshard'
local nn = ms.nn
local checks = require 'support.checks'

-- Hundreds of instructions that a function takes in the interpreter: compiled code has none.
local function instructions(fn, ...)
  local n = 0
  jit.off()
  jit.flush()
  debug.sethook(function() n = n + 1 end, '', 100)
  fn(...)
  debug.sethook()
  jit.on()
  return n
end

-- With a buffer, from the start or ('late') from the first forward on.
local Layer = nn.Module.extend('Layer')
function Layer:init(when)
  self.when, self.w = when, nn.Linear(2, 2)
  if when == 'early' then
    self:buffer('b', ms.zeros(2))
  end
end
function Layer:forward(x)
  if self.when == 'late' and not self.b then
    self:buffer('b', ms.zeros(2))
  end
  return self.w(x)
end

local function model_of(n, when)
  local model = nn.Sequential()
  for _ = 1, n do
    model:append(nn.Sequential(Layer(when)))
  end
  return model:materialize()
end

local function assert_linear(cost)
  local once, twice = cost(40), cost(80)
  assert.is_true(twice < 2.3 * once, ('%d, then %d'):format(once, twice))
end

describe('what calls look at', function()
  local x = ms.ones(1, 2)

  teardown(function()
    x = nil
    checks.close_library()
  end)

  it('is listed once, however many modules declare a buffer in their first forward', function()
    assert_linear(function(n)
      local model = model_of(n, 'late')
      return instructions(function()
        ms.no_grad(model, x)
        ms.no_grad(model, x)
      end)
    end)
  end)

  it('holds no module longer than the model does', function()
    local model = nn.Module.extend('Model')()
    model.body, model.head = nn.Sequential(nn.Linear(2, 2)), nn.Sequential(Layer 'early')
    function model:forward(y) return self.body(y) end
    ms.no_grad(model, x)
    local held = setmetatable({ model.head, model.head[1] }, { __mode = 'v' })
    model.head = nil
    model:parameters()
    checks.live_handles()
    assert.same({}, held)
    ms.no_grad(model, x)
  end)
end)
