-- Checkpoints of several models and optimizers, and of anything with a state.
local ms = require 'moonshard'
local nn, fsdp, optim, checkpoint = ms.nn, ms.fsdp, ms.optim, ms.checkpoint
local checks = require 'support.checks'
local wrap = require 'support.wrap'
local runs = require 'support.runs'
local shell = require 'support.shell'

describe('a checkpoint', function()
  local root

  before_each(function() root = runs.folder() end)
  after_each(function() shell.remove_folder(root) end)

  it('holds two models, their optimizers, a scheduler and several tensors #pair', function()
    local function make()
      ms.manual_seed(1)
      local t = { gen = wrap(nn.Linear(4, 4), {}), disc = wrap(nn.Linear(4, 1), {}) }
      t.og = optim.AdamW(t.gen:parameters(), { lr = 1e-3 })
      t.od = optim.SGD(t.disc:parameters(), { lr = 1e-2, momentum = 0.9 })
      t.tensors = { a = ms.ones(2), b = ms.ones(3), c = { d = ms.ones(1), e = ms.ones(1) } }
      t.scheduler = optim.lr_scheduler.OneCycleLR(t.og, { max_lr = 0.1, total_steps = 10 })
      t.all = { modules = { gen = t.gen, disc = t.disc },
        optimizers = { gen = t.og, disc = t.od }, scheduler = t.scheduler,
        tracker = { state_dict = function() return t.tensors end,
          load_state_dict = function(_, sd) t.tensors = sd end } }
      return t
    end
    local function train(t, n)
      for _ = 1, n do
        t.disc(t.gen(ms.ones(2, 4))):sum():backward()
        for _, opt in ipairs { t.og, t.od } do
          opt:step()
          opt:zero_grad()
        end
        t.scheduler:step()
      end
      return t.gen:hash() .. t.disc:hash() .. t.og.param_groups[1].lr
    end
    runs.pair(function()
      local t = make()
      train(t, 3)
      t.tensors.c.e:fill_(7)
      t.all.step, t.all.config = 3, { best = math.huge, worst = -math.huge, list = { 1, 2 } }
      checkpoint.save(root, 'a', t.all)
      local expected, again = train(t, 2), make()
      local meta = checkpoint.load(root .. '/a', again.all)
      assert.same({ best = math.huge, worst = -math.huge, list = { 1, 2 } }, meta.config)
      assert.equal(expected, train(again, 2))
      assert.same({ 7 }, again.tensors.c.e:totable())
    end)
  end)

  it('may leave out frozen parameters, which keep their values in a load', function()
    runs.pair(function()
      local function make(seed)
        ms.manual_seed(seed)
        local base, adapter = nn.Linear(4, 4), nn.Linear(4, 4)
        base:requires_grad_(false)
        local net = nn.Sequential(base, adapter)
        net = fsdp.FSDP(net, { auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Linear } })
        return net, optim.SGD(net:parameters(), { lr = 0.1, momentum = 0.9 })
      end
      local net, opt = make(1)
      net(ms.ones(2, 4)):sum():backward()
      opt:step()
      checkpoint.save(root, 'a', { step = 1, model = net, optimizer = opt, frozen = false })
      local sd = net:state_dict { full_state_dict = true }
      local other, other_opt = make(2)
      local before = other:state_dict { full_state_dict = true }
      checkpoint.load(root .. '/a', { model = other, optimizer = other_opt })
      local after = other:state_dict { full_state_dict = true }
      assert.equal(sd['1.weight']:hash(), after['1.weight']:hash())
      assert.equal(before['0.weight']:hash(), after['0.weight']:hash())
      net:requires_grad_(true)
      checks.raises('KeyError', "no tensor 'model/0.weight'", checkpoint.load, root .. '/a',
        { model = net })
    end)
  end)

  it('holds one optimizer over two models by the names of both', function()
    local function make(is_plain)
      ms.manual_seed(1)
      local function net(n)
        local module = nn.Sequential(nn.Linear(4, n), nn.Linear(n, 4)):materialize()
        return is_plain and module or wrap(module, {})
      end
      local g, d = net(3), net(5)
      local opt = optim.AdamW({ { params = g:parameters() },
        { params = d:parameters(), lr = 0.01 } }, { lr = 0.1 })
      return { modules = { g = g, d = d }, optimizer = opt }
    end
    local function step(t)
      t.modules.d(t.modules.g(ms.ones(2, 4))):square():sum():backward()
      t.optimizer:step()
      t.optimizer:zero_grad()
      return runs.hash_of(t.modules.g) .. runs.hash_of(t.modules.d)
    end
    for from, is_plain in ipairs { false, true } do -- of one rank, of two
      local hash = runs.reports(from, function()
        local t = make(is_plain)
        step(t)
        t.step = 1
        checkpoint.save(root, 'a', t)
        checks.raises('ValueError', "two parameters of the optimizer are called '0.weight'",
          checkpoint.save, root, 'b', { step = 1, optimizer = t.optimizer })
        return step(t)
      end)[0]
      for to = 1, 2 do
        assert.equal(hash, runs.reports(to, function()
          local t = make(to == 2)
          step(t)
          step(t)
          checkpoint.load(root .. '/a', t)
          return step(t)
        end)[0])
      end
    end
  end)

  it('works in launched processes', function()
    for _, spec in ipairs { 'checkpoint_parts', 'checkpoint', 'ema', 'fsdp/optim_state' } do
      runs.launched(('spec/%s_spec.lua'):format(spec))
    end
  end)

  it('has states that are the same on all ranks, and fails on all', function()
    ms.dist.spawn(2, function(rank)
      local model, part, state = wrap(nn.Linear(2, 2), {}), {}, { n = rank }
      function part.state_dict() return state end
      function part.load_state_dict(_, sd)
        state = sd
        assert(rank == 0, 'no luck')
      end
      checks.raises('ValueError', 'the state of part', checkpoint.save, root, 'a',
        { step = 1, part = part })
      for _, has_tensors in ipairs { false, true } do -- those come last
        local before = { n = has_tensors and ms.ones(2) or 3 }
        state = before
        checkpoint.save(root, 'a', { step = 1, part = part, model = model })
        fsdp.summon_full_params(model, nil, function()
          nn.init.constant_(model.weight, has_tensors and 8 or 7)
        end)
        local hash = model:hash()
        local ok, err = pcall(checkpoint.load, root .. '/a', { part = part, model = model })
        assert.is_false(ok)
        assert.truthy(tostring(err):find('no luck', 1, true))
        assert.equal(has_tensors, model:hash() ~= hash)
        assert.equal(has_tensors, state ~= before)
      end
    end)
  end)

  it('holds the state of an object of the script, with tensors', function()
    local function object(state)
      return { state_dict = function() return state end,
        load_state_dict = function(_, sd) state = sd end, get = function() return state end }
    end
    local a = object { best = 0 / 0, mean = ms.tensor { 1, 2, 3 }, list = { 'x', true } }
    checkpoint.save(root, 'a', { step = 1, tracker = a })
    local b = object { mean = ms.zeros(3) }
    checkpoint.load(root .. '/a', { tracker = b })
    assert.same({ 1, 2, 3 }, b.get().mean:totable())
    assert.same({ 'x', true }, b.get().list)
    assert.is_true(b.get().best ~= b.get().best)
    checks.raises('KeyError', 'the checkpoint has no other', checkpoint.load, root .. '/a',
      { other = b })
  end)

  it('refuses parts that it cannot save', function()
    local model = nn.Linear(2, 2)
    local function refuses(kind, text, opts)
      opts.step = 1
      checks.raises(kind, text, checkpoint.save, root, 'a', opts)
    end
    local function with_state(state)
      return { state_dict = function() return state end, load_state_dict = function() end }
    end
    refuses('TypeError', "modules[1] is a nn.Linear without a name, expected names: modules = {",
      { modules = { gen = model, model } })
    refuses('TypeError', "'tracker' is a table without state_dict() and load_state_dict()",
      { tracker = {} })
    refuses('TypeError', "'tracker' is a table without load_state_dict()",
      { tracker = { state_dict = print } })
    refuses('ValueError', "did you mean 'modules'", { modles = { gen = model } })
    refuses('TypeError', "state_dict() of 'tracker' returned nil, expected a table",
      { tracker = with_state(nil) })
    refuses('ValueError', "a tensor below the key 'a/b'",
      { tracker = with_state { ['a/b'] = { ms.zeros(1) } } })
    checkpoint.save(root, 'a', { step = 1, modules = { gen = model } })
    checks.raises('KeyError', 'the checkpoint has no model; it has modules: gen', checkpoint.load,
      root .. '/a', { model = model })
  end)

  it('names what is not loaded, and loads what fits', function()
    local a, b = nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    local opt = optim.SGD(a:parameters(), { lr = 0.1 })
    local scheduler = optim.lr_scheduler.StepLR(opt, { step_size = 30 })
    checkpoint.save(root, 'a', { step = 1, model = a, optimizer = opt, scheduler = scheduler })
    checks.raises('KeyError', "a has no tensor 'model/1.weight'", checkpoint.load, root .. '/a',
      { model = b })
    local warnings = ms.capture_warnings(function()
      checkpoint.load(root .. '/a', { model = b, strict = false })
      checkpoint.load(root .. '/a', { model = a, optimizer = opt })
    end)
    assert.equal(1, #warnings)
    assert.truthy(warnings[1].message:find('that was not loaded: scheduler', 1, true))
    assert.equal(a[1].weight:hash(), b[1].weight:hash())
  end)
end)
