-- One rank fails in a call that all ranks make. Every rank and the job report which rank failed,
-- and its error.
local ms = require 'moonshard'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim
local runs = require 'support.runs'
local shell = require 'support.shell'
local wrap = require 'support.wrap'

local Odd = nn.Module.extend('my.Odd')

function Odd:init()
  self.l = self:child('l', nn.Linear(6, 6))
end

function Odd:forward(x)
  if self.fails == 'forward' then
    error('an odd forward')
  end
  local y = self.l(x)
  if self.fails == 'backward' then
    y:hook(function() error('an odd gradient') end)
  end
  return y
end

local folder = runs.folder() -- of checkpoints

local function save(opts)
  return function(x)
    ms.checkpoint.save(x.fails and opts.root or folder, 'a',
      { step = 1, model = x.model, config = x.fails and opts.config or {} })
  end
end

-- { name, the call, text of the error }
local FAILURES = {
  { 'a forward', function(x)
    x.odd.fails = x.fails and 'forward'
    x.model(ms.ones(2, 4))
  end, 'an odd forward (in forward of 1.0 (my.Odd)' },
  { 'an input', function(x)
    x.model(ms.ones(2, x.fails and 5 or 4)):sum():backward()
  end, 'x has shape (2, 5)' },
  { "a parameter's field", function(x)
    if x.fails then
      x.odd.l.weight = ms.ones(6, 6)
    end
    x.model(ms.ones(2, 4))
  end, "Cannot writeback when the parameter shape changes: '1.0.l.weight' of 1.0.l" },
  { 'a hook of backward', function(x)
    local y = x.model(ms.ones(2, 4))
    if x.fails then
      y:hook(function() error('an odd hook') end)
    end
    y:sum():backward()
  end, 'an odd hook' },
  { 'a hook of backward over replicas', function(x) -- before anything was reduced
    x.odd.fails = x.fails and 'backward'
    x.model(ms.ones(2, 4)):sum():backward()
  end, 'an odd gradient', strategy = 'NO_SHARD' },
  { 'summon_full_params', function(x)
    fsdp.summon_full_params(x.model, nil, function()
      assert(not x.fails, 'an odd look')
    end)
  end, 'an odd look' },
  { 'apply', function(x)
    x.model:apply(function() assert(not x.fails, 'an odd apply') end)
  end, 'an odd apply' },
  { 'no_sync', function(x)
    x.model:no_sync(function()
      assert(not x.fails, 'an odd pause')
      x.model(ms.ones(2, 4)):sum():backward()
    end)
  end, 'an odd pause' },
  { 'load_state_dict', function(x)
    local sd = x.model:state_dict()
    if x.fails then
      sd['2.bias'] = ms.ones(7)
    end
    x.model:load_state_dict(sd)
  end, 'size mismatch for 2.bias', 'together' },
  { 'the config of a checkpoint', save { root = folder, config = { print } }, 'no JSON form',
    'together' },
  { 'the path of a checkpoint', function(x)
    save {}(x)
    ms.checkpoint.load(x.fails and folder .. '/none' or folder .. '/a', { model = x.model })
  end, 'none/manifest.json: No such file', 'together' },
}

-- Errors of both ranks and of the job when rank `who` fails in `call`. With `catches`, that rank
-- catches it and makes a step.
local function run(who, call, strategy, catches)
  return runs.reports(2, function(rank)
    ms.manual_seed(1)
    local x = { fails = rank == who, odd = Odd() }
    local module = nn.Sequential { nn.Linear(4, 6), nn.Sequential { x.odd }, nn.Linear(6, 2) }
    x.model = wrap(module, {
      auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Sequential }, use_orig_params = true,
      sharding_strategy = strategy,
    })
    local opt = optim.SGD(x.model:parameters(), { lr = 0.1 })
    local function step()
      x.model(ms.ones(2, 4)):sum():backward()
      opt:step()
      opt:zero_grad()
    end
    step()
    local good, err = pcall(function()
      local called, why = pcall(call, x)
      if not called and not catches then
        error(why, 0)
      end
      x.odd.fails = nil
      step()
      ms.dist.barrier()
    end)
    if good then
      return 'ok'
    end
    return ms.errors.describe(err), err
  end)
end

describe('a failure of one rank in', function()
  teardown(function()
    shell.remove_folder(folder)
  end)

  for _, line in ipairs(FAILURES) do
    local what, call, says, together = unpack(line)
    it(what .. ' is reported with its rank', function()
      for who = 0, 1 do
        local reports, cause = run(who, call, line.strategy)
        assert.truthy(cause:find(('rank %d failed: '):format(who), 1, true) -- either may come first
          or cause:find(('rank %d had failed before its call '):format(who), 1, true), cause)
        assert.truthy(cause:find(says, 1, true), cause)
        if not together then -- other errors are part of the collective's result
          assert.truthy(reports[1 - who]:find(says, 1, true), reports[1 - who])
        end
      end
    end)

    it(what .. (together and ' changes nothing on any rank' or ' is reported when it was caught'),
      function()
        for who = 0, 1 do
          local reports, cause = run(who, call, line.strategy, true)
          if together then
            assert.same({ [0] = 'ok', 'ok' }, reports)
            assert.is_nil(cause)
          else
            assert.truthy(cause:find(says, 1, true), cause)
            assert.truthy(cause:find(('rank %d'):format(who), 1, true), cause)
            assert.truthy(reports[1 - who]:find(says, 1, true), reports[1 - who])
          end
        end
      end)
  end
end)
