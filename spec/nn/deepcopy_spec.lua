-- lua/moonshard/nn/copy: copies of whole models, wrapped or not
local ms = require 'moonshard'
local nn, fsdp = ms.nn, ms.fsdp
local checks = require 'support.checks'
local runs = require 'support.runs'

-- First in this file: a process that has opened its device cannot fork ranks.
describe('a copy of a wrapped model', function()
  local function net(frozen)
    ms.manual_seed(4)
    local model = ms.models.GPT { vocab = 7, layers = 2, heads = 1, width = 8, context = 4 }
    model.norm = nn.BatchNorm1d(4)
    model.wpe:requires_grad_(not frozen)
    return model
  end

  local function step(model, seed)
    local ids = ms.tensor({ { 0, 1, 2, 3 }, { 4, 5, 6, seed } }, { dtype = 'i64' })
    model(ids, ids):backward()
    local opt = ms.optim.SGD(model:parameters(), { lr = 0.1 })
    opt:step()
    opt:zero_grad()
  end

  for i, case in ipairs {
    { 2, {} }, { 4, { use_orig_params = true } }, { 2, { sharding_strategy = 'NO_SHARD' } },
    { 2, { sharding_strategy = 'SHARD_GRAD_OP', mixed_precision = {
      param_dtype = ms.bf16, buffer_dtype = ms.bf16 } } },
  } do
    it(('has its units and values, case %d of %d ranks'):format(i, case[1]), function()
      local reports, cause = runs.reports(case[1], function()
        local model, opts = net(case[2].use_orig_params), { ignored_modules = {} }
        opts.ignored_modules[1] = model.norm
        for name, value in pairs(case[2]) do -- order does not matter: names differ
          opts[name] = value
        end
        opts.auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.TransformerBlock }
        model = fsdp.FSDP(model, opts)
        step(model, 1)
        local before = model:collectives().all_gather
        local copy = model:deepcopy()
        assert(copy ~= model and fsdp.get_state(copy) and model:collectives().all_gather == before)
        assert(copy:hash() == model:hash())
        local units, others = model:units(), copy:units()
        for k, unit in ipairs(units) do
          assert(unit.name == others[k].name and unit.strategy == others[k].strategy)
        end
        assert(#units == #others and #units > 2)
        assert(copy.wpe.weight:requires_grad() == not case[2].use_orig_params)
        step(model, 2)
        assert(copy:hash() ~= model:hash())
        step(copy, 2)
        checks.raises('RuntimeError', 'belongs to an FSDP instance around', model.wte.deepcopy,
          model.wte)
        assert(copy:hash() == model:hash())
        return copy:hash()
      end)
      assert.is_nil(cause)
      for rank = 1, case[1] - 1 do
        assert.equal(reports[0], reports[rank])
      end
    end)
  end

  it('is sharded in place, with its forward methods, as the model is', function()
    local _, cause = runs.reports(2, function()
      local model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
      model.twice = function(self, x) return self:forward(x) * 2 end
      fsdp.composable(model[1])
      fsdp.composable(model)
      fsdp.register_forward_method(model, 'twice')
      local x = ms.ones(2, 2)
      local y = model:twice(x)
      local copy = model:deepcopy()
      assert(#fsdp.get_state(copy):units() == 2)
      assert(fsdp.get_state(copy):hash() == fsdp.get_state(model):hash())
      fsdp.summon_full_params(model, {}, function() model[2].bias:detach():fill_(9) end)
      assert(ms.equal(copy:twice(x), y) and not ms.equal(model:twice(x), y))
      return 'ok'
    end)
    assert.is_nil(cause)
  end)
end)

describe('a copy of a module', function()
  it('has equal values in memory of its own', function()
    local model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    model[3].weight = model[1].weight
    model[1].bias:requires_grad_(false)
    model.sizes, model.scale = { { 1 } }, ms.ones(2)
    local calls = 0
    local hook = model[1]:register_forward_hook(function() calls = calls + 1 end)
    model:eval()
    local copy = model:deepcopy()
    assert.equal(model:hash(), copy:hash())
    assert.equal(tostring(model), tostring(copy))
    assert.is_true(rawequal(copy[3].weight, copy[1].weight))
    assert.is_false(rawequal(copy[1].weight, model[1].weight))
    assert.is_false(copy[1].bias:requires_grad())
    assert.is_false(copy[2].training)
    hook:remove()
    copy(ms.ones(2, 3))
    assert.equal(1, calls)
    ms.no_grad(copy[1].weight.fill_, copy[1].weight, 0)
    copy[2].running_mean:fill_(5)
    copy.scale:fill_(3)
    copy.sizes[1][1] = 2
    assert.not_equal(model:hash(), copy:hash())
    assert.same({ 0, 0, 0 }, model[2].running_mean:totable())
    assert.same({ 1, 1 }, model.scale:totable())
    assert.equal(1, model.sizes[1][1])
  end)

  it('is a model of its own inside another', function()
    local outer = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    outer:materialize()
    local copy = outer[2]:deepcopy()
    assert.equal('', copy:path())
    assert.is_true(ms.equal(outer[2].weight, copy.weight))
  end)
end)
