-- The tests of every row of spec/nn/table.lua. Those on ranks come first: a process that has opened
-- its device cannot fork ranks.
local ms = require 'moonshard'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim
local checks = require 'support.checks'
local reference = require 'support.reference'
local samples = require 'support.samples'
local rows = require 'nn.table'

local STEPS = 2

local function is_floating(t)
  return t:dtype():sub(1, 1) == 'f' or t:dtype() == 'bf16'
end

-- The arguments of a row in another dtype.
local function inputs(row, dtype)
  local list = { row.input() }
  for i, t in ipairs(list) do
    list[i] = is_floating(t) and t:to(dtype) or t
  end
  return list
end

-- A module whose parameters differ from each other: initial values of some are all 0 or 1.
local function made(row, dtype)
  ms.manual_seed(3)
  local module = row.make():to(dtype):materialize()
  for i, p in ipairs(module:parameters()) do
    ms.no_grad(p.copy_, p, ms.randn(p:shape(), { seed = i }) * 0.5)
  end
  return module
end

-- A parameter before a module, so that gradients pass through modules that have none.
local Behind = nn.Module.extend('spec.Behind')
function Behind:init(module)
  self:param('scale', { 1 }, nn.init.ones())
  self.module_under_test = module
end
function Behind:forward(x, ...)
  local y = self.module_under_test(is_floating(x) and x * self.scale or x, ...)
  return (y * y + y):sum()
end

-- Trains on the inputs of `ranks`: a wrapped model on those of its own rank, a plain model on those
-- of both, with the mean gradient. Returns the state dict.
local function train(row, model, ranks)
  local opt = optim.SGD(model:parameters(), { lr = 0.1, momentum = 0.9 })
  for _ = 1, STEPS do
    for _, rank in ipairs(ranks) do
      local given = {}
      for i, t in ipairs { row.input() } do
        local n = t:size(1) / 2
        given[i] = t:narrow(1, rank * n + 1, n)
      end
      samples.begin(rank * given[1]:size(1))
      model(unpack(given)):backward()
    end
    for p in model:parameters() do
      if #ranks == 2 and p:grad() then
        p:set_grad(p:grad() / 2)
      end
    end
    opt:step()
    opt:zero_grad()
  end
  return model:state_dict()
end

describe('on two ranks', function()
  for _, row in ipairs(rows) do
    local test = row.alone and function() end or it
    test('FSDP trains ' .. row.name .. ' to the bits of the plain module', function()
      ms.dist.spawn(2, function(rank)
        local function make()
          ms.manual_seed(3)
          return Behind(row.make())
        end
        local plain = make()
        local before = plain:hash()
        local expected = train(row, plain, { 0, 1 })
        assert.not_equal(before, plain:hash())
        for _, strategy in ipairs(reference.STRATEGIES) do
          local model = reference.wrap(make(), {
            sharding_strategy = strategy, auto_wrap_policy = fsdp.always_wrap_policy,
          })
          local found = train(row, model, { rank })
          for name in plain:named_parameters() do -- buffers are each rank's own
            assert.equal(expected[name]:hash(), found[name]:hash(), strategy .. ' ' .. name)
          end
        end
      end)
    end)
  end
end)

for _, row in ipairs(rows) do
  describe(row.name, function()
    teardown(function()
      assert.equal(0, checks.live_handles())
    end)

    for _, case in ipairs { { 'f32', 1e-5 }, { 'f64', 1e-10 } } do
      local dtype, tolerance = unpack(case)
      it('computes its definition in ' .. dtype, function()
        local module, given = made(row, dtype):eval(), inputs(row, dtype)
        local y = ms.no_grad(module, unpack(given))
        assert.equal(dtype, y:dtype())
        checks.close(row.reference(module:state_dict(), unpack(given)):totable(), y,
          row.single and 1e-5 or tolerance)
      end)
    end

    it('has the gradients of finite differences', function()
      local module, given = made(row, 'f64'), inputs(row, 'f64')
      local leaves = {}
      for p in module:parameters() do
        leaves[#leaves + 1] = p
      end
      for _, t in ipairs(given) do
        leaves[#leaves + 1] = is_floating(t) and t:requires_grad_(true) or nil
      end
      local function loss()
        ms.manual_seed(4) -- the same masks in every forward
        local y = module(unpack(given))
        return (y * y * 0.5 + y):sum()
      end
      loss():backward()
      for _, leaf in ipairs(leaves) do
        local flat, grad = leaf:detach():reshape(-1), leaf:grad():reshape(-1):totable()
        for i, value in ipairs(flat:totable()) do
          local function at(x)
            flat[i] = x
            return ms.scope(function() return ms.no_grad(loss):item() end)
          end
          local slope = (at(value + 1e-5) - at(value - 1e-5)) / 2e-5
          flat[i] = value
          checks.close(slope, grad[i], 1e-6)
        end
      end
    end)

    it('names its parameters and buffers', function()
      local sd, found = row.make():state_dict(), {}
      for i, name in ipairs(sd) do
        found[i] = { name, unpack(sd[name]:shape()) }
      end
      assert.same(row.state or {}, found)
    end)

    it('loads the state dict of another one', function()
      local module, other = made(row, 'f32'):eval(), row.make():eval()
      ms.manual_seed(5)
      other:materialize()
      other:load_state_dict(module:state_dict())
      local given = inputs(row, 'f32')
      assert.equal(module(unpack(given)):hash(), other(unpack(given)):hash())
    end)

    local same = not (row.random or row.batch)
    it(same and 'computes the same while it trains' or 'computes something else while it trains',
      function()
      local module, given = made(row, 'f32'), inputs(row, 'f32')
      local function run() return module(unpack(given)):hash() end
      local training = run()
      assert.equal(not row.random, training == run())
      module:eval()
      assert.equal(same, training == run())
      assert.equal(run(), run())
      ms.manual_seed(3)
      module:train()
      assert.equal(training, run())
    end)

    for _, dtype in ipairs { 'bf16', 'f16' } do
      it('trains in ' .. dtype, function()
        local module, given = made(row, dtype), inputs(row, dtype)
        local x = given[1]
        if is_floating(x) then
          x:requires_grad_(true)
        end
        local y = module(unpack(given))
        assert.equal(row.result or dtype, y:dtype())
        y:to('f32'):sum():backward()
        for p in module:parameters() do
          assert.equal(dtype, p:grad():dtype())
          assert.is_true(p:grad():isfinite():all())
        end
      end)
    end

    for dim = 1, row.sequences and 2 or 1 do
      it('takes inputs with none in dimension ' .. dim, function()
        local module, given = made(row, 'f32'), inputs(row, 'f32')
        for i, t in ipairs(given) do
          given[i] = t:narrow(dim, 1, 0)
          given[i] = is_floating(t) and given[i]:requires_grad_(true) or given[i]
        end
        local y = module(unpack(given))
        if y:dim() == 0 then -- a loss: a sum of nothing, or a mean
          assert.equal(row.sums and '0' or 'nan', tostring(y:item()):match('[^-]+'))
        else
          assert.equal(0, y:numel())
        end
        y:sum():backward()
        for p in module:parameters() do
          assert.is_true(p:grad():eq(0):all())
        end
      end)
    end

    if row.refuses then
      it('refuses arguments that it does not take', function()
        for _, case in ipairs(row.refuses) do
          checks.raises(case[1], case[2], row.class, unpack(case, 3, table.maxn(case)))
        end
      end)
    end
  end)
end
