-- lua/moonshard/internal/figures.lua: what tables of figures have not
local ms = require 'moonshard'
local checks = require 'support.checks'

describe('a table of figures', function()
  it('has no others', function()
    local model = ms.fsdp.FSDP(ms.nn.Linear(2, 2), { process_group = ms.dist.fake { world = 2 } })
    for owner, t in pairs {
      ['memory()'] = ms.memory(), ['memory().live'] = ms.memory().live,
      ['memory().peak'] = ms.memory().peak, ['dist.counts()'] = ms.dist.counts(),
      ['plan()'] = model:plan(),
    } do
      checks.raises('KeyError', owner .. " has no 'mastrs'", function() return t.mastrs end)
      assert.is_nil(t[1])
      for name, value in pairs(t) do
        assert.equal(value, t[name])
      end
    end
    checks.raises('KeyError', "did you mean 'masters'?", function()
      return model:plan({ dry_run = true }).mastrs
    end)
  end)
end)
