-- bindings/moonshard_ffi/library.lua: errors about parts of different builds
local B = require 'moonshard_ffi'
local shell = require 'support.shell'

local function luajit(environment, code)
  local pipe = io.popen(("%s luajit -e '%s' 2>&1"):format(environment, code))
  local output = pipe:read('*a')
  pipe:close()
  return output
end

local PATH = "LUA_PATH='./lua/?.lua;./lua/?/init.lua;./bindings/?.lua;./bindings/?/init.lua'"

describe('the loader', function()
  it('takes the folder or the library that MOONSHARD_LIB names', function()
    for _, name in ipairs { B.folder, B.folder .. '/libmoonshard.so' } do
      local output = luajit(PATH .. ' MOONSHARD_LIB=' .. name,
        'print(require("moonshard").version)')
      assert.equal('0.1.0\n', output)
    end
  end)

  it('says that MOONSHARD_LIB holds no library', function()
    local output = luajit(PATH .. ' MOONSHARD_LIB=/nonexistent', 'require "moonshard"')
    assert.truthy(output:find('there is no libmoonshard.so in it', 1, true), output)
  end)

  it('names the part that was built from other headers', function()
    local folder = os.tmpname()
    os.remove(folder)
    os.execute(('mkdir -p %s/generated && ln -s $(realpath %s)/*.so* %s/'):format(folder, B.folder,
      folder))
    os.execute(('cp -r %s/generated/moonshard %s/generated/'):format(B.folder, folder))
    os.execute(("sed -i 's/hash = \"[0-9a-f]*\"/hash = \"0123456789abcdef\"/' "
      .. '%s/generated/moonshard/cdef.lua'):format(folder))
    local output = luajit(PATH .. ' MOONSHARD_LIB=' .. folder, 'require "moonshard"')
    shell.remove_folder(folder)
    assert.truthy(output:find('built from different headers', 1, true), output)
    assert.truthy(output:find('cdef.lua is the one that differs', 1, true), output)
  end)
end)
