-- lua/moonshard/nn/tree.lua: names, initial values and dropout masks follow the path of a module in
-- its final model, for every use before and every wrapping.
local ms = require 'moonshard'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim
local checks = require 'support.checks'

-- A model of two layers that were made before it.
local Pair = nn.Module.extend('my.Pair')
function Pair:init(a, b)
  self.a = a
  self.b = b
end
function Pair:forward(x) return self.b(self.a(x)) end

local TOUCHES = {
  { 'not at all', function() end },
  { 'one', function(a) a:parameters() end },
  { 'both', function(a, b) a:parameters() b:named_parameters() end },
  { 'by a list', function(a, b) nn.ModuleList { a, b }:parameters() end },
}

local function pair(touch, make)
  ms.manual_seed(1)
  local a, b = make(), make()
  touch(a, b)
  return Pair(a, b)
end

local function linear() return nn.Linear(2, 2) end

local function trained(touch, wrap)
  local model = wrap(pair(touch, linear))
  local opt = optim.AdamW(model:parameters(), { lr = 0.1 })
  model(ms.ones(1, 2)):sum():backward()
  opt:step()
  return model, opt
end

local function state_names(opt)
  local names = {}
  for i, entry in ipairs(opt:state_dict().state) do
    names[i] = entry.name
  end
  return names
end

local WRAPS = {
  { 'plain', function(model) return model end },
  { 'wrapped', function(model) return fsdp.FSDP(model, { sharding_strategy = 'NO_SHARD' }) end },
}

describe('the name of a parameter', function()
  for _, case in ipairs(WRAPS) do
    local how, wrap = unpack(case)
    it(('is its path in the %s model, and first values are those of it'):format(how), function()
      local first = trained(TOUCHES[1][2], wrap):hash()
      for _, touch in ipairs(TOUCHES) do
        local model, opt = trained(touch[2], wrap)
        assert.same({ 'a.weight', 'a.bias', 'b.weight', 'b.bias' }, state_names(opt), touch[1])
        assert.equal(first, model:hash(), touch[1])
      end
    end)
  end

  it('changes with the path and keeps its values', function()
    local layer = nn.Linear(2, 2)
    local opt = optim.SGD(layer:parameters(), { lr = 0.1 })
    local weight = layer:materialize().weight:clone()
    local inner = nn.Sequential(layer)
    inner:materialize()
    assert.same({ '0.weight', '0.bias' }, state_names(opt))
    local outer = Pair(inner, nn.Tanh())
    outer:materialize()
    assert.same({ 'a.0.weight', 'a.0.bias' }, state_names(opt))
    assert.is_true(layer.weight:equal(weight))
    outer.a = nil
    outer.b = inner
    outer:materialize()
    assert.same({ 'b.0.weight', 'b.0.bias' }, state_names(opt))
    assert.is_true(layer.weight:equal(weight))
  end)

  it('is the path in a model that has run before', function()
    local x = ms.ones(1, 2)
    local function replaced(ran, ask)
      ms.manual_seed(1)
      local model = Pair(linear(), linear())
      if ran then
        model(x)
      end
      model.b = nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5))
      ask(model)
      ms.manual_seed(1)
      return model(x):hash(), model:hash(), model.b[1].weight:hash()
    end
    local asks = { function() end, function(model) model:parameters() end,
      function(model) model.b:parameters() end, function(model) model.b[1]:named_parameters() end }
    local expected = { replaced(false, asks[1]) }
    for i, ask in ipairs(asks) do
      assert.same(expected, { replaced(true, ask) }, 'asked by ' .. i)
    end
  end)

  it('is checked for later replacement, too', function()
    local model = Pair(linear(), linear())
    model(ms.ones(1, 2))
    model.b = linear()
    model(ms.ones(1, 2))
    model.b.weight = ms.ones(2, 2)
    checks.raises('TypeError', "parameter 'b.weight' of b (nn.Linear) was replaced by a plain",
      model, ms.ones(1, 2))
  end)

  it('stays when another model uses the module, too', function()
    local model, opt = trained(TOUCHES[1][2], WRAPS[1][2])
    local hash = model:hash()
    nn.Sequential(model.b, nn.Tanh())(ms.ones(1, 2))
    assert.same({ 'a.weight', 'a.bias', 'b.weight', 'b.bias' }, state_names(opt))
    assert.equal(hash, model:hash())
  end)
end)

describe('the place of a random module', function()
  local Block = nn.Module.extend('my.Block')
  function Block:init()
    self.drop = nn.Dropout(0.5)
    self.linear = nn.Linear(4, 4)
  end
  function Block:forward(x) return self.linear(self.drop(x)) end

  -- One block stands in two places; `first` is the path that is declared first.
  local Shared = nn.Module.extend('my.Shared')
  function Shared:init(first)
    local blocks = nn.ModuleList { Block(), Block() }
    if first == 'again' then
      self.again = blocks[1]
    end
    self.blocks = blocks
    if first ~= 'again' then
      self.again = blocks[1]
    end
  end
  function Shared:forward(x) return self.again(self.blocks[2](self.blocks[1](x))) end

  it('is the first path of a module that stands in two places', function()
    for _, first in ipairs { 'again', 'blocks.0' } do
      local expected
      for _, policy in ipairs { function() return false end, fsdp.ModuleWrapPolicy { Block },
        fsdp.ModuleWrapPolicy { nn.Dropout }, fsdp.ModuleWrapPolicy { nn.Linear },
        fsdp.always_wrap_policy } do
        ms.manual_seed(1)
        local model = fsdp.FSDP(Shared(first), {
          sharding_strategy = 'NO_SHARD', auto_wrap_policy = policy,
        })
        local y = model(ms.randn(2, 4, { seed = 7 })):hash()
        expected = expected or y
        assert.equal(expected, y)
        assert.equal(first .. '.drop', model.again.drop:path())
        assert.equal(first .. '.linear.weight', model:state_dict()[1])
      end
    end
  end)

  it('is the path in the model that a module joins later', function()
    local function masks(touch)
      ms.manual_seed(1)
      local a, b = nn.Dropout(0.5), nn.Dropout(0.5)
      local model = nn.Sequential(nn.Tanh())
      model(ms.ones(1, 1))
      if touch then
        a(ms.ones(1, 1))
        ms.manual_seed(1)
      end
      model:append(a):append(b)
      return model(ms.ones(2, 32)):hash()
    end
    assert.equal(masks(false), masks(true))
  end)
end)
