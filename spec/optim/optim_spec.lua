-- lua/moonshard/optim: groups, updates against the formulas, state
local ms = require 'moonshard'
local nn, optim = ms.nn, ms.optim
local checks = require 'support.checks'

local function leaf(value)
  return ms.tensor({ value }, { dtype = 'f64', requires_grad = true })
end

-- Gradient of 1/2 (p - 3)^2 is p - 3.
local function step(opt, p)
  opt:zero_grad()
  local d = p - 3
  (d * d * 0.5):sum():backward()
  opt:step()
end

describe('optim', function()
  teardown(function()
    assert.equal(0, checks.live_handles())
  end)

  describe('parameter groups', function()
    it('override the defaults and are read and written as fields', function()
      local a, b = leaf(1), leaf(2)
      local opt = optim.AdamW({ { params = { a }, weight_decay = 0 }, { params = b, lr = 0.5 } },
        { lr = 0.25, betas = { 0.9, 0.95 } })
      local first, second = opt.param_groups[1], opt.param_groups[2]
      assert.equal(0.25, first.lr)
      assert.equal(0, first.weight_decay)
      assert.same({ 0.9, 0.95 }, first.betas)
      assert.equal(0.5, second.lr)
      assert.equal(0.01, second.weight_decay)
      assert.equal(b, second.params[1])
      second.lr = 2
      assert.equal(2, second.lr)
      assert.equal(0.25, first.lr)
    end)

    it('read betas that a script writes', function()
      local p, q = leaf(1), leaf(1)
      local opt = optim.AdamW({ p }, { lr = 0.1 })
      local other = optim.AdamW({ q }, { lr = 0.1, betas = { 0.5, 0.75 } })
      opt.param_groups[1].betas[1] = 0.5
      opt.param_groups[1].betas[2] = 0.75
      for _ = 1, 3 do
        step(opt, p)
        step(other, q)
      end
      assert.equal(q:item(), p:item())
      assert.same({ 0.5, 0.75 }, opt:state_dict().param_groups[1].betas)
      opt.param_groups[1].betas[1] = 1
      checks.raises('ValueError', 'Invalid beta parameter at index 0: 1', opt.step, opt)
    end)

    it('have one learning rate for all or one each', function()
      local opt = optim.SGD({ { params = { leaf(1) } }, { params = { leaf(1) } } })
      opt:set_lr(0.3)
      opt:set_lr(0.4, 2)
      assert.equal(0.3, opt.param_groups[1].lr)
      assert.equal(0.4, opt.param_groups[2].lr)
      checks.raises('IndexError', 'has 2 parameter groups, got index 3', opt.set_lr, opt, 1, 3)
    end)

    it('warn when set_lr replaces different rates by one', function()
      local opt = optim.SGD({ { params = { leaf(1) } }, { params = { leaf(1) }, lr = 1 } },
        { lr = 0.5 })
      local function warnings(...)
        return #ms.capture_warnings(opt.set_lr, opt, ...)
      end
      assert.equal(0, warnings(2, 2))
      assert.equal(0, warnings(0.5, 1))
      local list = ms.capture_warnings(opt.set_lr, opt, 3)
      assert.same({ { kind = 'UserWarning', message = 'set_lr(lr) gives one rate to all groups, '
        .. 'though theirs differ: set_lr(lr, group) sets that of one' } }, list)
      assert.equal(3, opt.param_groups[2].lr)
      assert.equal(0, warnings(4))
    end)

    it('print their options', function()
      local opt = optim.AdamW({ leaf(1) }, { lr = 0.5 })
      local text = table.concat({
        'group 1 (1 parameters)', '  lr: 0.5', '  betas: (0.9, 0.999)', '  eps: 1e-08',
        '  weight_decay: 0.01', '  amsgrad: false', '  maximize: false',
      }, '\n')
      assert.equal(text, tostring(opt.param_groups[1]))
      assert.equal('AdamW(\n  ' .. text:gsub('\n', '\n  ') .. '\n)', tostring(opt))
    end)

    it('keep an option when the new value is out of range', function()
      local opt = optim.SGD { leaf(1) }
      checks.raises('ValueError', 'Invalid learning rate: -1', function()
        opt.param_groups[1].lr = -1
      end)
      checks.raises('ValueError', 'Invalid learning rate: nan', opt.set_lr, opt, 0 / 0)
      assert.equal(1e-3, opt.param_groups[1].lr)
      checks.raises('TypeError', 'lr is a string, expected a number', function()
        opt.param_groups[1].lr = '3'
      end)
      checks.raises('ValueError', "did you mean 'momentum'?", function()
        opt.param_groups[1].momentun = 1
      end)
    end)
  end)

  it('refuses options out of range as torch.optim does', function()
    local p = leaf(1)
    for _, case in ipairs {
      { optim.SGD, { lr = -1 }, 'Invalid learning rate: -1' },
      { optim.SGD, { nesterov = true },
        'Nesterov momentum requires a momentum and zero dampening' },
      { optim.Adam, { betas = { 1, 0.9 } }, 'Invalid beta parameter at index 0: 1' },
      { optim.AdamW, { momentum = 1 }, "unknown option 'momentum'" },
    } do
      checks.raises('ValueError', case[3], case[1], { p }, case[2])
    end
    checks.raises('ValueError', 'optimizer got an empty parameter list', optim.SGD, {})
    checks.raises('TypeError', 'but got a nn.Linear; write model:parameters()', optim.SGD,
      nn.Linear(2, 2))
    checks.raises('ValueError', 'some parameters appear in more than one parameter group',
      optim.SGD, { { params = { p } }, { params = { p } } })
    checks.raises('TypeError', 'params: entry 1 is a number, expected a tensor', optim.SGD, { 3 })
    checks.raises('ValueError', "a parameter group of optim.SGD: unknown option 'param', did you "
      .. "mean 'params'?", optim.SGD, { { param = { p } } })
  end)

  it('refuses the state of another kind and damaged state', function()
    local p = leaf(1)
    local opt = optim.SGD({ p }, { momentum = 0.5 })
    step(opt, p)
    local sd = opt:state_dict()
    checks.raises('ValueError', "param_groups[1] of the state dict loaded into optim.SGD: unknown "
      .. "option 'amsgrad'", opt.load_state_dict, opt, optim.Adam({ p }):state_dict())
    checks.raises('TypeError', "'sd.state[1].steps' is nil", opt.load_state_dict, opt,
      { param_groups = sd.param_groups, state = { {} } })
    checks.raises('TypeError', "'sd.state[1]' is a number", opt.load_state_dict, opt,
      { param_groups = sd.param_groups, state = { 3 } })
    assert.same(sd.param_groups, opt:state_dict().param_groups)
  end)

  it('leaves parameters without a gradient alone', function()
    local a, b = leaf(1), leaf(2)
    local opt = optim.AdamW({ a, b }, { lr = 0.1, weight_decay = 0.5 })
    step(opt, a)
    assert.equal(2, b:item())
    assert.is_true(a:item() ~= 1)
  end)

  it('zero_grad drops gradients or fills them with zeros', function()
    local model = nn.Linear(2, 1)
    for _, object in ipairs { optim.SGD(model:parameters()), model } do
      model(ms.ones(1, 2)):sum():backward()
      object:zero_grad { set_to_none = false }
      checks.close({ { 0, 0 } }, model.weight:grad())
      object:zero_grad { set_to_none = true }
      assert.is_nil(model.weight:grad())
      object:zero_grad { set_to_none = false }
      assert.is_nil(model.weight:grad())
    end
  end)

  it('accepts foreach and fused, which change nothing', function()
    local p = leaf(1)
    assert.is_nil(optim.Adam({ p }, { foreach = true }).defaults.foreach)
    optim.SGD { { params = { p }, fused = false } }
    checks.raises('RuntimeError', '`fused` and `foreach` cannot be `True` together.', optim.AdamW,
      { p }, { foreach = true, fused = true })
    checks.raises('TypeError', "'foreach' is a number", optim.AdamW, { p }, { foreach = 1 })
  end)

  it('continues to the same bits from its state dict', function()
    local function make(value)
      local p = leaf(value)
      return p, optim.AdamW({ p }, { lr = 0.1 })
    end
    local p, opt = make(1)
    for _ = 1, 3 do
      step(opt, p)
    end
    local q, other = make(p:item())
    other:load_state_dict(opt:state_dict())
    for _ = 1, 3 do
      step(opt, p)
      step(other, q)
    end
    assert.equal(p:hash(), q:hash())
  end)

  it('loads all of a state dict or nothing', function()
    local function make(sizes, lr)
      local model = nn.Sequential(nn.Linear(2, sizes[1]), nn.Linear(sizes[1], sizes[2]))
      local p = {}
      for name, param in model:materialize():named_parameters() do
        p[name] = param
      end
      local matrices, vectors = { p['0.weight'], p['1.weight'] }, { p['0.bias'] }
      local groups = { { params = matrices, weight_decay = 0.1 }, { params = vectors } }
      local opt = optim.AdamW(groups, { lr = lr })
      model(ms.ones(1, 2)):sum():backward()
      opt:step()
      return opt, matrices, vectors
    end
    local sd = make({ 2, 3 }, 1):state_dict()
    local function state_of(opt)
      local parts = { opt.param_groups[1].lr }
      for i, state in ipairs(opt:state_dict().state) do
        parts[i + 1] = state.steps .. state.exp_avg:hash() .. state.exp_avg_sq:hash()
      end
      return table.concat(parts, ' ')
    end
    local function refused(text, opt, given)
      local before = state_of(opt)
      checks.raises('ValueError', text, opt.load_state_dict, opt, given)
      assert.equal(before, state_of(opt))
    end
    refused("exp_avg of parameter '1.weight' has shape (6), expected shape (8) for its shape "
      .. '(4, 2)', make({ 2, 4 }, 9), sd)
    local swapped, matrices, vectors = make({ 2, 3 }, 9)
    local turned = optim.AdamW({ { params = vectors }, { params = matrices } }, { lr = 9 })
    checks.raises('ValueError', "a parameter group that doesn't match the size of optimizer's "
      .. 'group: group 1 has 2 parameters, expected 1', turned.load_state_dict, turned, sd)
    refused('group 1 has 2 parameters, expected 1', turned, sd)
    sd.state[2].exp_avg_sq = nil
    refused("exp_avg_sq of parameter '1.weight' has nothing, expected shape (6)", swapped, sd)
    sd.state[2].exp_avg_sq = ms.ones(1)
    refused('has shape (1), expected shape (6)', swapped, sd)
  end)

  it('loads momentum into an optimizer without momentum', function()
    local p, q = leaf(1), leaf(1)
    local opt, other = optim.SGD({ p }, { lr = 0.1, momentum = 0.5 }), optim.SGD({ q }, { lr = 3 })
    step(opt, p)
    local _ = ms.no_grad(function() q:copy_(p) end)
    other:load_state_dict(opt:state_dict())
    step(opt, p)
    step(other, q)
    assert.equal(p:hash(), q:hash())
  end)

  it('keeps the momentum buffer while momentum is 0', function()
    for _, place in ipairs { 'none', 'before', 'after' } do
      local p = ms.tensor { 0 }:requires_grad_(true)
      local opt = optim.SGD({ p }, { lr = 1, momentum = 0.5, dampening = 0.25 })
      local function push(gradient, momentum)
        opt.param_groups[1].momentum = momentum
        p:set_grad(ms.tensor { gradient })
        opt:step()
      end
      local function reload(when)
        if when == place then
          opt:load_state_dict(opt:state_dict())
        end
      end
      assert.is_nil(opt:state_dict().state[1].momentum_buffer)
      push(8, 0.5) -- the buffer begins with 8
      reload 'before'
      push(1, 0)
      reload 'after'
      assert.equal(8, opt:state_dict().state[1].momentum_buffer:item())
      push(0, 0.5) -- 8 / 2
      assert.equal(-8 - 1 - 4, p:item(), place)
    end
  end)

  it('starts a momentum buffer that a state dict lacks', function()
    local p, q = leaf(1), leaf(1)
    local plain = optim.SGD({ p }, { lr = 0.1 })
    local pushed = optim.SGD({ q }, { lr = 0.1, momentum = 0.5, dampening = 0.5 })
    step(plain, p)
    step(pushed, q)
    pushed:load_state_dict(plain:state_dict())
    assert.is_nil(pushed:state_dict().state[1].momentum_buffer)
    pushed.param_groups[1].momentum, pushed.param_groups[1].dampening = 0.5, 0.5
    q:set_grad(ms.tensor({ 3 }, { dtype = 'f64' }))
    pushed:step()
    assert.equal(3, pushed:state_dict().state[1].momentum_buffer:item()) -- not 0 / 2 + 3 / 2
  end)

  it('trains a module whose parameters have no memory yet', function()
    local layer = nn.Linear(2, 1)
    local opt = optim.SGD(layer:parameters(), { lr = 0.1 })
    layer(ms.ones(1, 2)):sum():backward()
    local before = layer.bias:item()
    opt:step()
    checks.close(before - 0.1, layer.bias:item())
  end)

  it('clips plain gradients to a total norm', function()
    local a, b = leaf(1), leaf(1)
    local loss = a * 3 + b * 4
    loss:sum():backward()
    for _, bound in ipairs { -1, 0 / 0 } do
      checks.raises('ValueError', 'max_norm is', optim.clip_grad_norm_, { a, b }, bound)
    end
    checks.close(5, optim.clip_grad_norm_({ a, b }, 1):item())
    checks.close({ 0.6 }, a:grad(), 1e-5)
    checks.close({ 0.8 }, b:grad(), 1e-5)
    checks.close(0.8, optim.clip_grad_norm_({ a, b }, 10, math.huge):item(), 1e-5)
    checks.close({ 0.6 }, a:grad(), 1e-5)
  end)
end)
