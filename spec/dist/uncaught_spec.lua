-- lua/moonshard/dist/init.lua: errors that a script does not catch
local scripts = require 'support.scripts'

local shell, with_script = scripts.shell, scripts.with_script

describe('an error that a script does not catch', function()
  -- The value that rank 1 raises and its text in the summary.
  local raised = {
    ['error(nil)'] = 'nil was raised',
    ['error({ 1 })'] = 'a table was raised, not a message',
    ["error(setmetatable({}, { __tostring = function() error('mute', 0) end }))"] =
      'a table was raised, which cannot be told: mute',
    ["error(('z'):rep(5e6), 0)"] = ('z'):rep(1500) .. '...',
    ["error('\\27[31mred\\r\\0end', 0)"] = '\\x1b[31mred\\x0d\\x00end',
    ["error(('z\\n'):rep(5e6), 0)"] = 'z',
  }

  it('is in the summary, and in one line of each other rank', function()
    for _, start in ipairs { 'luajit', 'bindings/moonshard run -n 2 --no-prefix' } do
      for code, said in pairs(raised) do
        with_script(([[
          local world = ms.dist.init { ranks = 2 }
          if world.rank == 1 then %s end
          ms.dist.barrier()
        ]]):format(code), function(path)
          local output, status = shell('timeout 20 ' .. start .. ' ' .. path)
          assert.equal(1, status, output)
          local cause = 'moonshard: rank 1 failed: ' .. said .. ' (pid '
          local before, summary = output:match('^(.-)(' .. cause:gsub('%p', '%%%0') .. '.*)$')
          assert.truthy(summary, output:sub(1, 3000))
          assert.is_true(#summary < 4096)
          assert.equal(2, select(2, before:gsub('\n', '')), before)
          assert.falsy(output:find('[%z\1-\8\11-\31]'))
        end)
      end
    end
  end)

  it('is in the summary after a stack overflow', function()
    with_script([[
      local world = ms.dist.init { ranks = 2 }
      local function f() return 1 + f() end
      if world.rank == 1 then f() end
      ms.dist.barrier()
    ]], function(path)
      local output, code = shell('timeout 20 bindings/moonshard run -n 2 ' .. path)
      assert.equal(1, code, output)
      assert.truthy(output:find('moonshard: rank 1 failed: [^\n]*stack overflow %(pid '), output)
    end)
  end)

  it('is a process that left while others needed it', function()
    with_script([[
      local world = ms.dist.init { ranks = 2 }
      if world.rank == 1 then os.exit(0) end
      ms.dist.barrier()
    ]], function(path)
      local output, code = shell('timeout 20 luajit ' .. path)
      assert.equal(1, code, output)
      local cause = 'moonshard: rank 1 left the job %(pid %d+%) while others needed it\n'
      assert.truthy(output:find(cause), output)
      assert.equal(2, select(2, output:gsub('\n', '')), output)
    end)
  end)

  it('in a forward has one traceback', function()
    with_script([[
      local Bad = ms.nn.Module.extend('Bad')
      function Bad:forward() error('in the middle') end
      local world = ms.dist.init { ranks = 4 }
      if world.rank == 2 then Bad()(ms.ones(1)) end
      ms.dist.barrier()
    ]], function(path)
      local output, code = shell('timeout 20 luajit ' .. path)
      assert.equal(1, code, output)
      assert.equal(1, select(2, output:gsub('stack traceback:', '')), output)
      for line in output:match('^(.-)moonshard: rank 2 failed'):gmatch('[^\n]+') do
        assert.truthy(line:find('^moonshard: rank %d: '), output)
      end
    end)
  end)
end)
