-- bindings/bytecode.c: modules from bytecode, where it was made from their text
local B = require 'moonshard_ffi'
local shell = require 'support.shell'

local ARCHIVE = B.folder .. '/generated/moonshard/modules.bytecode'
local MODULE, PATH = 'moonshard.fsdp.watch', 'lua/moonshard/fsdp/watch.lua'

local folder

local function write(name, text)
  local path = folder .. '/' .. name
  shell.write(path, text)
  return path
end

describe('bytecode of modules', function()
  before_each(function() folder = shell.make_folder() end)
  after_each(function() shell.remove_folder(folder) end)

  it('is what LuaJIT makes of the text at that path, names and lines included', function()
    local load = B.core.bytecode(ARCHIVE)
    local deep = folder .. ('/x'):rep(80)
    os.execute('mkdir -p ' .. deep)
    for _, path in ipairs { PATH, write('w.lua', shell.read(PATH)),
      write(('x/'):rep(80) .. 'w.lua', shell.read(PATH)) } do
      local chunk = load(MODULE, path)
      assert.equal(string.dump(assert(loadfile(path))), string.dump(chunk))
      assert.equal('@' .. path, debug.getinfo(chunk, 'S').source)
    end
  end)

  it('is there for every module that a script loads', function()
    local load = B.core.bytecode(ARCHIVE)
    for name in pairs(package.loaded) do
      local path = name:find('^moonshard[%._]') and package.searchpath(name, package.path)
      if path and not path:find('generated', 1, true) then
        assert.is_function(load(name, path), name)
      end
    end
  end)

  it('is passed over where the text is another, longer, shorter or gone', function()
    local load, text = B.core.bytecode(ARCHIVE), shell.read(PATH)
    local other = text:gsub('watch', 'wAtch', 1)
    assert.is_function(load(MODULE, write('same.lua', text)))
    for i, changed in ipairs { other, text .. '\n', text:sub(1, -2), '' } do
      assert.is_nil(load(MODULE, write(i .. '.lua', changed)))
    end
    assert.is_nil(load(MODULE, folder .. '/none.lua'))
    assert.is_nil(load(MODULE, folder))
    assert.is_nil(load('moonshard.none', PATH))
  end)

  it('is passed over where the archive is cut off, empty or none', function()
    local archive = shell.read(ARCHIVE)
    for _, n in ipairs { 1, 11, 12, 13, 1000 } do
      assert.is_nil(B.core.bytecode(write('cut', archive:sub(1, n)))('moonshard_ffi', PATH))
    end
    assert.is_nil(B.core.bytecode(write('empty', ''))(MODULE, PATH))
    assert.is_nil(B.core.bytecode(folder .. '/none'))
    assert.is_nil(B.core.bytecode(folder))
  end)

  it('stays what it was for a program that runs, whatever becomes of the file', function()
    local path = write('archive', shell.read(ARCHIVE))
    local load = B.core.bytecode(path)
    shell.write(path, '')
    assert.equal(string.dump(assert(loadfile(PATH))), string.dump(load(MODULE, PATH)))
  end)

  it('is written whole, or stays as it was', function()
    local odd = folder .. "/it's"
    os.execute(('mkdir "%s" && cp %s "%s"'):format(odd, PATH, odd))
    local make = ('luajit bindings/precompile.lua %s/out "%%s" 2>&1'):format(folder)
    assert.equal('', io.popen(make:format(odd)):read('*a'))
    local made = shell.read(folder .. '/out')
    assert.equal(string.dump(assert(loadfile(PATH))),
      string.dump(B.core.bytecode(folder .. '/out')("it's.watch", PATH)))
    assert.truthy(io.popen(make:format(folder .. '/none')):read('*a'):find('no Lua files', 1, true))
    assert.equal(made, shell.read(folder .. '/out'))
  end)

  it('leaves a script with the text that stands there', function()
    local tree = folder .. '/tree'
    os.execute(('mkdir %s && cp -r lua bindings %s'):format(tree, tree))
    local path = tree .. '/lua/moonshard/fsdp/watch.lua'
    local text = shell.read(path):gsub('return watch%s*$', 'watch.changed = true\n%0')
    write('tree/lua/moonshard/fsdp/watch.lua', text)
    local pipe = io.popen(([[cd %s && MOONSHARD_LIB=%s LUA_PATH='%s' luajit -e '
      require "moonshard"
      print(require "moonshard.fsdp.watch".changed)
      print(pcall(require "moonshard".zeros, "x"))' 2>&1]]):format(tree,
      io.popen('realpath ' .. B.folder):read('*l'),
      './lua/?.lua;./lua/?/init.lua;./bindings/?.lua;./bindings/?/init.lua'))
    local output = pipe:read('*a')
    pipe:close()
    assert.truthy(output:find('^true\n'), output)
  end)
end)
