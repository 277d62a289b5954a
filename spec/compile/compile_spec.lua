-- Compiled functions and modules against eager ones: equal bits, and nothing stale.

local ms = require 'moonshard'
local Frame = require 'moonshard.compile.frame'
local Guards = require 'moonshard.compile.guards'
local checks = require 'support.checks'

local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim

local function graphs()
  return ms.compile_report().graphs
end

-- Call a function `n` times, and another one that should do the same.
local function compare(n, expected, actual, ...)
  for _ = 1, n do
    assert.equal(0, (expected(...) - actual(...)):abs():max():item())
  end
end

local function mlp()
  ms.manual_seed(3)
  return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
end

describe('ms.compile', function()
  it('replays the third call of a function with the same bits', function()
    local before = graphs()
    local function f(x, factor)
      return (x * factor):exp(), { sum = x:sum(), factor }
    end
    local compiled = ms.compile(f, { fullgraph = true })
    for i = 1, 4 do
      local x = ms.randn(3, 5)
      local y, t = compiled(x, 2)
      local y_expected, t_expected = f(x, 2)
      assert.is_true(ms.equal(y_expected, y))
      assert.is_true(ms.equal(t_expected.sum, t.sum))
      assert.equal(2, t[1])
      assert.equal(before + (i < 2 and 0 or 1), graphs())
    end
    assert.is_true(ms.equal(f(ms.ones(3, 5), 3), (compiled(ms.ones(3, 5), 3))))
  end)

  it('leaves a function eager that changes what it reads', function()
    local calls = 0
    local function f(x)
      calls = calls + 1
      return x + calls
    end
    local compiled = ms.compile(f)
    for i = 1, 4 do
      assert.same({ i }, compiled(ms.zeros(1)):totable())
    end
    local breaks = ms.compile_report().breaks
    assert.equal("upvalue 'calls' changed while it ran", breaks[#breaks].reason)
  end)

  it('tells an argument from a tensor that the function has from outside', function()
    local x, y = ms.full({ 2 }, 1), ms.full({ 2 }, 5)
    local compiled = ms.compile(function(a)
      return a + x * 2
    end)
    for _, a in ipairs { x, x, x, y, y, y, x } do
      assert.equal((a + x * 2):sum():item(), compiled(a):sum():item())
    end
  end)

  it('keeps a capture for each shape, and at most 8', function()
    local function f(x) return x:square() end
    local compiled, before = ms.compile(f), graphs()
    local warnings = ms.capture_warnings(function()
      for n = 1, 10 do
        compare(4, f, compiled, ms.randn(n))
      end
    end)
    assert.equal(before + 8, graphs())
    assert.equal(1, #warnings)
    assert.matches('has 8 captures, the most that are kept, so other calls run eagerly; the last '
      .. 'one differs: argument 1 has shape %(9%), recorded with %(8%)', warnings[1].message)
  end)

  it('raises for unknown options and values', function()
    local f = function() end
    checks.raises('ValueError', "compile: unknown option 'backnd', did you mean 'backend'?",
      ms.compile, f, { backnd = 'replay' })
    checks.raises('ValueError', "compile: 'backend' is 'eager', expected one of replay, "
      .. 'partition, fuse, aot_eager, aot_eager_decomp_partition, inductor', ms.compile, f,
      { backend = 'eager' })
    checks.raises('TypeError', "compile: 'fn' is a number, expected a function", ms.compile, 3)
  end)

  it('runs what breaks a graph eagerly, and names the reason', function()
    local function f(x) return x * x:sum():item() end
    compare(4, f, ms.compile(f), ms.randn(3))
    local breaks = ms.compile_report().breaks
    assert.matches('host', breaks[#breaks].reason)
    local strict = ms.compile(f, { fullgraph = true })
    strict(ms.randn(3))
    local line = debug.getinfo(f, 'S').linedefined
    checks.raises('RuntimeError', 'cannot be replayed as one graph: the host reads values of a '
      .. ('tensor (at spec/compile/compile_spec.lua:%d)'):format(line), strict, ms.randn(3))
  end)

  it('compiles the other children of a module that breaks', function()
    local function make()
      local model = nn.Sequential(mlp(), mlp())
      model[2] = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
      model[2][2]:register_forward_hook(function() end)
      return model:materialize()
    end
    ms.manual_seed(1)
    local eager = make()
    ms.manual_seed(1)
    local before = graphs()
    compare(8, eager, make():compile(), ms.randn(2, 6))
    assert.equal(before + 3, graphs()) -- model[1], model[2][1] and model[2][3]
    local broken = ms.compile_report().breaks
    assert.equal('1.1', broken[#broken].module)
    assert.matches("%(at spec/compile/compile_spec.lua:%d+, in forward of '1%.1'%)$",
      broken[#broken].reason)
  end)
end)

describe('the graph of a capture', function()
  local shift = ms.custom_op('spec::shift', { mutates = { 'out' } }, function(x, out)
    out:add_(x)
  end)
  local net = nn.Sequential(nn.Linear(6, 4), nn.ReLU())
  local function f(x)
    local y = net(x)
    local out = ms.zeros(3)
    shift(x:sum(2), out)
    return out + 1, y
  end
  local function captured_graph()
    local compiled = ms.compile(f, { fullgraph = true })
    for _ = 1, 3 do
      compiled(ms.ones(3, 6))
    end
    local captures = ms.compile_report().captures
    return captures[#captures].graph
  end

  it('prints its operators with their lines', function()
    local at = '   -- spec/compile/compile_spec.lua:%d'
    local line = debug.getinfo(f, 'S').linedefined
    assert.equal(table.concat({
      '%0: argument 1 f32 [3, 6]', '%1: 0.weight f32 [4, 6]', '%2: 0.bias f32 [4]',
      '%3 = linear(%0, %1, %2) f32 [3, 4]' .. at:format(line + 1),
      '%4 = relu(%3) f32 [3, 4]' .. at:format(line + 1),
      '%5 = full() f32 [3]' .. at:format(line + 2),
      '%6 = sum(%0) f32 [3]' .. at:format(line + 3),
      'spec::shift(%6, %5)' .. at:format(line + 3),
      '%7 = add(%5) f32 [3]' .. at:format(line + 4),
    }, '\n'), tostring(captured_graph()))
  end)

  it('counts operators and steps, and is drawn', function()
    local graph = captured_graph()
    assert.equal(1, graph:count 'linear')
    assert.equal(1, graph:count 'spec::')
    assert.equal(1, graph:count 'full')
    local text, declared, edges = graph:dot(), {}, 0
    for name in text:gmatch '\n  (%w+) %[' do
      declared[name] = true
    end
    for from, to in text:gmatch '\n  (%w+) %-> (%w+)' do
      assert.is_true(declared[from] and declared[to])
      edges = edges + 1
    end
    assert.equal(8 + 2, edges) -- operands, and what runs before and after the step
  end)

  it('does not keep the program', function()
    local function no_report()
      local compiled = ms.compile(f)
      compiled(ms.ones(3, 6))
      compiled(ms.ones(3, 6))
    end
    local graph = captured_graph()
    no_report()
    collectgarbage()
    collectgarbage()
    local report = ms.compile_report()
    assert.is_nil(report.captures[#report.captures - 1].graph)
    assert.equal(1, graph:count 'relu')
    assert.matches('fuse%): 0 replays of 2 segments', tostring(report))
  end)
end)

describe('a guard', function()
  local scale = 1
  local Net = nn.Module.extend 'Net'
  function Net:init()
    self:child('fc', nn.Linear(4, 4))
    self:child('drop', nn.Dropout(0))
    self:buffer('shift', ms.zeros(4))
    self.scale, self.sizes = 1, { 1 }
  end
  function Net:forward(x)
    local y = self.fc(x) * self.scale * scale * self.sizes[1] + self.shift
    return self.extra and y + self.extra or y
  end

  -- { change(net), the miss }; no text: the values of a tensor changed, which needs no capture
  local CHANGES = {
    { function(net) net.scale = 2 end, "field 'scale' of Net changed" },
    { function(net) net.extra = 2 end, 'Net has other fields' },
    { function(net) net.sizes[1] = 2 end, "field '1' of field 'sizes' of Net changed" },
    { function() scale = 2 end, "upvalue 'scale' changed" },
    { function(net) net:eval() end, "field 'training' of Net changed" },
    { function(net) net.fc = nn.Linear(4, 4):materialize() end, "'fc'" },
    { function(net) net.shift = ms.ones(4) end, "'shift'" },
    { function(net) net.fc.weight:requires_grad_(false) end,
      "parameter 'weight' of 'fc' was cast, frozen or thawed" },
    { function(net) net:double() end, "field 'shift' of Net changed" },
    { function(net) net.fc:register_forward_hook(function(_, _, y) return y * 3 end) end,
      "the hooks of 'fc' changed" },
    { function(net) function net.forward(_, x) return x * 5 end end, 'Net has other fields' },
    { function(net) net.fc.weight:detach():fill_(0.5) end },
    { function(net) net:load_state_dict(Net():materialize():state_dict()) end },
  }
  for i, case in ipairs(CHANGES) do
    it(('notices change %d: %s'):format(i, case[2] or 'none'), function()
      scale = 1
      ms.manual_seed(2)
      local net = Net():materialize()
      local compiled = ms.compile(net)
      local x = ms.randn(2, 4)
      compare(3, net, compiled, x)
      local guards = Guards(net)
      assert.is_nil(guards:miss())
      case[1](net)
      local miss = guards:miss()
      if case[2] then
        assert.is_truthy(miss and miss:find(case[2], 1, true), tostring(miss))
      else
        assert.is_nil(miss)
      end
      compare(4, net, compiled, x:to(net.fc.weight:dtype()))
    end)
  end
end)

describe('ms.custom_op', function()
  it('runs in each replay with its tensors', function()
    local seen = 0
    local add = ms.custom_op('spec::add', { mutates = { 'out' } }, function(x, out)
      seen = seen + x:sum():item()
      out:copy_(x + 1)
    end)
    local compiled = ms.compile(function(x)
      local out = ms.zeros(2)
      add(x * 2, out)
      return out * 10
    end, { fullgraph = true })
    for i = 1, 5 do
      assert.same({ 20 * i + 10, 10 }, compiled(ms.tensor { i, 0 }):totable())
    end
    assert.equal(2 * (1 + 2 + 3 + 4 + 5), seen)
  end)

  it('returns tensors, through which gradients pass', function()
    local calls, w = 0, ms.full({ 2 }, 3):requires_grad_()
    local f = ms.custom_op('spec::two', {}, function(list, factor)
      calls = calls + 1
      return list[1] * list[2] * factor, ms.no_grad(function() return list[1] + list[2] end)
    end)
    local compiled = ms.compile(function(x)
      local product, sum = f({ x * 1, w }, 2)
      return (product + sum):sum()
    end, { fullgraph = true })
    for i = 1, 4 do
      local loss = compiled(ms.full({ 2 }, i))
      assert.equal(2 * (i * 3 * 2 + i + 3), loss:item())
      loss:backward()
      assert.same({ 2 * i, 2 * i }, w:grad():totable())
      w:set_grad(nil)
    end
    assert.equal(4, calls)
  end)

  it('raises in a replay whose results differ from the recorded ones', function()
    local x, made = ms.ones(2), { [4] = ms.ones(3), [5] = ms.ones(2, { dtype = ms.f64 }), [7] = 1 }
    local i = 0
    local f = ms.custom_op('spec::varies', {}, function()
      return made[i] or i == 6 and x or ms.ones(2)
    end)
    local compiled = ms.compile(function(a) return a + f(a) end, { fullgraph = true })
    for _, text in ipairs {
      false, false, false, 'a result has shape %(3%), recorded with %(2%)',
      'a result is f64, recorded as f32', 'a result is a tensor that the step did not make',
      'it is a number, recorded as a tensor', false,
    } do
      i = i + 1
      local ok, err = pcall(compiled, x)
      assert.equal(not text, ok)
      assert.matches(text and "^RuntimeError: 'spec::varies', result 1: " .. text or '',
        tostring(err))
    end
  end)

  it('checks its name, and breaks the graph if it returns another value', function()
    checks.raises('ValueError', "custom_op: the name is 'add', expected a namespace and a name",
      ms.custom_op, 'add', {}, print)
    local twice = ms.custom_op('spec::twice', {}, function() return 2 end)
    checks.raises('RuntimeError', "custom_op: 'spec::twice' is registered already", ms.custom_op,
      'spec::twice', {}, print)
    local strict = ms.compile(function(x) return twice(x) end, { fullgraph = true })
    strict(ms.ones(2))
    checks.raises('RuntimeError', "'spec::twice' returned a number, expected tensors", strict,
      ms.ones(2))
  end)
end)

describe('a compiled model', function()
  local function gpt()
    return ms.models.GPT { vocab = 13, layers = 2, heads = 2, width = 16, context = 8 }
  end

  local MODELS = {
    mlp = function() return mlp(), ms.randn(3, 6) end,
    gpt = function() return gpt(), ms.randint(1, 13, { 2, 8 }) end,
  }
  local function blocks(model)
    return model.h or { model[1], model[3] }
  end
  local WRAPS = {
    plain = function(model) return model end,
    FSDP = function(model)
      return fsdp.FSDP(model, { auto_wrap_policy = fsdp.ModuleWrapPolicy {
        nn.Linear, nn.TransformerBlock } })
    end,
    bf16 = function(model)
      return fsdp.FSDP(model, { sharding_strategy = 'SHARD_GRAD_OP',
        mixed_precision = { param_dtype = 'bf16' } })
    end,
    checkpointed = function(model)
      nn.checkpoint(model, { policy = function(module)
        return ms.is(module, model.h and nn.TransformerBlock or nn.Linear)
      end })
      return fsdp.FSDP(model, { auto_wrap_policy = fsdp.ModuleWrapPolicy {
        nn.checkpoint_wrapper } })
    end,
    fully_shard = function(model)
      for _, block in ipairs(blocks(model)) do
        fsdp.fully_shard(block)
      end
      return fsdp.fully_shard(model)
    end,
  }

  local function losses(make, wrap, compiled, rank)
    ms.manual_seed(1)
    local model, x = make()
    model = wrap(model)
    if compiled then
      model:compile { fullgraph = true }
    end
    local opt = optim.SGD(model:parameters(), { lr = 0.1, momentum = 0.9 })
    ms.manual_seed(rank)
    local out = {}
    for i = 1, 5 do
      local loss = model(x):square():mean()
      out[i] = loss:item()
      loss:backward()
      opt:step()
      opt:zero_grad()
    end
    for i = 6, 8 do
      model:eval()
      out[i] = ms.no_grad(model, x):sum():item()
    end
    return out
  end

  for _, name in ipairs { 'mlp', 'gpt' } do
    for _, kind in ipairs { 'plain', 'FSDP', 'bf16', 'checkpointed', 'fully_shard' } do
      it(('trains as an eager one: %s, %s'):format(name, kind), function()
        for _, world in ipairs { 1, kind ~= 'plain' and 2 or nil } do
          ms.dist.spawn(world, function(rank)
            local before = graphs()
            local make, wrap = MODELS[name], WRAPS[kind]
            assert.same(losses(make, wrap, false, rank), losses(make, wrap, true, rank))
            assert.equal(before + 2, graphs())
          end)
        end
      end)
    end
  end

  it('names what divides an activation checkpoint', function()
    local function last_reason(model)
      model:compile {}
      for _ = 1, 3 do
        model(ms.randn(3, 6)):sum():backward()
      end
      local breaks = ms.compile_report().breaks
      return (breaks[#breaks].reason:gsub(' %(at .*', ''))
    end
    assert.equal("'add_' inside an activation checkpoint writes to a tensor from outside it",
      last_reason(nn.checkpoint_wrapper(nn.Sequential(mlp(), nn.BatchNorm1d(4))):materialize()))
    ms.dist.spawn(2, function()
      assert.equal('a step of the host, as of a sharded unit, is inside an activation checkpoint',
        last_reason(nn.checkpoint_wrapper(WRAPS.fully_shard(mlp()))))
    end)
  end)

  it('uses the memory that its report has as the peak', function()
    for _, name in ipairs { 'mlp', 'gpt' } do
      local model, x = MODELS[name]()
      local compiled = ms.compile(function(a)
        return model(a):square():mean()
      end, { fullgraph = true, backend = 'replay' })
      local before
      for _ = 1, 5 do
        collectgarbage()
        ms.reset_peak_memory()
        before = ms.memory().live.activation
        ms.scope(function() compiled(x):backward() end)
      end
      local captures = ms.compile_report().captures
      local last = captures[#captures]
      assert.equal(ms.memory().peak.activation - before, last.planned_peak)
      assert.equal(3, last.replays)
      assert.equal(2, last.backward_plans) -- gradients of parameters are stored, then added
    end
  end)

  it('adds its memory to the plan of a sharded model', function()
    ms.dist.spawn(2, function()
      local model = WRAPS.FSDP(mlp()):compile { backend = 'replay' }
      assert.equal(0, model:plan().activations)
      for _ = 1, 3 do
        model(ms.randn(2, 6)):sum():backward()
      end
      -- backward of the second Linear: results (2, 8), (2, 8) and (2, 4), gradients of the last two
      assert.equal(4 * (16 + 16 + 8 + 8 + 16), model:plan().activations)
    end)
  end)

  it('repeats the steps of its units in order', function()
    ms.dist.spawn(2, function()
      local model = WRAPS.fully_shard(mlp())
      local frame = Frame.of_module(model, { backend = 'replay', skip_fsdp_hooks = true })
      for _ = 1, 2 do
        model(ms.randn(2, 6))
      end
      local names = {}
      for i, step in ipairs(frame.captures[1].steps) do
        names[i] = step.name or 'segment'
      end
      assert.same({ -- the root has no parameters of its own, so no unit
        'fsdp.enter_tree', 'fsdp.enter_unit', 'fsdp.enter_unit', 'segment', 'fsdp.leave_unit',
        'segment', 'fsdp.enter_unit', 'segment', 'fsdp.leave_unit', 'fsdp.leave_tree',
        'fsdp.show_shards',
      }, names)
    end)
  end)

  -- What eight training steps return, and the rates after them.
  local function train(compile, wrap)
    local model = wrap(nn.Sequential(mlp(), nn.Dropout(0.3)))
    local state = ms.is(model, fsdp.FSDP) and model or fsdp.get_state(model)
    local opt = optim.AdamW(model:parameters(), { lr = 1e-2 })
    local scheduler = optim.lr_scheduler.StepLR(opt, { step_size = 2, gamma = 0.5 })
    local step = compile(function(first, second)
      local before = ms.no_grad(function() return model(first):mean() end)
      local loss
      state:no_sync(function()
        loss = model(first):square():mean()
        loss:backward()
      end)
      local other = model(second):square():mean()
      other:backward()
      local norm = state:clip_grad_norm_(0.5)
      opt:step()
      scheduler:step()
      opt:zero_grad()
      return loss + other, before, norm * 2
    end)
    local seen = {}
    for _ = 1, 8 do
      for _, value in ipairs { step(ms.randn(3, 6), ms.randn(3, 6)) } do
        seen[#seen + 1] = value:item()
      end
      seen[#seen + 1] = opt.param_groups[1].lr
    end
    return seen
  end

  it('replays whole training steps', function()
    for world = 1, 2 do
      for _, name in ipairs { 'FSDP', 'fully_shard' } do
        ms.dist.spawn(world, function()
          local expected = train(function(fn) return fn end, WRAPS[name])
          local before = graphs()
          assert.same(expected, train(ms.compile_step, WRAPS[name]))
          assert.equal(before + 1, graphs())
        end)
      end
    end
  end)

  it('refuses steps that read a rate', function()
    local opt = optim.SGD({ ms.zeros(1):requires_grad_() }, { lr = 0.1 })
    local step = ms.compile_step(function() opt.param_groups[1].lr = 0.2 end)
    step()
    checks.raises('RuntimeError', 'an option of an optimizer is set', step)
  end)

  it('can be called again after a replay failed', function()
    ms.dist.spawn(2, function()
      local fails = ms.custom_op('spec::fails', { mutates = { 'x' } }, function(x)
        if x:max():item() > 100 then
          ms.error('ValueError', 'too large')
        end
      end)
      local Net = nn.Module.extend 'Net'
      function Net:init() self:child('body', mlp()) end
      function Net:forward(x)
        local y = self.body(x)
        fails(x)
        return y
      end
      local model = fsdp.FSDP(Net(), { auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Linear } })
      local x = ms.randn(2, 6)
      local expected = model(x)
      model:compile { fullgraph = true }
      for _ = 1, 3 do
        checks.raises('ValueError', 'too large', function()
          for _ = 1, 3 do
            model(x)
          end
          model(x + 1000)
        end)
      end
      compare(2, function() return expected end, model, x)
    end)
  end)

  it('leaves what an eager call leaves where a replay fails', function()
    local fails -- 'raise': the operator raises; 'shape': its result does not fit what follows
    local op = ms.custom_op('spec::sometimes', {}, function(x)
      if fails == 'raise' then
        ms.error('ValueError', 'too large')
      end
      return fails == 'shape' and ms.ones(5) or x:detach():relu()
    end)
    local Net = nn.Module.extend 'Net'
    function Net:init()
      self:child('first', nn.Linear(6, 8))
      self:child('second', nn.Linear(8, 4))
    end
    function Net:forward(x)
      local h = self.first(x)
      return self.second(h + op(h))
    end
    local function run(compiled)
      ms.manual_seed(1)
      local model = fsdp.FSDP(Net()) -- one unit, which is gathered where the operator fails
      if compiled then
        model:compile { fullgraph = true }
      end
      local opt, seen = optim.SGD(model:parameters(), { lr = 0.1 }), {}
      for i, failure in ipairs { '', '', '', 'raise', '', 'shape', 'raise', '' } do
        fails = failure
        local ok, loss = pcall(function()
          return model(ms.full({ 2, 6 }, i)):square():mean()
        end)
        assert(ok == (failure == ''))
        local state = { loss = ok and loss:item() }
        if ok then
          loss:backward()
        end
        if i % 2 == 0 then -- steps also use gradients of calls before one that failed
          opt:step()
          opt:zero_grad()
        end
        for _, unit in ipairs(model:units()) do
          state[#state + 1] = { unit.state, unit.training }
        end
        state.hash, state.live = model:hash(), ms.memory().live.gradient
        seen[i] = state
      end
      return seen
    end
    ms.dist.spawn(2, function()
      assert.same(run(false), run(true))
    end)
  end)

  it('is copied as an eager one', function()
    local model = mlp():compile()
    compare(3, mlp(), model, ms.ones(2, 6))
    local copy = model:deepcopy()
    model[1].weight:detach():fill_(0)
    compare(2, mlp(), copy, ms.ones(2, 6))
  end)

  it('needs no more memory after many replays and captures', function()
    local function memory()
      collectgarbage()
      collectgarbage()
      local statm = assert(io.open '/proc/self/statm')
      local _, pages = statm:read('*n', '*n')
      statm:close()
      local now = ms.memory()
      return {
        lua = collectgarbage 'count' * 1024, resident = 4096 * pages,
        bytes = now.live.activation + now.live.gradient, handles = now.live_handles,
      }
    end
    local w, x = ms.full({ 8 }, 2):requires_grad_(), ms.ones(8)
    local function step(f)
      f(x):backward()
      w:set_grad(nil)
    end
    local function captures_and_replays(n)
      local f
      for _ = 1, n do -- each function is captured, and freed with its program
        f = ms.compile(function(a) return (a * w):sum() end, { fullgraph = true })
        for _ = 1, 3 do
          ms.scope(step, f)
        end
      end
      for _ = 1, 50 * n do
        ms.scope(step, f)
      end
    end
    captures_and_replays(50)
    local before, graphs_before = memory(), graphs()
    captures_and_replays(200)
    assert.equal(200, graphs() - graphs_before)
    local after = memory()
    assert.equal(before.bytes, after.bytes)
    assert.equal(before.handles, after.handles)
    assert.is_true(after.lua - before.lua < 200 * 1024, after.lua - before.lua)
    assert.is_true(after.resident - before.resident < 2 ^ 21, after.resident - before.resident)
  end)
end)
