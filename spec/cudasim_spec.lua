-- kernels/cuda over tests/cudasim: examples/train.lua computes what it computes on the CPU.
local scripts = require 'support.scripts'

local flags = '--ranks=1 --steps=4 --layers=2 --width=64 --heads=2 --context=32 --tokens=64 '
  .. '--dropout=0.1 --validate=2 --save=2 --sample=8 --log=1'
local simulated = 'MS_DEVICE=cuda MS_PLUGIN_DIR=$MOONSHARD_LIB/cudasim'

-- Losses of four steps, and the text of a model trained so.
local function losses(environment, dtype)
  local out = os.tmpname()
  os.remove(out)
  local output, code = scripts.shell(('env %s luajit examples/train.lua %s --dtype=%s --out=%s')
    :format(environment, flags, dtype, out))
  assert.equal(0, code, output)
  local found = {}
  for line in io.lines(out .. '/metrics.jsonl') do
    found[#found + 1] = tonumber(line:match '"loss":([%d.]+)')
  end
  scripts.shell('rm -rf ' .. out)
  return found
end

describe('the CUDA plug-in on the CPU', function()
  for dtype, tolerance in pairs { f32 = 1e-5, bf16 = 2e-3 } do -- the order does not matter
    it('trains as the CPU in ' .. dtype, function()
      local expected, found = losses('MS_DEVICE=cpu', dtype), losses(simulated, dtype)
      assert.is_true(#expected >= 4)
      assert.equal(#expected, #found)
      for i, loss in ipairs(expected) do
        assert.is_true(math.abs(found[i] - loss) <= tolerance * loss,
          ('loss %d: %.9g, on the CPU %.9g'):format(i, found[i], loss))
      end
    end)
  end

  it('gives the same bits in every legal order of streams', function()
    local first, second = losses(simulated .. ' MS_CUDASIM_SEED=1', 'f32'),
      losses(simulated .. ' MS_CUDASIM_SEED=2', 'f32')
    assert.same(first, second)
  end)
end)
