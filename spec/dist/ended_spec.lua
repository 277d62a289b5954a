-- runtime/job/dist.c: ranks are compared when a script ends without dist.leave().
local scripts = require 'support.scripts'

local STARTS = { 'luajit', 'bindings/moonshard run -n 4', 'bindings/moonshard run -n 4 luajit' }

-- Two ranks of four train a model each; rank 3 has the learning rate `rate`.
local function training(rate, ending)
  return ([[
    local world = ms.dist.init { ranks = 4 }
    local pair = ms.dist.split(world.rank %% 2)
    local model = ms.fsdp.FSDP(ms.nn.Linear(4, 4), { process_group = pair })
    local opt = ms.optim.SGD(model:parameters(), { lr = world.rank == 3 and %s or 0.1 })
    model(ms.ones(2, 4)):sum():backward()
    opt:step()
    ms.dist.barrier() -- all have stepped: what follows is the end alone
    %s
  ]]):format(rate, ending)
end

local function runs(start, code, fn)
  scripts.with_script(code, function(path)
    local output, status = scripts.shell(('timeout 60 %s %s'):format(start, path))
    fn(status, output)
  end)
end

describe('a rank that ends without dist.leave', function()
  for _, start in ipairs(STARTS) do
    for _, ending in ipairs { '', 'os.exit(0)', 'os.exit(0, true)', 'ms.dist.exit(0)' } do
      it(('is compared with its group: %s, %s'):format(start, ending), function()
        runs(start, training('0.2', ending), function(status, output)
          assert.equal(1, status, output)
          assert.matches('the ranks differ: lr of step of SGD is 0.[12] on rank [13] and 0.[12] on '
            .. 'rank [13] %(found when they had left%)', output)
        end)
      end)
    end
  end

  it('exits with 0 when the ranks agree', function()
    for _, ending in ipairs { '', 'os.exit(0)' } do
      runs('luajit', training('0.1', ending), function(status, output)
        assert.equal(0, status, output)
        assert.falsy(output:find('differ', 1, true), output)
      end)
    end
  end)

  it('keeps its exit code, and is not compared', function()
    runs('luajit', training('0.2', 'os.exit(world.rank == 3 and 7 or 0)'), function(status, output)
      assert.equal(7, status, output)
      assert.matches('rank 3 exited with code 7', output)
    end)
  end)
end)
