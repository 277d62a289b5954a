-- every public Lua function, called wrongly: a typed error each, and nothing left behind
--
-- MS_MISUSE_SEED and MS_MISUSE_COUNT (random mixtures for each function) make longer runs.
local child = require 'support.child'
local surface = require 'support.surface'

local PARTS = 4 -- processes, so that a crash costs little of the rest

describe('misuse', function()
  it('knows every public function', function()
    local signatures = require 'support.signatures'
    local names = {}
    for _, entry in ipairs(surface.entries()) do
      names[entry.name] = true
    end
    for name in pairs(signatures.of) do
      assert.is_true(names[name], name .. ' is described and does not exist')
    end
  end)

  for part = 0, PARTS - 1 do
    it(('is told with an error of the library, part %d'):format(part + 1), function()
      local seed, count = os.getenv 'MS_MISUSE_SEED' or 1, os.getenv 'MS_MISUSE_COUNT' or 10
      local lines, last = child.run('spec/support/misuse.lua', { seed, count, part, PARTS }, 600)
      assert.equal('done', table.remove(lines), 'ended in: ' .. last)
      assert.same({}, lines)
    end)
  end
end)
