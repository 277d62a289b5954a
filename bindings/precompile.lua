--- luajit precompile.lua OUT FOLDER...
---
--- Writes the modules in these folders, text and bytecode, into one file, from which bytecode.c
--- loads them: per module three sizes (32 bits each, of this machine's order), then its name, its
--- text and its bytecode with names and lines.

local ffi = require 'ffi'

local function read(path)
  local file = assert(io.open(path, 'rb'))
  local text = file:read('*a')
  file:close()
  return text
end

local out = assert(io.open(arg[1], 'wb'))
for i = 2, #arg do
  local folder = arg[i]
  local list = assert(io.popen(("find '%s' -name '*.lua' | LC_ALL=C sort"):format(folder)))
  for path in list:lines() do
    local name = path:sub(#folder:match('^(.*)/[^/]*$') + 2):gsub('%.lua$', ''):gsub('/init$', '')
      :gsub('/', '.')
    local text = read(path)
    local code = string.dump(assert(loadstring(text, '@' .. name)))
    assert(out:write(ffi.string(ffi.new('uint32_t[3]', #name, #text, #code), 12), name, text, code))
  end
  list:close()
end
assert(out:close())
