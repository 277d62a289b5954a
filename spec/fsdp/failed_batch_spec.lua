-- A script catches the error of a batch. An error of one rank is an error of all in their next
-- collective; a batch that fails on all ranks can be skipped.
local ms = require 'moonshard'
local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim
local runs = require 'support.runs'
local wrap = require 'support.wrap'

local BAD, BATCHES = 2, 4

local function model_of(strategy)
  ms.manual_seed(1)
  return wrap(nn.Sequential { nn.Linear(2, 2), nn.Linear(2, 2) },
    { auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Linear }, sharding_strategy = strategy })
end

local function bad()
  error('a bad batch', 0)
end

-- The result of `model`, which fails where `fails` names a place.
local function result(model, batch, fails)
  local hook = fails == 'forward' and model[2]:register_forward_hook(bad)
  local ok, y = pcall(model, ms.full({ 1, 2 }, batch))
  if hook then
    hook:remove()
  end
  assert(ok, y)
  if fails == 'backward' then
    y:hook(bad)
  end
  return y
end

local function backward(model, batch, fails)
  result(model, batch, fails):sum():backward()
end

-- Ways to use a batch.
local WAYS = {
  ['that is stepped'] = function(model, batch, fails, opt)
    backward(model, batch, fails)
    opt:step()
    opt:zero_grad()
  end,
  ['that is added'] = backward, -- with no collective before the next batch
  ['of no_sync'] = function(model, batch, fails)
    model:no_sync(backward, model, batch, fails)
    backward(model, batch)
  end,
}

-- Trains over batches and skips those that fail. Returns the number of good ones and the last
-- error. `fails_at(batch)` names the place where this rank fails, or nil.
local function train(strategy, way, fails_at)
  local model, good, why = model_of(strategy), 0, ''
  local opt = optim.SGD(model:parameters(), { lr = 0.1 })
  for batch = 1, BATCHES do
    local ok, err = pcall(way, model, batch, fails_at(batch), opt)
    good = good + (ok and 1 or 0)
    why = ok and why or ms.errors.describe(err)
  end
  return good, why, model
end

describe('a batch', function()
  for _, strategy in ipairs { 'FULL_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD' } do
    for name, way in pairs(WAYS) do
      for _, place in ipairs { 'forward', 'backward' } do
        local function at_bad(batch) return batch == BAD and place end

        it(('%s fails on all ranks when one fails in %s, with %s'):format(name, place, strategy),
          function()
            local reports, cause = runs.reports(2, function(rank)
              local good, why = train(strategy, way, rank == 1 and at_bad or function() end)
              return ('%d good, %s'):format(good, why)
            end)
            for _, report in ipairs { reports[0], reports[1] } do
              assert.truthy(report:find('^1 good, .*CommError: '), report)
              assert.truthy(report:find('rank 1 failed: ', 1, true), report)
            end
            assert.truthy(cause:find('rank 1 failed: ', 1, true), cause)
            assert.truthy(cause:find('a bad batch', 1, true), cause)
          end)

        it(('%s that fails in %s on all ranks can be skipped, with %s'):format(name, place,
          strategy), function()
          ms.dist.spawn(2, function()
            local good, why, model = train(strategy, way, at_bad)
            assert.equal(BATCHES - 1, good, why)
            assert.equal('a bad batch', why:match('a bad batch'))
            model:hash()
          end)
        end)
      end
    end
  end

  it('of replicas can be skipped when ranks fail in different places', function()
    ms.dist.spawn(2, function(rank)
      local good = train('NO_SHARD', WAYS['that is stepped'], function(batch)
        return batch == BAD and (rank == 0 and 'forward' or 'backward')
      end)
      assert.equal(BATCHES - 1, good)
    end)
  end)

  for name, call in pairs {
    ['a barrier'] = ms.dist.barrier,
    ['a reduction of numbers'] = function() ms.dist.all_reduce(ms.ones(1)) end,
    ['another model'] = function() backward(model_of('FULL_SHARD'), 1) end,
  } do
    it(('of replicas that fails on one rank is reported in %s'):format(name), function()
      local reports, cause = runs.reports(2, function(rank)
        local model = model_of('NO_SHARD')
        backward(model, 1)
        local ok, err = pcall(backward, model, 2, rank == 1 and 'backward')
        if rank == 1 then
          assert(not ok and err == 'a bad batch', err)
          ok, err = pcall(call)
        end
        return ok and 'ok' or ms.errors.describe(err)
      end)
      for _, report in ipairs { reports[0], reports[1] } do
        assert.truthy(report:find('rank 1 failed: backward: a bad batch', 1, true), report)
      end
      assert.truthy(cause:find('rank 1 failed: ', 1, true), cause)
    end)
  end
end)
