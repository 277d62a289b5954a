-- kernels/cuda over tests/cudasim: examples/train.lua computes what it computes on the CPU.
local scripts = require 'support.scripts'

local flags = '--ranks=1 --steps=4 --layers=2 --width=64 --heads=2 --context=32 --tokens=64 '
  .. '--dropout=0.1 --validate=2 --save=2 --sample=8 --log=1'
-- A model of a strategy on W ranks: its hash, and what else it prints.
local job = [[
  local world = ms.dist.init { ranks = %d }
  local options = { sharding_strategy = %q }
  if options.sharding_strategy == 'HYBRID_SHARD' then
    options.device_mesh = ms.dist.init_device_mesh('cpu', { 2, 2 })
  end
  local function wrap(module)
    return ms.fsdp.FSDP(module, options)
  end
  ms.manual_seed(1)
  local model = wrap(ms.nn.Sequential {
    wrap(ms.nn.Linear(33, 9)), ms.nn.ReLU(), wrap(ms.nn.Linear(9, 33)),
  })
  local optimizer = ms.optim.AdamW(model:parameters(), { lr = 0.01 })
  for step = 1, 4 do
    %s
    model(ms.full({ 2, 33 }, world.rank + step)):pow(2):mean():backward()
    model:clip_grad_norm_(1)
    optimizer:step()
    optimizer:zero_grad()
  end
  local hash = model:hash()
  if world.rank == 0 then
    print(hash, model:plan().own_slots > 0)
  end
]]

local stop = "os.execute('kill -STOP ' .. io.open('/proc/self/stat'):read '*n')"
local simulated = 'MS_DEVICE=cuda MS_PLUGIN_DIR=$MOONSHARD_LIB/cudasim'

-- Losses of four steps, and the text of a model trained so.
local function losses(environment, dtype)
  local out = os.tmpname()
  os.remove(out)
  local output, code = scripts.shell(('env %s luajit examples/train.lua %s --dtype=%s --out=%s')
    :format(environment, flags, dtype, out))
  assert.equal(0, code, output)
  local found = {}
  for line in io.lines(out .. '/metrics.jsonl') do
    found[#found + 1] = tonumber(line:match '"loss":([%d.]+)')
  end
  scripts.shell('rm -rf ' .. out)
  return found
end

describe('the CUDA plug-in on the CPU', function()
  for dtype, tolerance in pairs { f32 = 1e-5, bf16 = 2e-3 } do -- the order does not matter
    it('trains as the CPU in ' .. dtype, function()
      local expected, found = losses('MS_DEVICE=cpu', dtype), losses(simulated, dtype)
      assert.is_true(#expected >= 4)
      assert.equal(#expected, #found)
      for i, loss in ipairs(expected) do
        assert.is_true(math.abs(found[i] - loss) <= tolerance * loss,
          ('loss %d: %.9g, on the CPU %.9g'):format(i, found[i], loss))
      end
    end)
  end

  local function run(environment, ranks, strategy, disturbance)
    local output, code
    scripts.with_script(job:format(ranks, strategy, disturbance or ''), function(path)
      output, code = scripts.shell(('env %s %s luajit %s'):format(simulated, environment, path))
    end)
    return output, code
  end

  -- The job's hash, and whether its slots are private.
  local function result(...)
    local output = run(...)
    local hash, own = output:match '(%x+)%s(%a+)\n$'
    assert.truthy(hash, output)
    return hash, own == 'true'
  end

  for _, case in ipairs { { 2, 'FULL_SHARD' }, { 4, 'SHARD_GRAD_OP' }, { 4, 'HYBRID_SHARD' },
    { 4, 'NO_SHARD' } } do
    it(('gives the bits of shared slots by NCCL: %s, %d ranks'):format(case[2], case[1]), function()
      local found, own = result('MS_CUDASIM_CARDS=4', unpack(case))
      assert.equal(result('MS_SLOTS=shared', unpack(case)), found)
      assert.equal(case[2] ~= 'NO_SHARD', own)
    end)
  end

  -- The second weight follows a bias of odd size: whether it lies at 16 bytes differs between these
  -- models. A product by an algorithm for fewer adds in another order here, as it may by cuBLASLt.
  it('gives equal bits wherever parameters lie, for every number of ranks', function()
    local sums = {}
    for _, case in ipairs { { 1, '' }, { 2, '' }, { 4, 'MS_CUDASIM_CARDS=4' } } do
      local output
      scripts.with_script(([[
        local world = ms.dist.init { ranks = %d }
        local FSDP, x = ms.fsdp.FSDP, ms.arange(66, { dtype = 'f32' }):sin():reshape(2, 33)
        for name, wrap in pairs {
          plain = function(m) return m end,
          fully_shard = ms.fsdp.fully_shard,
          flat = FSDP,
          original = function(m) return FSDP(m, { use_orig_params = true }) end,
          replicated = function(m) return FSDP(m, { sharding_strategy = 'NO_SHARD' }) end,
        } do
          ms.manual_seed(1)
          local model = wrap(ms.nn.Sequential { ms.nn.Linear(33, 65), ms.nn.Linear(65, 33) })
          local optimizer = ms.optim.SGD(model:parameters(), { lr = 0.1 })
          for _ = 1, 3 do
            model(x):pow(2):mean():backward()
            optimizer:step()
            optimizer:zero_grad()
          end
          local sum = model(x):sum():item()
          if world.rank == 0 then print(('%%s sum %%.17g'):format(name, sum)) end
        end
      ]]):format(case[1]), function(path)
        output = scripts.shell(('env %s %s luajit %s'):format(simulated, case[2], path))
      end)
      for name, sum in output:gmatch '(%S+) sum (%S+)\n' do
        sums[#sums + 1] = sum
        assert.equal(sums[1], sum, ('%s, %d ranks'):format(name, case[1]))
      end
    end
    assert.equal(15, #sums)
  end)

  it('shows logits without gaps, whose rows a loss reads with gaps', function()
    local output
    scripts.with_script([[
      ms.manual_seed(1)
      local model = ms.models.GPT { vocab = 61, layers = 1, heads = 2, width = 16, context = 16 }
      local ids = ms.arange(32):reshape(2, 16)
      local hidden = model.ln_f(model.wte(ids))
      local logits, loss = model(ids), model(ids, ids)
      local apart = ms.ops.cross_entropy(logits:view(-1, 61), ids:view(-1))
      print(model.lm_head(hidden):stride()[2], logits:stride()[2], ms.allclose(loss, apart))]],
      function(path) output = scripts.shell(('env %s luajit %s'):format(simulated, path)) end)
    assert.equal('64\t61\ttrue\n', output)
  end)

  it('waits while a communicator connects', function()
    assert.equal(result('MS_SLOTS=shared', 3, 'FULL_SHARD'),
      result('MS_SLOTS=nccl MS_CUDASIM_CONNECT=500', 3, 'FULL_SHARD'))
  end)

  it('sums by NCCL if it is told to', function()
    local function bits(ranks, in_order)
      return (result('MS_SLOTS=nccl MS_NCCL_DETERMINISTIC=' .. in_order, ranks, 'FULL_SHARD'))
    end
    assert.equal(bits(2, 1), bits(2, 0)) -- a + b = b + a
    assert.not_equal(bits(4, 1), bits(4, 0))
  end)

  for how, disturbance in pairs {
    ['died'] = "os.execute('kill -9 ' .. io.open('/proc/self/stat'):read '*n')",
    ['failed: .*enough'] = "error 'enough'", ['mismatch'] = 'ms.dist.all_reduce(ms.ones(2))',
    ['no progress for 1 s'] = stop,
  } do
    it('ends if a rank ' .. how, function()
      local output, code = run('MS_SLOTS=nccl MS_COMM_TIMEOUT=1', 3, 'FULL_SHARD',
        ('if step == 3 and world.rank == 1 then %s end'):format(disturbance))
      assert.not_equal(0, code)
      for _, rank in ipairs { 0, 2 } do
        local error_of = ('rank %d: [^\n]*CommError: [^\n]*%s'):format(rank, how)
        assert.truthy(output:find(error_of), output)
      end
    end)
  end

  it('ends if a rank stops before a collective between devices', function()
    local output = run('MS_CUDASIM_CARDS=4 MS_COMM_TIMEOUT=1', 3, 'FULL_SHARD', ([[
      local t = ms.ones(100000)
      ms.dist.all_reduce(t)
      if world.rank == 1 then %s end
      ms.dist.all_reduce(t)
      t:sum():item()]]):format(stop))
    for _, rank in ipairs { 0, 2 } do
      assert.truthy(output:find(('rank %d: [^\n]*no progress for 1 s'):format(rank)), output)
    end
    assert.truthy(output:find('all_reduce(f32 (100000), sum, between devices)', 1, true), output)
  end)

  it('ends if one rank clips by its host and another by its device', function()
    local output = run('MS_SLOTS=nccl', 2, 'FULL_SHARD', 'model:clip_grad_norm_(1, world.rank)')
    assert.truthy(output:find('rank 0: [^\n]*CommError: [^\n]*mismatch'), output)
    assert.truthy(output:find('in clip_grad_norm_, between devices', 1, true), output)
  end)

  it('takes as much scratch for a clip in a fake group as on a rank', function()
    local function scratch(group, rank)
      local output
      scripts.with_script(([[
        local world, group = %s
        local model = ms.fsdp.FSDP(ms.nn.Linear(99, 87), { process_group = group })
        model(ms.ones(2, 99)):sum():backward()
        model:clip_grad_norm_(1)
        if %s == 1 then print(ms.memory().peak.scratch) end]]):format(group, rank), function(path)
          output = scripts.shell(('env MS_CUDASIM_CARDS=2 %s luajit %s'):format(simulated, path))
        end)
      return assert(output:match '^(%d+)\n$', output)
    end
    assert.equal(scratch('ms.dist.init { ranks = 2 }', 'world.rank'),
      scratch('nil, ms.dist.fake { rank = 1, world = 2 }', 'group:rank()'))
  end)

  it('gives the same bits in every legal order of streams', function()
    local first, second = losses(simulated .. ' MS_CUDASIM_SEED=1', 'f32'),
      losses(simulated .. ' MS_CUDASIM_SEED=2 MS_CUDASIM_SHUFFLE=1', 'f32')
    assert.same(first, second)
  end)

  it('reports a kernel that fails, on all ranks', function()
    local output, code = run('MS_SLOTS=nccl', 3, 'FULL_SHARD', [[
      if step == 3 and world.rank == 1 then
        local ffi = require 'ffi'
        ffi.cdef 'int setenv(const char *, const char *, int)'
        ffi.C.setenv('MS_CUDASIM_FAULT', '1', 1)
      end]])
    assert.not_equal(0, code)
    local error_of = 'rank 1: [^\n]*DeviceError: [^\n]*cudaErrorLaunchFailure.*last kernels: '
    assert.truthy(output:find(error_of), output)
    for _, rank in ipairs { 0, 2 } do
      assert.truthy(output:find(('rank %d: [^\n]*CommError: '):format(rank)), output)
    end
  end)

  it('prints device time by kernel when the process ends', function()
    local output = scripts.shell('env MS_CUDA_TIME=1 ' .. simulated .. [[ luajit -e "
      local ms = require 'moonshard'
      local a, b = ms.randn(64, 32), ms.randn(32, 48)
      local q = ms.randn(1, 1, 64, 8):to 'bf16'
      for _ = 1, 300 do ms.matmul(a, b):relu() end
      for n = 63, 64 do
        local x = q:narrow(3, 1, n)
        ms.ops.attention(x, x, x)
      end"]])
    for _, row in ipairs { { 'gemm f32 -> f32, 64 x 48 x 32, batch 1', 300 }, { 'relu f32', 300 },
      { 'attention bf16', 1 }, { 'attention bf16, cuDNN', 1 }, { 'init f32', 3 },
      { 'all', 606 } } do
      local calls, ms = output:match('\n' .. row[1]:gsub('%p', '%%%0') .. ' +(%d+) +([%d.]+)')
      assert.equal(row[2], tonumber(calls), output)
      assert.is_true(tonumber(ms) > 0)
    end
    local ms, rate = output:match 'gemm [^\n]- +300 +([%d.]+)[^\n]*%% +([%d.e-]+)\n'
    local expected = 300 * 2 * 64 * 48 * 32 / ms * 1e-9 -- both numbers are rounded
    assert.is_true(math.abs(tonumber(rate) / expected - 1) < 0.02, output)
  end)

  it('goes on after memory has ended', function()
    local output = scripts.shell('env MS_CUDASIM_MEMORY=96 ' .. simulated .. [[ luajit -e "
      local ms = require 'moonshard'
      local kept = ms.ones(1000, 1000)
      local ok, err = pcall(ms.ones, 30000, 1000)
      print(ok, err)
      print(kept:sum():item(), ms.ones(2000, 1000):sum():item())"]])
    assert.truthy(output:find '^false[^\n]*OutOfMemory: ', output)
    assert.truthy(output:find '1000000%s2000000', output)
  end)

  it('loads a checkpoint to a card that has no room for a copy', function()
    local output = scripts.shell('env MS_CUDASIM_MEMORY=96 ' .. simulated .. [[ luajit -e "
      local ms = require 'moonshard'
      local root = os.tmpname()
      os.remove(root)
      local model = ms.nn.Linear(4000, 4000)
      ms.nn.init.constant_(model.weight, 3)
      local path = ms.checkpoint.save(root, 'first', { model = model, step = 1 })
      ms.no_grad(model.weight.fill_, model.weight, 7)
      print(pcall(ms.checkpoint.load, path, { model = model }))
      print(model.weight:detach():max():item(), model.weight:detach():min():item())
      os.execute('rm -r ' .. root)"]])
    assert.truthy(output:find '^true%s[^\n]*\n3%s3\n$', output)
  end)

  -- bf16 by tensor cores or cuDNN, also in slices and with one direction refused; f32 by the
  -- plain kernel.
  for _, by in ipairs { 'MS_CUDNN_ATTENTION=0', 'MS_CUDASIM_WORK=200', 'MS_CUDASIM_REFUSE=2' } do
    it('computes attention of both kinds, ' .. by, function()
      local output, code = scripts.shell('env ' .. by .. ' ' .. simulated .. [[ luajit -e "
        local ms = require 'moonshard'
        local function run(x, opts)
          local leaves = { x[1]:detach(), x[2]:detach(), x[3]:detach() }
          for _, t in ipairs(leaves) do t:requires_grad_() end
          ms.manual_seed(5)
          local y = ms.ops.scaled_dot_product_attention(leaves[1], leaves[2], leaves[3], opts)
          y:backward(x[4])
          return { y:detach(), leaves[1]:grad(), leaves[2]:grad(), leaves[3]:grad() }
        end
        for _, c in ipairs { { 192, 128, 2 }, { 130, 72, 1, 0.25 }, { 300, 64, 1 },
            { 320, 64, 1 }, { 70, 33, 2 }, { 64, 24, 2, queries = 4, batch = 2 } } do
          local T, D, heads, p = unpack(c, 1, 4)
          local narrow, wide, queries = {}, {}, c.queries or 2
          for i = 1, 4 do
            narrow[i] = ms.randn({ c.batch or 1, i % 4 < 2 and queries or heads, T, D }):to 'bf16'
            wide[i] = narrow[i]:to 'f32'
          end
          local opts = { is_causal = true, dropout_p = p, enable_gqa = heads < queries or nil }
          local found, expected = run(narrow, opts), run(wide, opts)
          for i = 1, 4 do
            local error = (found[i]:to 'f32' - expected[i]):abs():max():item()
            local most = 0.01 * expected[i]:abs():max():item()
            assert(error < most, ('%d %d %d: %g'):format(T, D, i, error))
          end
        end"]])
      assert.equal(0, code, output)
    end)
  end

  it('sums the columns of tall matrices', function()
    local output, code = scripts.shell('env ' .. simulated .. [[ luajit -e "
      local ms = require 'moonshard'
      for _, c in ipairs { { 900, 40, 'bf16', 4e-3 }, { 5000, 13, 'f32', 1e-6 } } do
        local x = ms.randn({ c[1], c[2] }):to(c[3])
        local expected = x:to('f64'):transpose(1, 2):contiguous():sum(2)
        local error = (x:sum(1):to 'f64' - expected):abs():max():item()
        assert(error <= c[4] * expected:abs():max():item(), ('%s: %g'):format(c[3], error))
      end"]])
    assert.equal(0, code, output)
  end)
end)
