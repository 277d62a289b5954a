-- Two ranks that were refused a model, as theirs differ, and use it again.
local ms = require 'moonshard'
local nn, fsdp = ms.nn, ms.fsdp
local checks = require 'support.checks'

local function wrapped(module, opts)
  local model
  ms.capture_warnings(function() model = fsdp.FSDP(module, opts) end)
  return model
end

describe('two ranks that use a refused model again', function()
  it('are refused until they have the same', function()
    ms.dist.spawn(2, function(rank)
      ms.manual_seed(1)
      local dropout = nn.Dropout(rank == 0 and 0.1 or 0.9)
      local model = wrapped(nn.Sequential { nn.Linear(4, 4), dropout, nn.Linear(4, 4) })
      local told = 'the ranks wrapped different models'
      for _ = 1, 2 do
        checks.raises('CommError', told, model, ms.ones(2, 4))
      end
      checks.raises('CommError', told, model.hash, model)
      dropout.p = 0.1
      for _ = 1, 2 do
        model(ms.ones(2, 4)):sum():backward()
      end
    end)
  end)

  it('are told of modules as well, when they load one state dict as they were told', function()
    ms.dist.spawn(2, function(rank)
      local function net()
        return nn.Sequential { nn.Linear(4, 4), nn.Dropout(rank == 0 and 0.1 or 0.9) }
      end
      ms.manual_seed(1 + rank)
      local model = wrapped(net(), { sharding_strategy = 'NO_SHARD' })
      checks.raises('CommError', 'replicas of parameter', model, ms.ones(2, 4))
      ms.manual_seed(7)
      model:load_state_dict(net():state_dict())
      checks.raises('CommError', 'the ranks wrapped different models', model, ms.ones(2, 4))
    end)
  end)
end)
