-- what is called again when memory was out, and what is not
local B = require 'moonshard_ffi'
local library = require 'moonshard_ffi.library'
local ms = require 'moonshard'
local unary = require 'moonshard.unary'
local shell = require 'support.shell'

local C, calls = B.C, B.calls

local F32, F64 = 0, 1

local function shape(...)
  return B.new('int64_t[?]', select('#', ...), ...)
end

-- With what each of them is called.
local function arguments_of(folder)
  local x, y, square, row = ms.randn(2, 3), ms.randn(2, 3), ms.randn(3, 3), ms.randn(3)
  local head, packed = ms.randn(1, 1, 2, 4), ms.randn(1, 2, 12)
  local ids = ms.tensor({ 1, 0 }, { dtype = 'i64' })
  local doubles = B.new('double[2]', 1, 2)
  local list, n = B.array({ x, y }, 'tensors')
  shell.write(folder .. '/tokens', ('x'):rep(16))
  ms.checkpoint.write_safetensors(folder .. '/file', { x = x })
  local file = B.new('ms_safetensors *[1]')
  B.check(C.ms_safetensors_open(file, folder .. '/file'))
  local arguments = {
    tensor_empty = { F32, 1, shape(0) },
    tensor_full = { F32, 1, shape(4), 2 },
    tensor_from_doubles = { F64, 1, shape(2), doubles, 2 },
    tensor_meta = { F32, 1, shape(0) },
    tensor_arange = { F32, 0, 1, 5 },
    tensor_detach = { x },
    safetensors_get = { file[0], 0 },
    data_map = { folder .. '/tokens', 4 },
    add = { x, y }, sub = { x, y }, mul = { x, y }, div = { x, y },
    affine = { x, 2, 1 }, with_number = { x, 2, 0 }, reciprocal = { x }, pow = { x, 2 },
    gelu = { x, false }, softplus = { x, 1, 20 }, compare = { x, y, 0 },
    compare_number = { x, 0, 0 }, isnan = { x }, isinf = { x }, isfinite = { x },
    maximum = { x, y }, minimum = { x, y }, clamp = { x, 0, 1 }, softmax = { x },
    where = { x:gt(0), x, y },
    matmul = { x, square }, linear = { x, square, row }, linear_gelu = { x, square, row, false },
    embedding = { square, ids }, layer_norm = { x, row, row, 1e-5 }, log_softmax = { x },
    cross_entropy = { x, ids, -100, 0 }, mse_loss = { x, y, 0 },
    attention = { head, head, head, true, 0 }, attention_packed = { packed, 1, true, 0 },
    dropout = { x, 0.5, 3ULL, 1 },
    sum = { x, 1, false }, mean = { x, 1, false },
    reshape = { x, 1, shape(6) }, permute = { x, 2, B.new('int32_t[2]', 1, 0) },
    expand = { row, 2, shape(2, 3) }, flip = { x, 1 },
    narrow = { x, 0, 0, 1 }, select = { x, 0, 0 }, cat = { list, n, 0 }, cast = { x, F64 },
    clone = { x },
  }
  for _, name in ipairs(unary.functions) do
    arguments[name] = { x }
  end
  return arguments, { x, y, square, row, head, packed, ids }, file[0]
end

local function hashes(tensors)
  local out = {}
  for i, t in ipairs(tensors) do
    out[i] = t:hash()
  end
  return table.concat(out)
end

local function live()
  local m = ms.memory()
  return { m.live_handles, m.live.activation, m.live.parameter }
end

-- Names of the callers that call again, and of the others.
local function callers()
  local again, once = {}, {}
  local text = shell.read(library.folder .. '/generated/moonshard/calls.lua')
  for name, body in text:gmatch('\nfunction M%.([%w_]+)(.-)\nend\n') do
    again[name] = body:find('if status ~= 0 then again(status, ', 1, true) and true or nil
    once[name] = body:find('if status ~= 0 then failed(status) end', 1, true) and true or nil
    assert.is_true(again[name] ~= once[name], name)
  end
  return again, once
end

describe('a call for which memory is out', function()
  it('is made once where it does more than make a tensor', function()
    local _, once = callers()
    for _, name in ipairs {
      'comm_all_reduce', 'comm_broadcast', 'all_reduce', 'all_gather', 'fsdp_tree_hash',
      'fsdp_tree_clip_grad_norm', 'fsdp_unit_gather', 'fsdp_unit_gather_all', 'clip_grad_norm',
      'tensor_item', 'tensor_to_doubles', 'tensor_copy', 'tensor_add_scaled', 'tensor_fill',
      'tensor_init', 'backward', 'checkpoint_read', 'data_windows', 'optim_state',
    } do
      assert.is_true(once[name], name)
    end
  end)

  it('is made again where that does nothing else', function()
    local folder = shell.make_folder()
    local arguments, operands, file = arguments_of(folder)
    local before, called = hashes(operands), {}
    for name, given in pairs(arguments) do
      local held, seed = live(), C.ms_seed_get()
      local first = calls[name](unpack(given))
      local once = live()
      local second = calls[name](unpack(given))
      if name ~= 'tensor_meta' then
        assert.equal(first:hash(), second:hash(), name)
      end
      second:release()
      assert.same(once, live(), name)
      first:release()
      assert.same(held, live(), name)
      assert.equal(seed, C.ms_seed_get(), name)
      assert.equal(before, hashes(operands), name)
      called[name] = true
    end
    C.ms_safetensors_close(file)
    shell.remove_folder(folder)
    local again = callers()
    for name in pairs(called) do
      assert.is_true(again[name], name)
    end
  end)

  it('frees what could be collected, also where it is not made again', function()
    local x, all = ms.ones(2 ^ 20), ms.dist.fake { world = 2 ^ 31 - 1 } -- of 2^53 bytes
    local function fail()
      for _ = 1, 10 do
        ms.ones(2)
      end
      return ms.dist.functional.all_gather(x, all)
    end
    ms.collect()
    local before = ms.memory().live_handles
    collectgarbage('stop')
    local ok, err = pcall(fail)
    local after = ms.memory().live_handles
    collectgarbage('restart')
    assert.is_false(ok)
    assert.equal('OutOfMemory', err.kind)
    assert.equal(before, after)
  end)

  -- Every allocation fails in turn, of the items of a device, too.
  it('is an error, or nobody sees it', function()
    local folder = shell.make_folder()
    shell.write(folder .. '/train.lua', [[
      local ms = require 'moonshard'
      ms.manual_seed(3)
      ms.capture_warnings(function()
        local model = ms.fsdp.FSDP(ms.nn.Linear(64, 64),
          { mixed_precision = { param_dtype = 'bf16' } })
        local optimizer = ms.optim.SGD(model:parameters(), { lr = 0.01 })
        local x = ms.randn(64, 64)
        for _ = 1, 2 do
          ms.scope(function()
            local loss = model(x):to('f32'):pow(2):mean()
            loss:backward()
            optimizer:step()
            io.write(('%.9g '):format(loss:item()))
          end)
          optimizer:zero_grad()
        end
        io.write(model:hash())
      end)
    ]])
    local script = ('luajit %s/train.lua'):format(folder)
    local code, whole = shell.run('.', 'env MS_DEVICE=fake ' .. script)
    assert.equal(0, code, whole)
    local failed = 0
    for k = 4, 24 do
      local out
      code, out = shell.run('.', ('env MS_DEVICE=fake MS_FAIL_ALLOC=%d %s'):format(k, script))
      if code == 0 then
        assert.equal(whole, out, 'allocation ' .. k)
      else
        assert.truthy(out:find('OutOfMemory: ', 1, true), out)
        failed = failed + 1
      end
    end
    assert.is_true(failed > 5)
    shell.remove_folder(folder)
  end)

  -- What a device did before it is told to who waits next, and once: made again the tensor would
  -- be there, and what the product should have been NaN in silence.
  it('is not made again for what a device did before', function()
    local folder = shell.make_folder()
    shell.write(folder .. '/waits.lua', [[
      local ms = require 'moonshard'
      local product = ms.randn(64, 64):matmul(ms.randn(64, 64))
      local made, e = pcall(ms.tensor, { 1, 2 })
      local read, number = pcall(function() return product:sum():item() end)
      io.write(made and 'made' or e.message, '\n', read and tostring(number) or 'an error')
    ]])
    local told = 0
    for k = 4, 7 do
      local _, out = shell.run('.', ('env MS_DEVICE=fake MS_FAKE_SEED=2 MS_FAIL_ALLOC=%d luajit %s')
        :format(k, folder .. '/waits.lua'))
      local first, last = out:match('^(.-)\n(.-)%s*$')
      if last == 'nan' then
        assert.truthy(first:find('matmul: no memory for ', 1, true), out)
        told = told + 1
      end
    end
    assert.is_true(told > 0)
    shell.remove_folder(folder)
  end)
end)
