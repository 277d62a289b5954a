local ms = require 'moonshard'
local once = require 'moonshard.internal.once'

-- Runs `fn` and sets the compiler of traces back to what it was.
local function with_compiler(on, fn)
  local before = jit.status()
  if on then jit.on() else jit.off() end
  local ok, err = pcall(fn)
  if before then jit.on() else jit.off() end
  assert(ok, err)
end

describe('work that is done once', function()
  it('runs without the compiler of traces, which is on again afterwards', function()
    with_compiler(true, function()
      local inside, sum = once.run('a spec', function(a, b)
        return jit.status(), a + b
      end, 2, 3)
      assert.is_false(inside)
      assert.are.equal(5, sum)
      assert.is_true((jit.status()))
    end)
  end)

  it('turns the compiler on again after an error', function()
    with_compiler(true, function()
      assert.has_error(function()
        once.run('a spec', function() ms.error('ValueError', 'no') end)
      end)
      assert.is_true((jit.status()))
    end)
  end)

  it('leaves the compiler off when a script turned it off', function()
    with_compiler(false, function()
      once.run('a spec', once.run, 'inside', function() end)
      assert.is_false((jit.status()))
    end)
  end)

  it('is what making, wrapping and naming a model are', function()
    with_compiler(true, function()
      local model = ms.models.GPT { vocab = 8, layers = 1, heads = 1, width = 4, context = 4 }
      model = ms.fsdp.FSDP(model, { auto_wrap_policy = function(_, looking)
        assert.is_false((jit.status()))
        return looking
      end })
      assert.is_true(#model:parameters() > 0)
      assert.is_true((jit.status()))
    end)
  end)
end)
