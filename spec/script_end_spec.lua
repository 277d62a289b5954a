-- runtime/comm/exit.c, ms.close, dist.leave: errors that a device finds after the script has ended
local scripts = require 'support.scripts'

local shell, with_script = scripts.shell, scripts.with_script

local WRONG = 'IndexError: embedding: id 9, number 2 of 2, is outside [0, 7)'

-- On the deferred device.
local function run(start, path)
  return shell(('env MS_DEVICE=fake MS_COMM_TIMEOUT=20 timeout 60 %s %s'):format(start, path))
end

-- The last of `ranks` looks up a row that does not exist, and does not read the result.
local function script(ranks, ending)
  return ([[
    local rank = 0
    local function wrong(last)
      return ms.ops.embedding(ms.ones(7, 3), ms.tensor({ 1, last and 9 or 2 }, { dtype = 'i64' }))
    end
    %s
  ]]):format((ending:gsub('INIT', ('rank = ms.dist.init{ ranks = %d }.rank'):format(ranks))))
end

local function count(text, part)
  local n, at = 0, 1
  while true do
    local from, to = text:find(part, at, true)
    if not from then
      return n
    end
    n, at = n + 1, to + 1
  end
end

describe('the end of a script on a device', function()
  it('reports a late device error, however the script ends', function()
    for _, ending in ipairs { '', 'os.exit(0)', 'os.exit(0, true)', 'ms.dist.exit()',
      'ms.dist.leave()', 'ms.close()' } do
      with_script(script(1, 'wrong(true) ' .. ending), function(path)
        local output, code = run('luajit', path)
        assert.equal(1, code, ending .. ': ' .. output)
        assert.equal(1, count(output, WRONG), ending .. ': ' .. output)
      end)
    end
  end)

  it('is silent without an error, and keeps an exit code', function()
    for ending, expected in pairs {
      ['wrong(false)'] = 0,
      ['local y = wrong(true):sum() pcall(y.item, y)'] = 0,
      ['wrong(true) os.exit(3)'] = 3,
    } do
      with_script(script(1, ending), function(path)
        local output, code = run('luajit', path)
        assert.equal('', output)
        assert.equal(expected, code)
      end)
    end
  end)

  it('fails the job of a rank', function()
    for _, ending in ipairs { '', 'os.exit(0)', 'ms.dist.exit()', 'ms.dist.leave()',
      'ms.close()' } do
      for _, start in ipairs { 'luajit', 'bindings/moonshard run -n 2' } do
        with_script(script(2, 'INIT wrong(rank == 1) ' .. ending), function(path)
          local output, code = run(start, path)
          assert.equal(1, code, ending .. ': ' .. output)
          assert.truthy(output:find('moonshard: rank 1 failed: [^\n]*IndexError: embedding: id 9'),
            ending .. ': ' .. output)
        end)
      end
    end
    with_script(script(2, 'wrong(os.getenv "MOONSHARD_RANK" == "1")'), function(path) -- not joined
      local output, code = run('bindings/moonshard run -n 2', path)
      assert.equal(1, code, output)
      assert.truthy(output:find('moonshard: rank 1 failed: ' .. WRONG, 1, true), output)
    end)
  end)

  it('fails what dist.spawn started', function()
    with_script(script(2, [[
      print(pcall(ms.dist.spawn, 2, function(n) wrong(n == 1) end))
    ]]), function(path)
      local output, code = run('luajit', path)
      assert.equal(0, code, output)
      assert.truthy(output:find('false\tCommError: rank 1 failed: ' .. WRONG, 1, true), output)
    end)
  end)

  -- Matrix products, some of which have not run yet.
  local PENDING = [[
    ms.ones(64, 256):matmul(ms.ones(256, 256)):sum():item()
    local y = ms.ones(32, 256):matmul(ms.ones(256, 256)):matmul(ms.ones(256, 48))
  ]]

  local function ends(start, code, expected, seed)
    with_script(code, function(path)
      local output, exit_code = run(('env MS_FAKE_SEED=%d %s'):format(seed, start), path)
      local what = ('seed %d, %s, %s: %s'):format(seed, start, code, output)
      assert.equal(expected[1], exit_code, what)
      assert.truthy(output:find(expected[2]), what)
    end)
  end

  it('computes pending work, or drops it when the script failed', function()
    local expected = {
      [''] = { 0, '^$' }, ['os.exit(0)'] = { 0, '^$' }, ['os.exit(0, true)'] = { 0, '^$' },
      ['ms.dist.exit()'] = { 0, '^$' }, ['ms.close()'] = { 0, '^$' },
      ['os.exit(3)'] = { 3, '^$' }, ["error 'so'"] = { 1, ': so\n' },
    }
    local seed = 0
    for ending, what in pairs(expected) do
      for _ = 1, 4 do
        seed = seed + 1
        ends('luajit', PENDING .. ending, what, seed % 12)
      end
    end
  end)
end)
