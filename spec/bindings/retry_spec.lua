-- what is called again when memory was out, and what is not
local B = require 'moonshard_ffi'
local library = require 'moonshard_ffi.library'
local ms = require 'moonshard'
local shell = require 'support.shell'

local C, calls = B.C, B.calls

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
  it('is made again where that does nothing else', function()
    local x, y = ms.randn(2, 3), ms.randn(3, 2)
    local before, again = x:hash() .. y:hash(), callers()
    for name, given in pairs {
      add = { x, x }, matmul = { x, y }, sum = { x, 1, false }, dropout = { x, 0.5, 3ULL, 1 },
      tensor_full = { 0, 1, B.new('int64_t[1]', 4), 2 },
    } do
      assert.is_true(again[name], name)
      local held, seed = live(), C.ms_seed_get()
      local first = calls[name](unpack(given))
      local once = live()
      local second = calls[name](unpack(given))
      assert.equal(first:hash(), second:hash(), name)
      second:release()
      assert.same(once, live(), name)
      first:release()
      assert.same(held, live(), name)
      assert.equal(seed, C.ms_seed_get(), name)
      assert.equal(before, x:hash() .. y:hash(), name)
    end
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
