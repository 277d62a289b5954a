-- State of optimizers of sharded models, by names of parameters.
local ms = require 'moonshard'
local nn, fsdp, optim, checkpoint = ms.nn, ms.fsdp, ms.optim, ms.checkpoint
local checks = require 'support.checks'
local runs = require 'support.runs'
local shell = require 'support.shell'
local wrap = require 'support.wrap'

local function steps(model, opt, n)
  for i = 1, n do
    model(ms.ones(2, 4) * i):square():sum():backward()
    opt:step()
    opt:zero_grad()
  end
end

local WRAPPINGS = {
  { use_orig_params = true },
  { auto_wrap_policy = fsdp.always_wrap_policy },
  { sharding_strategy = 'NO_SHARD' },
}

describe('the state of an optimizer', function()
  it('moves between wrappings, whole and in parts', function()
    ms.dist.spawn(2, function()
      local function make(opts)
        ms.manual_seed(1)
        local module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)):materialize()
        local model = wrap(module, opts)
        return model, optim.AdamW(model:parameters(), { lr = 0.1 })
      end
      local whole, its = make(WRAPPINGS[1])
      steps(whole, its, 3)
      for _, from in ipairs(WRAPPINGS) do
        for _, to in ipairs(WRAPPINGS) do
          for _, kind in ipairs { 'FULL_STATE_DICT', 'SHARDED_STATE_DICT' } do
            local a, of_a = make(from)
            steps(a, of_a, 2)
            local b, of_b = make(to)
            b:load_state_dict(a:state_dict())
            local sd = fsdp.state_dict_type(a, kind, fsdp.optim_state_dict, a, of_a)
            of_b:load_state_dict(fsdp.optim_state_dict_to_load(b, of_b, sd))
            b(ms.ones(2, 4) * 3):square():sum():backward()
            of_b:step()
            assert.equal(whole:hash(), b:hash())
          end
        end
      end
    end)
  end)

  it('goes from rank 0 to all, and from whole tensors or parts', function()
    ms.dist.spawn(2, function(rank)
      for _, opts in ipairs(WRAPPINGS) do
        local model = wrap(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), opts)
        local opt = optim.AdamW(model:parameters(), { lr = 0.1 })
        steps(model, opt, 1)
        local whole = fsdp.full_optim_state_dict(model, opt)
        local all = fsdp.full_optim_state_dict(model, opt, { rank0_only = false })
        local parts = fsdp.sharded_optim_state_dict(model, opt)
        steps(model, opt, 1)
        for _, sd in ipairs {
          fsdp.scatter_full_optim_state_dict(rank == 0 and whole or nil, model, opt),
          fsdp.shard_full_optim_state_dict(all, model, opt),
          fsdp.flatten_sharded_optim_state_dict(parts, model, opt),
        } do
          opt:load_state_dict(sd)
          local now = fsdp.full_optim_state_dict(model, opt, { rank0_only = false })
          for name, state in pairs(all.state) do
            assert.equal(1, now.state[name].step)
            assert.is_true(ms.equal(state.exp_avg_sq, now.state[name].exp_avg_sq))
          end
        end
      end
    end)
  end)

  it('goes by names where ranks order parameters and groups differently #pair', function()
    local root = runs.folder()
    runs.pair(function(rank)
      for w = 1, 2 do
        local function make(is_reversed, lr)
          ms.manual_seed(1)
          local model = wrap(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)):materialize(),
            WRAPPINGS[w])
          local groups, params = { { params = {}, lr = lr }, { params = {} } }, model:parameters()
          for i, p in ipairs(params) do
            local list = groups[i <= #params / 2 and 1 or 2].params
            table.insert(list, is_reversed and 1 or #list + 1, p)
          end
          groups = is_reversed and { groups[2], groups[1] } or groups
          return model, optim.AdamW(groups, { lr = 0.01 })
        end
        local model, opt = make(false, 0.1)
        local other, its = make(rank == 1, 0.1)
        steps(model, opt, 2)
        steps(other, its, 2)
        local full, found = fsdp.optim_state_dict(model, opt), fsdp.optim_state_dict(other, its)
        for name, state in pairs(full.state) do
          assert.is_true(ms.equal(state.exp_avg_sq, found.state[name].exp_avg_sq))
        end
        checkpoint.save(root, 'a', { step = 2, model = other, optimizer = its })
        local parts = fsdp.sharded_optim_state_dict(other, its)
        steps(model, opt, 1)
        for _, sd in ipairs { found, parts, 'checkpoint', 'scatter' } do
          local fresh, of_fresh = make(rank == 0)
          fresh:load_state_dict(other:state_dict())
          if sd == 'checkpoint' then
            checkpoint.load(root .. '/a', { optimizer = of_fresh })
          else
            of_fresh:load_state_dict(sd == 'scatter'
              and fsdp.scatter_full_optim_state_dict(rank == 0 and found or nil, fresh, of_fresh)
              or fsdp.optim_state_dict_to_load(fresh, of_fresh, sd))
          end
          steps(fresh, of_fresh, 1)
          assert.equal(model:hash(), fresh:hash())
        end
        table.insert(found.param_groups[2].params, table.remove(found.param_groups[1].params))
        checks.raises('ValueError', 'options go to the group with the same parameters',
          fsdp.optim_state_dict_to_load, other, its, found)
      end
    end)
    shell.remove_folder(root)
  end)

  it('is keyed by names or numbers, and leaves out what took no step', function()
    ms.dist.spawn(2, function(rank)
      local module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
      local model = wrap(module, { use_orig_params = true })
      local opt = optim.SGD(model:parameters(), { lr = 0.1, momentum = 0.9 })
      local sd = fsdp.optim_state_dict(model, opt)
      assert.same({}, sd.state)
      model(ms.ones(1, 2)):sum():backward()
      opt:step()
      sd = fsdp.optim_state_dict(model, opt)
      assert.equal(1, sd.state['0.weight'].step)
      assert.same({ 2, 2 }, sd.state['1.weight'].momentum_buffer:shape())
      assert.same({ '0.weight', '0.bias', '1.weight', '1.bias' }, sd.param_groups[1].params)
      local by_id = fsdp.rekey_optim_state_dict(sd, 'PARAM_ID', model)
      assert.same({ 0, 1, 2, 3 }, by_id.param_groups[1].params)
      assert.equal(sd.state['1.bias'], by_id.state[3])
      assert.same(sd, fsdp.rekey_optim_state_dict(by_id, 'PARAM_NAME', model))
      local plain = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
      local its = optim.SGD(plain:parameters(), { lr = 1 })
      its:load_state_dict(by_id)
      assert.equal(0.1, its.param_groups[1].lr)
      for i, state in ipairs(its:state_dict().state) do
        assert.equal(1, state.steps)
        assert.same(by_id.state[i - 1].momentum_buffer:reshape(-1):totable(),
          state.momentum_buffer:totable())
      end
      by_id.state[3].momentum_buffer = ms.ones(3)
      checks.raises('ValueError', 'does not have same shape as its parameter: momentum_buffer of '
        .. "'3'", its.load_state_dict, its, by_id)
      local full = fsdp.full_optim_state_dict(model, opt)
      assert.equal(rank == 0, full.state ~= nil)
      sd.state['0.weight'].momentum_buffer = ms.ones(3)
      checks.raises('ValueError', 'does not have same shape as its parameter',
        fsdp.optim_state_dict_to_load, model, opt, sd)
      checks.raises('ValueError', 'load what fsdp.optim_state_dict_to_load', opt.load_state_dict,
        opt, sd)
      sd.state = { ['2.weight'] = {}, ['3.weight'] = {} }
      checks.raises('KeyError', "no parameter '2.weight', nor 1 others",
        fsdp.optim_state_dict_to_load, model, opt, sd)
    end)
  end)

  it('is of the ranks of the model, and begins as in a fresh optimizer', function()
    ms.dist.spawn(4, function(rank)
      local half = ms.dist.split(math.floor(rank / 2))
      local model = wrap(nn.Linear(2, 2), { process_group = half, use_orig_params = true })
      local opt = optim.Adagrad(model:parameters(), { initial_accumulator_value = 0.5 })
      local sd = fsdp.full_optim_state_dict(model, opt)
      assert.equal(rank % 2 == 0, sd.state ~= nil)
      sd = fsdp.optim_state_dict(model, opt)
      opt:load_state_dict(fsdp.optim_state_dict_to_load(model, opt, sd))
      for _, state in ipairs(opt:state_dict().state) do
        assert.equal(0.5 * state.sum:numel(), state.sum:sum():item())
      end
    end)
  end)
end)
