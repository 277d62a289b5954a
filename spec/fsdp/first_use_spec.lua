-- lua/moonshard/fsdp/{first_use,plan}.lua: which instance the first use makes the root
local ms = require 'moonshard'
local nn, fsdp = ms.nn, ms.fsdp
local checks = require 'support.checks'
local wrapped = require 'support.wrap'

describe('the root', function()
  teardown(function()
    assert.equal(0, checks.live_handles())
  end)

  it('is the instance of the first forward and cannot be wrapped later', function()
    local inner = wrapped(nn.Linear(2, 2))
    inner(ms.ones(1, 2))
    local outer = wrapped(nn.Sequential(inner, nn.Linear(2, 2)))
    checks.raises('AssertionError', "Non-root FSDP instance's `_is_root` should not have been "
      .. "set yet or should have been set to `False`: '0' was used before the module around it; "
      .. 'call what FSDP returned for the whole model first', outer, ms.ones(1, 2))
  end)

  it('is the outermost instance when a nested one is used first', function()
    local path = os.tmpname()
    for what, ask in pairs {
      state_dict = function(inner) inner:state_dict() end,
      export = function(inner) ms.checkpoint.export(path, inner) end,
      hash = function(inner) inner:hash() end,
      unshard = function(inner) inner:unshard() end,
      apply = function(inner) inner:apply(type) end,
      summon_full_params = function(inner) fsdp.summon_full_params(inner, nil, type, inner) end,
      clip_grad_norm_ = function(inner)
        checks.raises('RuntimeError', '`clip_grad_norm_()` should only be called on the root FSDP '
          .. 'instance', inner.clip_grad_norm_, inner, 1)
      end,
    } do
      local inner = wrapped(nn.Linear(2, 2))
      local outer = wrapped(nn.Sequential(nn.Sequential(inner), nn.Linear(2, 2)))
      ask(inner)
      outer(ms.ones(1, 2)):sum():backward()
      assert.is_true(outer:clip_grad_norm_(1):item() > 0, what)
    end
    os.remove(path)
  end)

  it('has the plan that nested instances return', function()
    local inner = wrapped(nn.Linear(2, 2))
    local outer = wrapped(nn.Sequential(nn.Sequential(inner), nn.Linear(2, 2)))
    local asked = inner:plan()
    outer(ms.ones(1, 2)):sum():backward()
    assert.same(outer:plan(), asked)
    assert.equal(4 * 12, asked.masters) -- two layers of 6 elements
    local alone = wrapped(nn.Linear(2, 2))
    alone(ms.ones(1, 2))
    wrapped(nn.Sequential(alone, nn.Linear(2, 2)))
    assert.equal(4 * 6, alone:plan().masters)
  end)

  it('needs one value of use_orig_params', function()
    local inner = wrapped(nn.Linear(2, 2), { use_orig_params = true })
    local outer = wrapped(nn.Sequential(inner, nn.Linear(2, 2)))
    checks.raises('ValueError', 'Expects one homogeneous value for use_orig_params but got '
      .. '{false, true}', outer, ms.ones(1, 2))
  end)
end)
