-- lua/moonshard/dist.lua: two models in two groups of ranks.
local ms = require 'moonshard'
local checks = require 'support.checks'
local runs = require 'support.runs'
local scripts = require 'support.scripts'

local nn, fsdp, optim = ms.nn, ms.fsdp, ms.optim

-- Trains on batches that depend on the step and the rank in the group. Returns the results as text.
local function train(group, place, width, steps, after_step)
  ms.manual_seed(7)
  local net = nn.Sequential { nn.Linear(4, width), nn.Dropout(0.5), nn.Linear(width, 2) }
  local model = fsdp.FSDP(net, { process_group = group })
  local opt = optim.AdamW(model:parameters(), { lr = 0.1 })
  for step = 1, steps do
    ms.scope(function()
      model(ms.full({ 2, 4 }, 0.1 * step + place)):sum():backward()
    end)
    model:clip_grad_norm_(1)
    opt:step()
    opt:zero_grad()
    after_step(step)
  end
  return ('rank %d of %d: %s'):format(model.rank, model.world_size, runs.hash_of(model))
end

local function nothing() end

-- By color: the width of the model, the steps, and after how many of them all ranks meet.
local TASKS = { [0] = { 5, 6, 2 }, { 7, 3, 1 } }

describe('sub-groups', function()
  it('train two models as two jobs would', function()
    local alone = {}
    for color = 0, 1 do
      alone[color] = runs.reports(2, function(rank)
        return train(nil, rank, TASKS[color][1], TASKS[color][2], nothing)
      end)
    end
    local together, cause = runs.reports(4, function(rank)
      local color = rank % 2
      local width, steps, every = unpack(TASKS[color])
      local group = ms.dist.split(color)
      return train(group, math.floor(rank / 2), width, steps, function(step)
        if step % every == 0 then
          assert(ms.dist.all_reduce(ms.full({ 1 }, rank)):item() == 6)
        end
      end)
    end)
    assert.is_nil(cause)
    for rank = 0, 3 do
      assert.equal(alone[rank % 2][math.floor(rank / 2)], together[rank])
    end
    assert.not_equal(together[0], together[1])
  end)

  it('report a difference to all ranks', function()
    local reports, cause = runs.reports(4, function(rank)
      local ok, err = pcall(train, ms.dist.split(rank % 2), 0, rank == 3 and 5 or 6, 1, function()
        ms.dist.barrier()
      end)
      return ok and 'trained' or err.message, not ok and err or nil
    end)
    for rank = 0, 3 do
      assert.matches('the ranks wrapped different models: .* on rank 1 and .* on rank 3',
        reports[rank])
    end
    assert.matches('rank [13] failed: .*the ranks wrapped different models', cause)
  end)

  it('must be the same for a model and nested instances', function()
    ms.dist.spawn(4, function(rank)
      local pair = ms.dist.split(rank % 2)
      local message = "module '0' of Group(rank=%d, size=2, ranks={%d, %d}) inside one of "
        .. 'Group(rank=%d, size=4, ranks={0, 1, 2, 3}) is not supported yet; give both the same '
        .. 'process_group (without one, all ranks are meant)'
      local said = message:format(math.floor(rank / 2), rank % 2, rank % 2 + 2, rank)
      local Linear = ms.nn.Linear
      local wrapped = ms.fsdp.FSDP(Linear(2, 2), { process_group = pair })
      checks.raises('NotImplementedError', said, ms.fsdp.FSDP, ms.nn.Sequential(wrapped))
      checks.raises('NotImplementedError', said, ms.fsdp.FSDP, ms.nn.Sequential(Linear(2, 2)), {
        auto_wrap_policy = ms.fsdp.CustomPolicy(function(m)
          return ms.is(m, Linear) and { process_group = pair }
        end),
      })
      ms.fsdp.FSDP(ms.nn.Sequential(wrapped), { process_group = pair })(ms.ones(1, 2))
    end)
  end)

  it('take batches of a loader over the same ranks', function()
    ms.dist.spawn(4, function(rank)
      local pair = ms.dist.split(rank % 2)
      local function model_over(group)
        return ms.fsdp.FSDP(ms.models.GPT { vocab = 3, layers = 1, heads = 1, width = 4,
          context = 4 }, { process_group = group })
      end
      local function batch_of(group, size)
        return ms.data.Loader { tokens = ms.zeros(80, { dtype = 'i64' }), context = 4, batch = 1,
          process_group = group, world_size = size }:next()
      end
      local own, all = model_over(pair), model_over()
      local pairs_ranks = ('%d, %d'):format(rank % 2, rank % 2 + 2)
      local said = 'FSDP: the batch comes from a data.Loader that deals to ranks %s, but the model '
        .. 'is sharded over ranks %s; give both the same process_group'
      checks.raises('ValueError', said:format(pairs_ranks, '0, 1, 2, 3'), all, batch_of(pair))
      checks.raises('ValueError', said:format('0, 1, 2, 3', pairs_ranks), own, batch_of())
      for world, ranks in pairs {
        [4] = '0, 1, 2, 3', [16] = '0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15',
        [17] = '0, 1, ..., 16',
      } do
        checks.raises('ValueError', said:format(ranks .. ' of a fake group', '0, 1, 2, 3'), all,
          batch_of(ms.dist.fake { rank = rank, world = world }))
      end
      ms.no_grad(function()
        own(batch_of(pair))
        own(batch_of(ms.dist.split(rank % 2))) -- another group of the same ranks
        all(batch_of())
        own(batch_of(nil, 1))
        all(batch_of(nil, 1))
      end)
      local plain = ms.models.GPT { vocab = 3, layers = 1, heads = 1, width = 4, context = 4 }
      plain(batch_of(pair))
    end)
  end)

  it('can be split again; a color below 0 joins none', function()
    local none = ms.dist.split(-1)
    assert.is_false(none)
    for _, call in ipairs { 'all_reduce', 'broadcast' } do
      checks.raises('ValueError', 'this rank is in none of the groups', ms.dist[call], ms.ones(1),
        call == 'broadcast' and 0 or 'sum', none)
    end
    checks.raises('ValueError', 'this rank is in none of the groups', ms.dist.barrier, none)
    checks.raises('ValueError', 'this rank is in none of the groups',
      ms.dist.functional.all_gather, ms.ones(1), none)
    checks.raises('ValueError', 'this rank is in none of the groups', ms.fsdp.FSDP,
      ms.nn.Linear(2, 2), { process_group = none })
    local group = ms.dist.split(0, -5, ms.dist.split(3))
    assert.equal(0, ms.dist.counts(group).barrier)
    checks.raises('TypeError', "'group' is a number, expected a group of ranks", ms.dist.split, 0,
      0, 3)
    checks.raises('ValueError', "'key' is 2147483648, expected a number of 32 bits", ms.dist.split,
      0, 2 ^ 31)
    checks.raises('TypeError', "'color' is nil, expected a whole number", ms.dist.split)
  end)

  it('print each warning once, by their first rank', function()
    scripts.with_script([[
      local color = tonumber(arg[1])
      ms.dist.spawn(4, function(rank)
        local pair = ms.dist.split(math.floor(rank / 2))
        if math.floor(rank / 2) == color then
          local net = ms.nn.Linear(3, 3)
          local model = ms.fsdp.FSDP(net, { process_group = pair })
          model(ms.ones(1, 3))
          ms.fsdp.summon_full_params(model, { offload_to_cpu = true }, function() end)
          local opt = ms.optim.SGD(model:parameters(), { lr = 0.1 })
          opt:add_param_group { params = ms.ones(1, { requires_grad = true }), lr = 0.2 }
          opt:set_lr(0.3)
          local all = ms.nn.Linear(3, 3)
          ms.fsdp.FSDP(all, { process_group = pair, ignored_modules = { all } })
        end
        ms.dist.barrier()
      end)]], function(path)
      for color = 0, 1 do
        local output, code = scripts.shell(('luajit %s %d'):format(path, color))
        assert.equal(0, code, output)
        for _, said in ipairs {
          'redundant copies on every rank', 'Trying to ignore the top%-level module',
          'one rate to all groups, though',
        } do
          local _, n = output:gsub(said, '')
          assert.equal(1, n, said .. '\n' .. output)
        end
      end
    end)
  end)
end)
