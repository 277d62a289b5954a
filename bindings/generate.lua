--- luajit generate.lua moonshard.i OUTDIR HEADER...
---
--- Reads the preprocessed public header (`cc -E -P -DMS_FFI_CDEF moonshard.h`) and the options that
--- some headers declare in comments. Writes everything that Lua and C derive from them, so that the
--- ABI is declared once:
---   OUTDIR/moonshard/cdef.lua   the declarations for ffi.cdef, and their hash
---   OUTDIR/moonshard/calls.lua  one Lua caller per function that takes tensors, or a handle
---                               and numbers
---   OUTDIR/shims.c              the C functions behind them: refs with a generation, not pointers
---   OUTDIR/abi_hash.c           ms_abi_hash(), and sizes and offsets of every public struct
---   OUTDIR/abi_hash.h           the same hash for code compiled against the headers
---   OUTDIR/moonshard/options.lua, OUTDIR/options.c  the options of the given headers
--- A header that uses anything outside the dialect is an error that gives the line.

local here = arg[0]:match('^(.*)/') or '.'
package.path = here .. '/?.lua;' .. package.path

local abi = require 'generator.abi'
local calls = require 'generator.calls'
local options = require 'generator.options'
local parse = require 'generator.parse'
local shims = require 'generator.shims'

local input, outdir = arg[1], arg[2]
if not outdir then
  io.stderr:write('usage: luajit generate.lua moonshard.i OUTDIR HEADER...\n')
  os.exit(2)
end

local function read(path)
  local file = assert(io.open(path, 'rb'))
  local text = file:read('*a')
  file:close()
  return text
end

local function write(name, text)
  local file = assert(io.open(outdir .. '/' .. name, 'wb'))
  assert(file:write(text))
  assert(file:close())
end

local function checked(fn, ...)
  local ok, result = pcall(fn, ...)
  if not ok then
    io.stderr:write('generate.lua: ', tostring(result), '\n')
    os.exit(1)
  end
  return result
end

local api = checked(parse, read(input))
local headers = {}
for i = 3, #arg do
  headers[#headers + 1] = read(arg[i])
end
local declared = checked(options.parse, table.concat(headers))

local shimmed = shims.of(api)
local text = api.text .. shims.declarations(shimmed) .. abi.declaration
local hash = abi.hash(text)

write('shims.c', shims.source(shimmed, api.opaque))
write('abi_hash.c', abi.source(api, hash))
write('abi_hash.h', ('#define MSI_ABI_HASH "%s"\n'):format(hash))
local called = shims.direct(api)
for _, shim in ipairs(shimmed) do
  called[#called + 1] = shim
end
write('moonshard/calls.lua', calls.source(called, api.opaque))
write('moonshard/cdef.lua', ('return { hash = %q, text = [[\n%s]] }\n'):format(hash, text))
write('options.c', options.source(declared))
write('moonshard/options.lua', options.module(declared))
