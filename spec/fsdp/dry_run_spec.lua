-- model:plan { dry_run = true }: what the real run takes, and no trace of having been asked.
local ffi = require 'ffi'
local ms = require 'moonshard'
local json = require 'moonshard.json'
local runs = require 'support.runs'

local nn, fsdp = ms.nn, ms.fsdp

ffi.cdef 'int setenv(const char *name, const char *value, int overwrite);'

local function wrapped(group)
  return fsdp.FSDP(nn.Sequential { nn.Linear(30, 40), nn.Linear(40, 50) }, {
    process_group = group, auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Linear },
  })
end

local function without_asking(plan)
  plan.same_numerics = nil
  return json.encode(plan)
end

-- On cards with memories of their own; on a device of this process, if it has one.
local function on_cards(fn)
  return runs.reports(2, function(rank)
    ffi.C.setenv('MS_DEVICE', 'fake', 1)
    ffi.C.setenv('MS_FAKE_CARDS', 'each', 1)
    return fn(rank)
  end)
end

describe('a dry run', function()
  for name, group_of in pairs {
    ['a fake group'] = function(rank) return ms.dist.fake { rank = rank, world = 2 } end,
    ['all ranks'] = function() return nil end,
  } do -- order does not matter: each is a test
    it(('plans the slots that cards will have, whoever opens them, for %s'):format(name), function()
      local before = on_cards(function(rank)
        local model = wrapped(group_of(rank))
        local dry = without_asking(model:plan { dry_run = true })
        assert(dry == without_asking(model:plan()))
        return dry
      end)
      local after = on_cards(function(rank)
        ms.zeros(1)
        return without_asking(wrapped(group_of(rank)):plan { dry_run = true })
      end)
      assert.same(before, after)
    end)
  end
end)
