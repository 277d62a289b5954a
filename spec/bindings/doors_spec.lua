-- C entry points answer what no caller may pass with errors; see spec/support/doors.lua
local child = require 'support.child'

describe('public C functions', function()
  it('answer NULL, freed handles and numbers that are none with errors', function()
    local lines, last = child.run('spec/support/doors.lua', {}, 120)
    assert.equal('done', table.remove(lines), 'ended in: ' .. last)
    assert.truthy(table.remove(lines):match('^%d+ calls of %d+ functions$'))
    assert.same({}, lines)
  end)
end)
