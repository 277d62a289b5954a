-- An allocation that fails on a device is an error. A call that is repeated after a collection must
-- not hide it: the result would be NaN without an error.
local shell = require 'support.shell'

describe('an allocation that fails on a device', function()
  it('is an error of the next call', function()
    local folder = shell.make_folder()
    shell.write(folder .. '/waits.lua', [[
      local ms = require 'moonshard'
      local product = ms.randn(64, 64):matmul(ms.randn(64, 64))
      local made, e = pcall(ms.tensor, { 1, 2 })
      local read, number = pcall(function() return product:sum():item() end)
      io.write(made and 'made' or e.message, '\n', read and tostring(number) or 'an error')
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
