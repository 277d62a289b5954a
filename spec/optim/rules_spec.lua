-- Every optimizer's ten steps and ReduceLROnPlateau against PyTorch (tests/fixtures/optimizers.py).
local ms = require 'moonshard'
local nn, optim, checkpoint = ms.nn, ms.optim, ms.checkpoint
local checks = require 'support.checks'
local json = require 'moonshard.base.json'
local shell = require 'support.shell'
local wrap = require 'support.wrap'

local function fixture()
  local file = assert(io.open('tests/fixtures/optimizers.json'))
  local text = file:read('*a')
  file:close()
  return json.decode(text)
end

-- Names of the states of the first parameter.
local function state_names(opt)
  local names = {}
  for name in pairs(opt:state_dict().state[1]) do
    if name ~= 'name' and name ~= 'steps' then
      names[#names + 1] = name
    end
  end
  table.sort(names)
  return names
end

local function named(case)
  local text = {}
  for name, value in pairs(case.options) do
    text[#text + 1] = ('%s=%s'):format(name, type(value) == 'table' and value[1] or tostring(value))
  end
  table.sort(text)
  return ('%s(%s)'):format(case.kind, table.concat(text, ', '))
end

local function model_of(opts)
  ms.manual_seed(3)
  local model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
  return opts and wrap(model, opts) or model
end

-- Some steps; equal batches on all ranks.
local function train(model, opt, first, last)
  for step = first, last do
    opt:zero_grad()
    local x = ms.arange(10):to('f32'):reshape(2, 5) * (0.1 * step)
    model(x):square():sum():backward()
    opt:step()
  end
end

describe('optimizers', function()
  local expected = fixture()
  for _, case in ipairs(expected.cases) do
    it(named(case) .. ' takes the steps of PyTorch, with its names of states', function()
      for dtype, tolerance in pairs { f64 = 1e-10, f32 = 1e-5 } do
        local p = ms.tensor(expected.start, { dtype = dtype, requires_grad = true })
        local opt = optim[case.kind]({ p }, case.options)
        for _, grad in ipairs(expected.grads) do
          p:set_grad(ms.tensor(grad, { dtype = dtype }))
          opt:step()
        end
        checks.close(case[dtype], p:detach(), tolerance)
        assert.same(case.states, state_names(opt))
      end
    end)

    it(named(case) .. ' has the same bits sharded, and goes on from a checkpoint', function()
      local root = shell.make_folder()
      local function unsharded()
        local model = model_of()
        train(model, optim[case.kind](model:parameters(), case.options), 1, 6)
        return model:hash()
      end
      ms.dist.spawn(2, function()
        local hash = unsharded()
        local model = model_of { auto_wrap_policy = function(m) return ms.is(m, nn.Linear) end }
        local opt = optim[case.kind](model:parameters(), case.options)
        train(model, opt, 1, 3)
        checkpoint.save(root, 'c', { step = 3, model = model, optimizer = opt })
        local sd = opt:state_dict()
        train(model, opt, 4, 6)
        assert.equal(hash, model:hash())
        opt = optim[case.kind](model:parameters(), { lr = 9 }) -- options come with the state
        checkpoint.load(root .. '/c', { model = model })
        opt:load_state_dict(sd)
        train(model, opt, 4, 6)
        assert.equal(hash, model:hash())
      end)
      ms.dist.spawn(1, function()
        local model = model_of()
        local opt = optim[case.kind](model:parameters(), { lr = 9 })
        checkpoint.load(root .. '/c', { model = model, optimizer = opt })
        train(model, opt, 4, 6)
        assert.equal(unsharded(), model:hash())
      end)
      shell.remove_folder(root)
    end)
  end
end)

describe('ReduceLROnPlateau', function()
  local expected = fixture()
  for i, case in ipairs(expected.plateaus) do
    it('sets the rates of PyTorch, also from a state dict, case ' .. i, function()
      local a, b = ms.zeros(1, { requires_grad = true }), ms.zeros(1, { requires_grad = true })
      local opt = optim.SGD({ { params = { a } }, { params = { b }, lr = 0.5 } }, { lr = 0.1 })
      local scheduler = optim.lr_scheduler.ReduceLROnPlateau(opt, case.options)
      for step, metric in ipairs(expected.metrics) do
        scheduler:step(step % 2 == 0 and metric or ms.tensor { metric, dtype = 'f64' })
        checks.close(case.rates[step], scheduler:get_last_lr(), 1e-12)
        local sd = scheduler:state_dict()
        scheduler = optim.lr_scheduler.ReduceLROnPlateau(opt)
        scheduler:load_state_dict(sd)
      end
    end)
  end

  it('refuses options that it cannot follow', function()
    local opt = optim.SGD({ ms.zeros(1, { requires_grad = true }) })
    local new = optim.lr_scheduler.ReduceLROnPlateau
    checks.raises('ValueError', 'Factor should be < 1.0.', new, opt, { factor = 1 })
    checks.raises('ValueError', 'expected 1 min_lrs, got 2', new, opt, { min_lr = { 0, 0 } })
    checks.raises('ValueError', "did you mean 'max'?", new, opt, { mode = 'maxx' })
    checks.raises('TypeError', 'is not an Optimizer', new, {})
  end)
end)
