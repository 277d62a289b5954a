-- Several backwards over one graph of a sharded model.
local ms = require 'moonshard'
local nn, fsdp = ms.nn, ms.fsdp

local Net = nn.Module.extend('RetainedNet')

function Net:init()
  self.first, self.last = nn.Linear(5, 7), nn.Linear(7, 3)
end

function Net:forward(x)
  return self.last(self.first(x):tanh())
end

local function model()
  ms.manual_seed(3)
  return Net()
end

local function gradients(net)
  local list = {}
  for i, p in ipairs(net:parameters()) do
    local grad = p:grad()
    list[i] = grad and grad:totable() or 'none'
  end
  net:zero_grad()
  return list
end

local function squares(y)
  return (y * y):sum()
end
local LOSSES = { squares, squares, function(y) return y:mean() end }

-- Gradients of three losses in two steps, of one forward (`retains`) or of one forward each; with
-- `adds`, their sums.
local function passes(net, retains, adds)
  local seen, inputs = {}, { ms.randn(4, 5), ms.randn(4, 5) }
  for _, x in ipairs(inputs) do
    local y
    for i, loss in ipairs(LOSSES) do
      y = retains and y or net(x)
      loss(y):backward { retain_graph = retains and i < #LOSSES }
      if not adds or i == #LOSSES then
        seen[#seen + 1] = gradients(net)
      end
    end
  end
  return seen
end

describe('a graph of a sharded model that is retained', function()
  for _, strategy in ipairs { 'FULL_SHARD', 'SHARD_GRAD_OP' } do
    for _, quiet in ipairs { false, true } do
      local how = strategy .. (quiet and ' in no_sync' or '')
      it('gives the same bits as one forward per backward, with ' .. how, function()
        ms.dist.spawn(2, function()
          local function sharded(retains, adds)
            local net = fsdp.FSDP(model(), {
              sharding_strategy = strategy, use_orig_params = true,
              auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Linear },
            })
            if quiet then
              return net:no_sync(passes, net, retains, adds)
            end
            return passes(net, retains, adds)
          end
          assert.same(sharded(false), sharded(true))
          assert.same(sharded(false, true), sharded(true, true))
          if quiet then
            assert.same(passes(model(), true), sharded(true))
          end
        end)
      end)
    end
  end
end)

describe('autograd.grad past a sharded model', function()
  it('unshards units and reduces nothing', function()
    ms.dist.spawn(2, function()
      local x = ms.ones(4, 5):requires_grad_()
      local expected = ms.autograd.grad(squares(model()(x)), x)[1]:totable()
      local net = fsdp.FSDP(model(), {
        use_orig_params = true, auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Linear },
      })
      net:no_sync(function() net(x):sum():backward() end)
      local kept = net:parameters()[1]:grad():totable()
      local y = net(x)
      local seen = ms.autograd.grad(squares(y), x, nil, { retain_graph = true })[1]
      assert.same(expected, seen:totable())
      assert.same(kept, net:parameters()[1]:grad():totable())
      local ok, err = pcall(ms.autograd.grad, squares(y), net:parameters()[1])
      assert.is_false(ok)
      assert.equal('NotImplementedError', err.kind)
    end)
  end)
end)
