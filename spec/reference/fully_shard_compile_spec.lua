-- test_fully_shard_compile.py
local ms = require 'moonshard'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim

-- The first call is eager, the second is captured.
local CALLS = 3

-- How much fields of the report grow during a function.
local function added(fn)
  local before = ms.compile_report()
  fn()
  local after = ms.compile_report()
  return function(field)
    return after[field] - before[field]
  end
end

describe('TestFullyShardCompileCompute', function()
  it('test_disable_compiling_hooks', function()
    for _, skip in ipairs { false, true } do
      ms.dist.spawn(2, function()
        local function sharded()
          ms.manual_seed(0)
          return fsdp.fully_shard(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 4)))
        end
        ms.manual_seed(1)
        local x = ms.randn(4, 4)
        local expected, model = sharded()(x), sharded()
        model:compile { skip_fsdp_hooks = skip }
        local count = added(function()
          for _ = 1, CALLS do
            assert.is_true(ms.equal(expected, model(x)))
          end
        end)
        assert.equal(1, count 'graphs')
        assert.equal(skip, count 'fsdp_nodes' == 0)
      end)
    end
  end)
end)

-- Losses of ten iterations of `model`, compiled by `compile` after an eager one.
local function losses_of(rank, make, input, compile)
  ms.manual_seed(rank)
  local model = make()
  local opt = optim.SGD(model:parameters(), { lr = 1e-4 })
  local function iteration(x)
    local loss = model(x):sum()
    loss:backward()
    opt:step()
    opt:zero_grad()
    return loss
  end
  iteration(input(rank))
  local run, losses = compile(iteration, model), {}
  ms.manual_seed(42)
  for i = 1, 10 do
    losses[i] = run(input(rank)):item()
  end
  return losses
end

-- Compiled are the module, whose backward is then a plan as well, or the whole iteration.
local function train_compiled(backend, make, input)
  for world = 1, 2 do
    ms.dist.spawn(world, function(rank)
      local eager = losses_of(rank, make, input, function(iteration) return iteration end)
      assert.not_equal(eager[1], eager[10])
      local count = added(function()
        assert.same(eager, losses_of(rank, make, input, function(iteration, model)
          model:compile { backend = backend, fullgraph = true }
          return iteration
        end))
        assert.same(eager, losses_of(rank, make, input, function(iteration)
          return ms.compile_step(iteration, { backend = backend })
        end))
      end)
      assert.equal(2, count 'graphs')
    end)
  end
end

local function sharded_mlp()
  return fsdp.fully_shard(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(),
    nn.Linear(16, 16)), { reshard_after_forward = true })
end

local function sharded_transformer()
  local model = ms.models.GPT { vocab = 8, layers = 2, heads = 2, width = 16, context = 16 }
  local opts = { reshard_after_forward = true,
    mesh = ms.dist.init_device_mesh('cpu', { ms.dist.world_size() }) }
  for _, block in ipairs(model.h) do
    fsdp.fully_shard(block, opts)
  end
  return fsdp.fully_shard(model, opts)
end

describe('TestFullyShardCompile', function()
  it('test_dynamo_trace_use_training_state', function()
    ms.dist.spawn(1, function()
      local group, x = fsdp.ParamGroup {}, ms.zeros(1)
      local function f(t)
        return group:use_training_state('FORWARD', function()
          return group:training_state() == 'FORWARD' and t + 1 or t
        end)
      end
      assert.equal(1, f(x):item())
      assert.equal('IDLE', group:training_state())
      local compiled = ms.compile(f, { backend = 'aot_eager', fullgraph = true })
      local count = added(function()
        for _ = 1, CALLS do
          assert.equal(1, compiled(x):item())
          assert.equal('IDLE', group:training_state())
        end
      end)
      assert.same({ 1, 1, 1 }, { count 'frames', count 'ops', count 'graphs' })
    end)
  end)

  it('test_trace_fsdp_set_', function()
    local add_one_out = ms.custom_op('reference::add_one_out', { mutates = { 'out' } },
      function(x, out) out:copy_(x + 1) end)
    ms.dist.spawn(1, function()
      local x = ms.zeros(2)
      local compiled = ms.compile(function(t)
        local buf = ms.zeros(2)
        add_one_out(t, buf:view(-1))
        fsdp.set_(t, buf:view(-1))
      end, { backend = 'aot_eager' })
      for i = 1, CALLS do
        compiled(x)
        assert.same({ i, i }, x:totable())
      end
    end)
  end)

  for _, backend in ipairs { 'aot_eager', 'aot_eager_decomp_partition', 'inductor' } do
    it(('test_simple_mlp_fullgraph_backend_%s'):format(backend), function()
      train_compiled(backend, sharded_mlp, function() return ms.randn(2, 16) end)
    end)

    it(('test_transformer_fullgraph_backend_%s'):format(backend), function()
      train_compiled(backend, sharded_transformer, function(rank)
        return (ms.arange(32) * (3 + rank)):remainder(8):to('i64'):reshape(2, 16)
      end)
    end)
  end
end)
