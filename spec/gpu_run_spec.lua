-- tests/gpu/run.sh: rows that fail are named, and their logs kept
local lfs = require 'lfs'
local shell = require 'support.shell'

describe('the run on a GPU', function()
  local folder

  before_each(function()
    folder = shell.make_folder()
    lfs.mkdir(folder .. '/gpu-logs')
  end)

  after_each(function()
    shell.remove_folder(folder)
  end)

  -- Commands behind the functions of run.sh.
  local function run(commands)
    shell.write(folder .. '/losses', ('1.5\n'):rep(20))
    shell.write(folder .. '/script', ([[
      set -uo pipefail
      logs=$PWD/gpu-logs json=$PWD/gpu.jsonl bad=0 took=0 status=0 allowed=0 layout=shared
      source <(sed -n '/^[a-z_]*() {/,/^}/p' '%s/tests/gpu/run.sh')
      %s
      exit $bad]]):format(lfs.currentdir(), commands))
    local code, output = shell.run(folder, 'bash script')
    return output, code
  end

  it('names the exit code, the limit and the log', function()
    local output, code = run [[
      timed good 5 echo fine && row 'a good row' fine
      timed broken 5 bash -c 'echo the reason; exit 3' || failed 'a broken row' broken
      timed slow 1 sleep 5 || failed 'a slow row' slow
      timed missing 5 ./nothing || failed 'a missing program' missing]]
    assert.equal(1, code, output)
    assert.truthy(output:find 'a good row +fine')
    assert.truthy(output:find 'a broken row +FAILED with exit code 3 [^\n]*\n +log: [^\n]*/broken\n'
      .. ' +the reason')
    assert.truthy(output:find 'a slow row +TIMED OUT after 1 s')
    assert.truthy(output:find 'a missing program +FAILED with exit code 127')
    assert.truthy(shell.read(folder .. '/gpu.jsonl'):find(
      '"row":"a broken row","result":"FAILED with exit code 3"', 1, true))
    assert.equal('the reason\n', shell.read(folder .. '/gpu-logs/broken'))
  end)

  it('compares losses', function()
    local compared = [[
      cp losses gpu-logs/a.losses; : >gpu-logs/b
      sed '7s/.*/%s/' losses >gpu-logs/b.losses
      %s]]
    local close, same = "close x a b 1e-5 'the others'", 'same x a b'
    for _, case in ipairs { { '1.5', close, 0 }, { '1.500001', close, 0 }, { '1.51', close, 1 },
      { '1.5', same, 0 }, { '1.500001', same, 1 } } do
      local output, code = run(compared:format(case[1], case[2]))
      assert.equal(case[3], code, output)
    end
    local _, code = run(': >gpu-logs/a.losses; : >gpu-logs/b.losses; : >gpu-logs/b;' .. same)
    assert.equal(1, code)
    _, code = run(': >gpu-logs/a.losses; cp losses gpu-logs/b.losses; : >gpu-logs/b;' .. close)
    assert.equal(1, code)
  end)
end)
