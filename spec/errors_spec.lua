-- lua/moonshard/{errors,class,init}.lua: kinds, positions, warnings, options, classes
local ms = require 'moonshard'
local errors, class = ms.errors, ms.class
local checks = require 'support.checks'
local scripts = require 'support.scripts'

describe('an error', function()
  teardown(function()
    assert.equal(0, checks.live_handles())
  end)

  it('has a kind and a message, and prints as both', function()
    local err = checks.raises('ValueError', 'got 3', ms.error, 'ValueError', 'expected %d, got %d',
      2, 3)
    assert.equal('ValueError: expected 2, got 3', tostring(err))
    assert.is_true(errors.is(err))
    assert.is_false(errors.is { kind = 'ValueError', message = 'x' })
  end)

  it('is joined and searched as its text', function()
    local err = checks.raises('ValueError', 'got 3', ms.error, 'ValueError', 'got %d', 3)
    assert.equal('failed: ValueError: got 3', 'failed: ' .. err)
    assert.equal('ValueError: got 3, 4', err .. ', ' .. 4)
    assert.equal('ValueError: got 3; ValueError: got 3', err .. '; ' .. err)
    assert.equal('3', err:match 'got (%d)')
    assert.equal('ValueError: got 3.', ('%s.'):format(err))
    assert.equal('VALUEERROR: GOT 3', err:upper())
    assert.same({ 'ValueError: got 4', 1 }, { err:gsub('3', '4') })
    assert.same({ 17, 86, 'Value' }, { err:len(), err:byte(), err:sub(1, 5) })
    assert.is_false(pcall(function() return err .. nil end))
  end)

  it('escapes control characters', function()
    local err = checks.raises('ValueError', 'a\\x1b[2J\\x00\\x0d\\x7f\tb\nc', ms.error,
      'ValueError', 'a\27[2J\0\r\127\tb\nc')
    assert.is_nil(err.message:find('\27', 1, true))
  end)

  it('names the line of the script that caused it', function()
    local err = checks.raises('IndexError', '', function()
      local n = ms.zeros(2):size(5) -- a tail call would leave no line behind
      return n
    end)
    assert.truthy(err.where:find('spec/errors_spec.lua:%d+$'), err.where)
    assert.truthy(errors.describe(err):find('errors_spec.lua:%d+: IndexError: size: dimension 5'))
    assert.truthy(err.traceback:find('errors_spec', 1, true))
  end)

  it('of a forward has one line when caught and a traceback when not', function()
    scripts.with_script([[
      local Odd = ms.nn.Module.extend('my.Odd')
      local function fold(x)
        local y = x:reshape(7)
        return y
      end
      function Odd:forward(x)
        local y = fold(x)
        return y
      end
      local model = ms.nn.Sequential(Odd())
      io.stderr:write(tostring(select(2, pcall(model, ms.ones(1)))), '\n')
      model(ms.ones(1))
    ]], function(path)
      local output, code = scripts.shell('luajit ' .. path)
      assert.equal(1, code)
      local line = ('ValueError: reshape: (1) has 1 elements, which shape (7) does not fit (in '
        .. 'forward of 0 (my.Odd), %s:4)\n'):format(path)
      local frames = ("in forward:\n\t%s:4: in function 'fold'\n\t%s:8: in function "):format(
        path, path)
      local text = line .. 'luajit: ' .. line .. frames
      assert.equal(text, output:sub(1, #text))
      assert.truthy(output:find('^[^\n]*\nstack traceback:', #text + 1), output)
    end)
    scripts.with_script('ms.nn.Linear(4, 4)(ms.ones(2, 3))', function(path)
      local output = scripts.shell('luajit ' .. path)
      assert.truthy(output:find('^luajit: [^\n]*in forward of nn.Linear, [^\n]*\nstack traceback:'),
        output)
      assert.equal(1, select(2, output:gsub('traceback', '')), output)
    end)
  end)

  it('of any kind has a description of one line', function()
    assert.equal('boom', errors.describe('boom\nstack traceback: ...'))
    assert.equal('nil was raised', errors.describe(nil))
    assert.equal('a table was raised, not a message', errors.describe({ 1 }))
    assert.equal('its field', errors.describe({ message = 'its field' }))
    local mute = setmetatable({}, { __tostring = function() error('no words', 0) end })
    assert.equal('a table was raised, which cannot be told: no words', errors.describe(mute))
  end)
end)

describe('warnings', function()
  it('are returned in order by capture_warnings', function()
    local list = ms.capture_warnings(function(what)
      ms.warn('UserWarning', what)
      ms.warn('FutureWarning', 'will change')
    end, 'first')
    assert.same({
      { kind = 'UserWarning', message = 'first' },
      { kind = 'FutureWarning', message = 'will change' },
    }, list)
    assert.same({}, ms.capture_warnings(function() end))
  end)

  it('are printed once, by rank 0', function()
    local output = io.popen([[luajit -e '
      local ms = require "moonshard"
      ms.dist.spawn(2, function()
        for _ = 1, 3 do
          ms.warn("UserWarning", "said")
        end
        ms.warn("UserWarning", "too")
      end)
    ' 2>&1]]):read('*a')
    assert.equal('moonshard: UserWarning: said\nmoonshard: UserWarning: too\n', output)
  end)
end)

describe('options', function()
  it('take the device cpu', function()
    assert.same({ 0, 0 }, ms.zeros(2, { device = 'cpu' }):totable())
    assert.equal('bf16', ms.nn.Linear(2, 2, { device = 'cpu', dtype = 'bf16' }).weight:dtype())
    checks.raises('RuntimeError', "zeros: device = 'cuda', but the device of this process is 'cpu'",
      ms.zeros, 2, { device = 'cuda' })
    checks.raises('ValueError', "zeros: device = 'gpu', expected 'cpu' or 'cuda'", ms.zeros, 2,
      { device = 'gpu' })
    checks.raises('NotImplementedError', "nn.Linear: device = 'meta' is not supported yet; "
      .. 'parameters take no memory before a model is first called', ms.nn.Linear, 2, 2,
      { device = 'meta' })
  end)

  it('that are unknown are refused with the nearest known one', function()
    checks.raises('ValueError', "f: unknown option 'bais', did you mean 'bias'?", errors.options,
      'f', { bais = true }, { 'dtype', 'bias' })
    checks.raises('ValueError', "unknown option 'zzzzzzzz', expected one of dtype, bias",
      errors.options, 'f', { zzzzzzzz = true }, { 'dtype', 'bias' })
    checks.raises('TypeError', 'f: options are a nn.Linear, expected a table', errors.options, 'f',
      ms.nn.Linear(1, 1), {})
  end)
end)

describe('a class', function()
  local Animal = class('zoo.Animal')
  function Animal:init(name) self.name = name end
  function Animal:speak() return self.name .. ' ' .. self:sound() end
  function Animal:__call(n) return self.name:rep(n) end
  local Dog = class('zoo.Dog', Animal)
  function Dog:sound() return 'barks' end

  it('makes objects and inherits methods, init and metamethods', function()
    local rex = Dog('Rex')
    assert.equal('Rex barks', rex:speak())
    assert.equal('RexRex', rex(2))
    assert.equal('zoo.Dog', rex._name)
    assert.equal('class zoo.Dog(name)', tostring(Dog))
  end)

  it('refuses a constructor with another name', function()
    for _, name in ipairs { '__init', '__init__' } do
      local Cat = class('zoo.Cat')
      Cat[name] = function() end
      checks.raises('TypeError', ("class zoo.Cat has '%s', which nothing calls: name it init")
        :format(name), Cat)
      checks.raises('TypeError', 'name it init', class('zoo.Lion', Cat))
    end
  end)

  it('is asked for with ms.is', function()
    assert.is_true(ms.is(Dog('Rex'), Animal))
    assert.is_true(ms.is(Dog('Rex'), Dog))
    assert.is_false(ms.is(Animal('x'), Dog))
    assert.is_false(ms.is(3, Dog))
    assert.is_false(ms.is({}, Dog))
  end)
end)

describe('ms', function()
  it('has a version and dtypes', function()
    assert.equal('0.1.0', ms.version)
    assert.equal('bf16', ms.bf16)
  end)

  it('counts memory by kind', function()
    ms.collect()
    local before = ms.memory()
    local x = ms.zeros(1024)
    local after = ms.memory()
    assert.equal(before.live_handles + 1, after.live_handles)
    assert.is_true(after.live.activation - before.live.activation >= 4096)
    assert.equal(before.live.parameter, after.live.parameter)
    x:release()
    ms.reset_peak_memory()
    assert.equal(ms.memory().live_total, ms.memory().peak_total)
  end)

  it('can be closed and used again; old tensors are stale', function()
    local output = io.popen([[luajit -e '
      local ms = require "moonshard"
      local x = ms.ones(2, { requires_grad = true })
      x:hook(function() end)
      ms.close()
      local ok, err = pcall(x.item, x)
      print(ok, err.kind, ms.memory().live_handles)
      x:release()
      print(ms.ones(2):sum():item())
      print(pcall(ms.scope, ms.close))
    ' 2>&1]]):read('*a')
    assert.equal('false\tRuntimeError\t0\n2\nfalse\tRuntimeError: close: a scope is open\n', output)
  end)
end)
