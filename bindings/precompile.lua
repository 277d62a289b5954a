--- luajit precompile.lua OUT FOLDER...
---
--- Writes the modules in these folders, text and bytecode, into one file, from which bytecode.c
--- loads them: per module three sizes (32 bits each, of this machine's order), then its name, its
--- text and its bytecode with names and lines. The file is there whole, or as it was.

local ffi = require 'ffi'

local function read(path)
  local file = assert(io.open(path, 'rb'))
  local text = file:read('*a')
  file:close()
  return text
end

local path_of_part = arg[1] .. '.part'
local out = assert(io.open(path_of_part, 'wb'))
for i = 2, #arg do
  local folder, found = arg[i], false
  local list = assert(io.popen(("find '%s' -name '*.lua' | LC_ALL=C sort"):format(
    folder:gsub("'", "'\\''"))))
  for path in list:lines() do
    local name = path:sub(#folder:match('^(.*)/[^/]*$') + 2):gsub('%.lua$', ''):gsub('/init$', '')
      :gsub('/', '.')
    local text = read(path)
    found = true
    local code = string.dump(assert(loadstring(text, '@' .. name)))
    assert(out:write(ffi.string(ffi.new('uint32_t[3]', #name, #text, #code), 12), name, text, code))
  end
  list:close()
  assert(found, 'no Lua files in ' .. folder)
end
assert(out:close())
assert(os.rename(path_of_part, arg[1]))
