-- `moonshard doctor`: lua/moonshard/tools/doctor.lua
local B = require 'moonshard_ffi'
local ms = require 'moonshard'
local shell = require 'support.shell'

-- Facts by name, the exit code, and what it printed.
local function doctor(settings)
  local code, output = shell.run('.', ('env %s bindings/moonshard doctor'):format(settings))
  local facts = {}
  for line in output:gmatch '[^\n]+' do
    local name, fact = line:sub(1, 15):match('^(.-) *$'), line:sub(17)
    assert.truthy(line:match('^%S.*  *%S'), line)
    facts[name] = fact
  end
  return facts, code, output
end

describe('moonshard doctor', function()
  it('prints what the processor, its kernels and the limits are', function()
    local facts, code, output = doctor ''
    assert.equal(0, code, output)
    assert.equal(ms.version, facts.version)
    assert.equal(ms.cpu_isa(), facts.kernels)
    assert.equal(ms.matmul_name('bf16'), facts['bf16 products'])
    assert.truthy(ms.numerics():find(', ' .. facts['matrix library'] .. ', ', 1, true), output)
    assert.truthy(facts.cores:match('^%d+ of %d+$'), output)
    assert.truthy(facts.memory:match('^[%d.]+ [MG]iB, [%d.]+ [MG]iB available$'), output)
    for _, name in ipairs { 'library', 'processor', 'bf16 units', 'cgroup limit', '/dev/shm',
      'address space', 'locked memory', 'open files', 'processes', 'driver', 'cuBLASLt', 'cuDNN',
      'NCCL' } do
      assert.truthy(facts[name], name .. '\n' .. output)
    end
  end)

  it('trains on the CPU, whatever the device of the environment is', function()
    for _, settings in ipairs { '', 'MS_DEVICE=cuda' } do
      local facts, code, output = doctor(settings)
      assert.equal(0, code, output)
      assert.truthy(facts['CPU training']:find('yes: a step of 2 ranks by shared memory', 1, true),
        output)
    end
  end)

  it('names what is missing', function()
    local folder = shell.make_folder() -- a build without plug-ins
    finally(function()
      shell.remove_folder(folder)
    end)
    for _, name in ipairs { 'libmoonshard.so', 'libmoonshard.so.0', 'moonshard_lua.so' } do
      os.execute(("cp -L '%s/%s' '%s'"):format(B.folder, name, folder))
    end
    os.execute(("cp -r '%s/generated' '%s'"):format(B.folder, folder))
    local facts, code, output = doctor('MOONSHARD_LIB=' .. folder)
    assert.equal(0, code, output)
    local no_library = 'missing: libmoonshard_onednn.so is not in ' .. folder
    assert.truthy(facts['matrix library']:find(no_library, 1, true), output)
    for _, name in ipairs { 'CUDA', 'NCCL' } do
      assert.truthy(facts[name .. ' plug-in']:find('missing: libmoonshard_', 1, true), output)
    end
    assert.truthy(facts['CUDA training']:find('no: needs the CUDA plug-in', 1, true), output)
    assert.truthy(facts['NCCL transport']:find('no: needs the NCCL plug-in', 1, true), output)
  end)

  it('fails where training on the CPU fails', function()
    local facts, code, output = doctor 'MS_FAIL_ALLOC=1'
    assert.equal(1, code, output)
    assert.truthy(facts['CPU training']:find('no: OutOfMemory', 1, true), output)
  end)
end)
