-- lua/moonshard/dist/init.lua: two models in two groups of ranks.
local ms = require 'moonshard'
local checks = require 'support.checks'
local runs = require 'support.runs'
local scripts = require 'support.scripts'
local wrap = require 'support.wrap'
local merged = require('moonshard.base.util').merged

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

  -- Pairs of ranks train an expert each; the layers around it are those of all ranks. Two plain
  -- models, one a pair, share the averages of the outer layers' gradients.
  it('shard experts inside a model over all ranks', function()
    local Expert = nn.Module.extend 'my.Expert'
    function Expert:init()
      self.a, self.expert, self.b = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
    end
    function Expert:forward(x) return self.b(self.expert(self.a(x):tanh()):tanh()) end
    local function made()
      ms.manual_seed(1)
      return Expert():materialize()
    end
    local function loss(model, rank, k)
      return model(ms.full({ 2, 4 }, 0.3 * rank + 0.1 * k)):square():sum()
    end
    local function plain_step(models)
      local squares = 0
      for rank = 0, 3 do
        for k = 1, 2 do loss(models[rank % 2], rank, k):backward() end
      end
      for name, p in models[0]:named_parameters() do
        local q, is_expert = models[1]:get_parameter(name), name:match '^expert'
        local both = (p:grad() + q:grad()) / 4
        for _, each in ipairs { p, q } do
          each:set_grad(is_expert and each:grad() / 2 or both:clone())
          squares = squares + each:grad():square():sum():item() / (is_expert and 1 or 2)
        end
      end
      return math.sqrt(squares)
    end
    ms.dist.spawn(4, function(rank)
      local pair = ms.dist.split(rank % 2)
      for n = 0, 11 do
        local opts = { use_orig_params = n % 2 == 1,
          sharding_strategy = ({ 'FULL_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD' })[n % 3 + 1] }
        local inner, model = made(), nil
        if n < 6 then
          inner.expert = wrap(inner.expert, merged(opts, { process_group = pair }))
          model = wrap(inner, opts)
        else
          model = wrap(inner, merged(opts, { auto_wrap_policy = fsdp.CustomPolicy(function(m)
            return m == inner.expert and { process_group = pair }
          end) }))
        end
        local models = { [0] = made(), made() }
        local norm = plain_step(models)
        model:no_sync(function() loss(model, rank, 1):backward() end)
        loss(model, rank, 2):backward()
        checks.close(norm, model:clip_grad_norm_(0.5):item(), 1e-5)
        local opt = optim.SGD(model:parameters(), { lr = 1 })
        opt:step()
        local state, was = model:state_dict(), made():state_dict()
        for name, p in models[rank % 2]:named_parameters() do
          checks.close((was[name] - p:grad() * (0.5 / norm)):totable(), state[name], 1e-5)
        end
        fsdp.summon_full_params(model, nil, function()
          assert.same({ 4, 4 }, inner.expert.weight:shape())
        end)
        model:load_state_dict(state)
        state['a.bias']:fill_(rank)
        checks.raises('RuntimeError', "other values for 'a.bias'", model.load_state_dict, model,
          state)
        checks.raises('ValueError', 'hash:', model.hash, model)
        checks.raises('NotImplementedError', "'expert' is over other ranks",
          model.register_comm_hook, model, nil, fsdp.comm_hooks.allreduce_hook)
        opt:zero_grad()
        model:set_gradient_factor(1)
        loss(model, rank, 1):backward()
        ms.no_grad(function() -- what ranks own of it, or all
          for _, p in ipairs(model:parameters()) do
            local grad = p:grad()
            if grad then grad:fill_(rank == 1 and 0 / 0 or 1) end
          end
        end)
        local largest = model:clip_grad_norm_(1, math.huge):item()
        assert.is_true(largest ~= largest)
      end
    end)
  end)

  it('of the same ranks are one group for a model and nested instances', function()
    ms.dist.spawn(2, function()
      local function layer() return nn.Linear(2, 2) end
      local function pair() return { process_group = ms.dist.new_group { 0, 1 } } end
      local model = wrap(nn.Sequential(wrap(layer(), pair()), layer()), pair())
      model(ms.ones(1, 2)):sum():backward()
      assert.is_true(model:clip_grad_norm_(1):item() > 0)
      assert.equal(2, #model:units())
    end)
  end)

  it('let a module around a used instance be wrapped again', function()
    ms.dist.spawn(2, function()
      local inner = nn.Sequential(wrap(nn.Linear(3, 3), { use_orig_params = true }))
      local first = wrap(inner, { use_orig_params = true })
      first(ms.ones(1, 3)):sum():backward()
      local second = wrap(inner, { use_orig_params = true })
      local outer = wrap(nn.Sequential(inner, nn.Linear(3, 2)), { use_orig_params = true })
      checks.close(first(ms.ones(1, 3)):totable(), second(ms.ones(1, 3)), 0)
      outer:zero_grad()
      outer(ms.ones(1, 3)):sum():backward()
      local opt = optim.SGD(outer:parameters(), { lr = 0.1 })
      opt:step()
      checks.close(first(ms.ones(1, 3)):totable(), second(ms.ones(1, 3)), 0)
      local pair = nn.Sequential(wrap(nn.Linear(3, 3), {}), wrap(nn.Linear(3, 3), {}))
      wrap(pair, {})
      pair[1](ms.ones(1, 3)) -- a root, beside which the other is one, too
      assert.same({ 3, 3 }, pair[2]:state_dict().weight:shape())
      checks.raises('AssertionError', 'was used before the module around it',
        wrap(nn.Sequential(first), {}), ms.ones(1, 3))
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
