-- An allocation that fails is an error after a collection. A call that is repeated must not hide an
-- earlier failure on a device: the result would be NaN without an error.
local ms = require 'moonshard'
local shell = require 'support.shell'

describe('an allocation that fails', function()
  it('is OutOfMemory after a collection', function()
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

  -- Each allocation of a training script fails in turn, also those of the device.
  it('is an error or has no effect', function()
    local folder = shell.make_folder()
    shell.write(folder .. '/train.lua', [[
      local ms = require 'moonshard'
      ms.manual_seed(3)
      ms.capture_warnings(function()
        local model = ms.fsdp.FSDP(ms.nn.Linear(64, 64),
          { mixed_precision = { param_dtype = 'bf16' } })
        local optimizer = ms.optim.SGD(model:parameters(), { lr = 0.01 })
        ms.scope(function() model(ms.randn(64, 64)):to('f32'):pow(2):mean():backward() end)
        optimizer:step()
        io.write(model:hash())
      end)
    ]])
    local script = ('luajit %s/train.lua'):format(folder)
    local code, whole = shell.run('.', 'env MS_DEVICE=fake ' .. script)
    assert.equal(0, code, whole)
    local failed = 0
    for k = 4, 18 do
      local out
      code, out = shell.run('.', ('env MS_DEVICE=fake MS_FAIL_ALLOC=%d %s'):format(k, script))
      failed = failed + code
      assert.truthy(code == 0 and out == whole or out:find('OutOfMemory: ', 1, true), out)
    end
    assert.is_true(failed > 3)
    shell.remove_folder(folder)
  end)

  it('is an error of the next call on a device', function()
    local folder = shell.make_folder()
    shell.write(folder .. '/waits.lua', [[
      local ms = require 'moonshard'
      local product = ms.randn(64, 64):matmul(ms.randn(64, 64))
      local read, e = pcall(function() return product:sum():item() end)
      local again, number = pcall(function() return product:sum():item() end)
      io.write(read and 'read' or e.message, '\n', again and tostring(number) or 'an error')
    ]])
    local found = 0
    for k = 4, 7 do
      local _, out = shell.run('.', ('env MS_DEVICE=fake MS_FAKE_SEED=2 MS_FAIL_ALLOC=%d luajit %s')
        :format(k, folder .. '/waits.lua'))
      local first, last = out:match('^(.-)\n(.-)%s*$')
      if last == 'nan' then
        assert.truthy(first:find('matmul: no memory for ', 1, true), out)
        found = found + 1
      end
    end
    assert.is_true(found > 0)
    shell.remove_folder(folder)
  end)
end)
