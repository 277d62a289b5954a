-- .bundle/bundle.sh, .bundle/start.sh: a tarball that runs without this machine's libraries
local B = require 'moonshard_ffi'
local json = require 'moonshard.base.json'
local lfs = require 'lfs'
local shell = require 'support.shell'

local GLIBC = { ['libc.so.6'] = true, ['libm.so.6'] = true, ['ld-linux-x86-64.so.2'] = true }

describe('the bundle', function()
  local folder, root, programs

  lazy_setup(function()
    folder = shell.make_folder()
    local code, output = shell.run('.', (".bundle/bundle.sh '%s' '%s/out'"):format(B.folder,
      folder))
    assert.equal(0, code, output)
    local name = output:match('/(moonshard%-[%d.]+%-linux%-x86_64)%.tar%.gz: %d+M')
    assert.truthy(name, output)
    root, programs = ("%s/it's moved/%s"):format(folder, name), folder .. '/programs'
    lfs.mkdir(folder .. "/it's moved")
    lfs.mkdir(programs)
    assert.equal(0, os.execute(('tar -C "%s/it\'s moved" -xzf "%s/out/%s.tar.gz"'):format(folder,
      folder, name)))
    assert.equal(0, os.execute(('ln -s "$(command -v mkdir)" "%s/mkdir"'):format(programs)))
  end)

  lazy_teardown(function()
    shell.remove_folder(folder)
  end)

  -- Run a program of the bundle elsewhere. PATH has only mkdir, which the examples use.
  local function succeeds(program, words)
    local code, output = shell.run(folder, ('env -i PATH="%s" "%s/bin/%s" %s'):format(programs,
      root, program, words))
    assert.equal(0, code, output)
    return output
  end

  it('trains on two ranks', function()
    shell.write(folder .. '/text', ('in the beginning was the word. '):rep(400))
    local output = succeeds('luajit', ('"%s/examples/train.lua" --data=text --ranks=2 --steps=2 '
      .. '--tokens=256 --width=32 --layers=1 --context=64 --sample=8'):format(root))
    assert.truthy(output:find('validation loss', 1, true), output)
  end)

  it('loads its own libraries, and the matrix library among them', function()
    local fixture = json.decode(shell.read 'tests/fixtures/tokens.json')
    shell.write(folder .. '/tokenizer.json', json.encode(fixture.cases.qwen.file))
    shell.write(folder .. '/loaded.lua', [[
      require('moonshard').numerics()
      require('moonshard').data.Tokenizer 'tokenizer.json' -- a regular expression, and NFC
      for line in io.lines('/proc/self/maps') do
        print((line:match('/.*%.so.*$')))
      end]])
    local output = succeeds('moonshard', 'run -n 1 --no-prefix loaded.lua')
    for path in output:gmatch('/[^\n]*') do
      assert.is_true(GLIBC[path:match('[^/]*$')] or path:sub(1, #root + 1) == root .. '/', path)
    end
    for _, name in ipairs { 'dnnl', 'pcre2', 'utf8proc' } do
      assert.truthy(output:find(root .. '/lib/lib' .. name, 1, true), output)
    end
  end)

  it('starts through links', function()
    lfs.link(root .. '/bin/moonshard', folder .. '/ms', true)
    local code, output = shell.run(folder, './ms --version')
    assert.equal(0, code, output)
  end)

  it('has the licence of every library', function()
    local licenses = {}
    for name in lfs.dir(root .. '/LICENSES') do
      licenses[#licenses + 1] = name
    end
    local all = table.concat(licenses, ' ')
    for _, name in ipairs { 'moonshard', 'luajit', 'libdnnl', 'libjansson', 'libxxhash',
      'libpcre2', 'libutf8proc' } do
      assert.truthy(all:find(name, 1, true), name .. ' in ' .. all)
    end
  end)
end)
