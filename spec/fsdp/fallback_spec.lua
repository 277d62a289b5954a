-- A forward catches the error of a wrapped module and continues with another module.
local ms = require 'moonshard'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim
local checks = require 'support.checks'
local wrap = require 'support.wrap'

local STRATEGIES = { 'FULL_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD' }

-- A layer that fails at its 'end' or in its 'inner' layer.
local Fragile = nn.Module.extend 'my.Fragile'
function Fragile:init(inner)
  self:param('scale', { 4 }, nn.init.ones())
  self.linear = nn.Linear(4, 4)
  self.inner = inner and Fragile()
end
function Fragile:forward(x, fails)
  x = self.linear(x * self.scale)
  if self.inner then
    x = self.inner(x, fails == 'inner' and 'end')
  end
  assert(fails ~= 'end', 'it broke')
  return x
end

-- Calls `fragile`, which fails `_fails` times, up to twice, and then `sturdy`.
local Net = nn.Module.extend 'my.Net'
function Net:init(try)
  self:param('scale', { 4 }, nn.init.ones())
  self.fragile, self.sturdy = Fragile(true), nn.Linear(4, 4)
  self.try, self._fails = try, 0
end
function Net:forward(x)
  x = x * self.scale
  for i = 1, 2 do
    local done, y = self.try(self.fragile, x, i <= self._fails and (i == 1 and 'inner' or 'end'))
    if done then
      return y
    end
  end
  return self.sturdy(x)
end

local TRIES = {
  called = pcall,
  forward = function(module, ...) return pcall(module.forward, module, ...) end,
  scope = function(...) return pcall(ms.scope, ...) end,
}

local function wrapped(net, strategy)
  local model = wrap(net, {
    auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Linear, Fragile },
    sharding_strategy = strategy, use_orig_params = true,
  })
  return model
end

local function net_of(try)
  ms.manual_seed(1)
  return Net(try)
end

-- State dict after three steps; `fragile` fails `fails(step)` times in each. All ranks have the
-- same input, so their mean gradient is that of one.
local function train(model, net, fails)
  local opt = optim.SGD(model:parameters(), { lr = 0.1 })
  for step = 1, 3 do
    net._fails = fails(step)
    ms.no_grad(model, ms.ones(2, 4))
    model(ms.ones(2, 4)):sum():backward()
    opt:step()
    opt:zero_grad()
  end
  return model:state_dict()
end

describe('a forward that catches the failure of a wrapped module', function()
  for how, try in pairs(TRIES) do -- in any order
    for _, strategy in ipairs(STRATEGIES) do
      it(('trains as unwrapped (%s), with %s'):format(how, strategy), function()
        for world = 1, 2 do
          ms.dist.spawn(world, function()
            for _, fails in ipairs { 1, 2 } do
              local function first(step) return step < 3 and fails or 0 end
              local plain, net = net_of(try), net_of(try)
              local expected = train(plain, plain, first)
              local model = wrapped(net, strategy)
              local got = train(model, net, first)
              for _, name in ipairs(expected) do
                assert.same(expected[name]:totable(), got[name]:totable(), name)
              end
            end
          end)
        end
      end)
    end
  end

  it('leaves no unit unsharded', function()
    ms.dist.spawn(2, function()
      local Many = nn.Module.extend 'my.Many'
      function Many:init()
        for i = 1, 6 do
          self[('part%d'):format(i)] = Fragile()
        end
      end
      function Many:forward(x)
        for i = 1, 6 do
          local part = self[('part%d'):format(i)]
          local done, y = pcall(part, x, self._fails and 'end')
          x = done and y or x
        end
        return x
      end
      local net = Many()
      local model = wrapped(net)
      local arena = model:plan().arena
      ms.no_grad(model, ms.ones(2, 4))
      net._fails = true
      ms.no_grad(model, ms.ones(2, 4))
      for _, unit in ipairs(model:units()) do
        assert.equal('SHARDED', unit.state, unit.name)
      end
      assert.equal(arena, model:plan().arena)
    end)
  end)

  it('is an error when one rank alone does so', function()
    local ok, err = pcall(ms.dist.spawn, 2, function(rank)
      local net = net_of(pcall)
      local model = wrapped(net)
      net._fails = rank == 0 and 2 or 0
      model(ms.ones(2, 4)):sum():backward()
    end)
    assert.is_false(ok)
    assert.truthy(tostring(err):find("collective mismatch .*: rank 0 calls .* unit 'fragile', .*, "
      .. "rank 1 calls .* unit 'fragile%.inner%.linear'"), tostring(err))
  end)

  it('does not allow a backward', function()
    local net = net_of(function(module, x)
      local done = pcall(module, x, 'end')
      assert.is_false(done)
      checks.raises('AssertionError', 'backward cannot begin during forward', function()
        x:sum():backward()
      end)
      return false
    end)
    local model = wrapped(net)
    model(ms.ones(2, 4)):sum():backward()
  end)
end)
