-- What wrapping and planning cost grows as the number of units does, no faster.
local ms = require 'moonshard'
local nn, fsdp = ms.nn, ms.fsdp

local EACH = 100 -- instructions between two looks of the hook

-- Instructions that `fn` takes, in steps of EACH, and what it returns.
local function counted(fn)
  local n, compiles = 0, jit.status()
  jit.off()
  debug.sethook(function() n = n + 1 end, '', EACH)
  local result = fn()
  debug.sethook()
  if compiles then
    jit.on()
  end
  return n, result
end

-- Of each thing that is done to a model of so many units.
local function costs_of(n_units)
  local costs = {}
  local plain, model
  costs.making, plain = counted(function()
    local layers = {}
    for i = 1, n_units do
      layers[i] = nn.Linear(2, 2)
    end
    return nn.Sequential(layers)
  end)
  costs.wrapping, model = counted(function()
    return fsdp.FSDP(plain, {
      process_group = ms.dist.fake { world = 4 },
      auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Linear },
    })
  end)
  local function cost_of(what, fn)
    costs[what] = counted(fn)
  end
  cost_of('a dry run', function() model:plan { dry_run = true } end)
  cost_of('units', function() model:units() end)
  cost_of('the first use', function() model:plan() end)
  cost_of('parameters', function() model:parameters() end)
  return costs
end

describe('a model of many units', function()
  local few, many = costs_of(100), costs_of(400)
  for what, cost in pairs(few) do -- order does not matter: each is a test
    it('takes four times the work of a fourth of them, for ' .. what, function()
      assert.truthy(cost > 0 and many[what] < 5 * cost, ('%d and %d'):format(cost, many[what]))
    end)
  end
end)
