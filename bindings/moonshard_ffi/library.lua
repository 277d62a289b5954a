--- Finds libmoonshard.so, its declarations and moonshard_lua.so, and checks that all three were
--- built from the same headers.
---
--- Folders are tried in this order: MOONSHARD_LIB (a folder, or libmoonshard.so itself); the folder
--- in which package.cpath finds moonshard_lua.so; build/release of this file's tree; lib/lua/5.1
--- beside the share/lua/5.1 where this file is installed.

local ffi = require 'ffi'

local function exists(path)
  local file = io.open(path, 'rb')
  if file then
    file:close()
  end
  return file ~= nil
end

local function folder_of(path)
  return path:match('^(.*)/[^/]*$') or '.'
end

local function find_folder()
  local asked = os.getenv('MOONSHARD_LIB')
  if asked and asked ~= '' then
    local folder = asked:find('%.so[%.%d]*$') and folder_of(asked) or asked:gsub('/$', '')
    if not exists(folder .. '/libmoonshard.so') then
      error(('MOONSHARD_LIB is %q, but there is no libmoonshard.so in it'):format(asked), 0)
    end
    return folder
  end
  local module = package.searchpath('moonshard_lua', package.cpath)
  if module then
    return folder_of(module)
  end
  local here = debug.getinfo(1, 'S').source:match('^@(.*)/[^/]*$') or '.'
  local prefix = here:match('^(.*)/share/lua/5%.1/moonshard_ffi$')
  local folder = prefix and prefix .. '/lib/lua/5.1' or here .. '/../../build/release'
  if not exists(folder .. '/moonshard_lua.so') then
    error(('moonshard_lua.so is neither in %s nor found by LUA_CPATH, expected '
      .. "'<its folder>/?.so;;' in LUA_CPATH"):format(folder), 0)
  end
  return folder
end

local function load_declarations(folder)
  local generated = folder .. '/generated/moonshard'
  if exists(generated .. '/cdef.lua') then
    return dofile(generated .. '/cdef.lua'), generated, generated .. '/cdef.lua'
  end
  local cdef = package.searchpath('moonshard.cdef', package.path)
  if not cdef then
    error('moonshard/cdef.lua is missing: it is generated when the library is built', 0)
  end
  return dofile(cdef), folder_of(cdef), cdef
end

--- Raise an error that names the one of three hashes that differs.
local function check_hashes(cdef, cdef_path, library, library_path, module, module_path)
  if cdef == library and library == module then
    return
  end
  local old = 'rebuild: they come from three different headers'
  if library == module then
    old = cdef_path .. ' is the one that differs'
  elseif cdef == module then
    old = library_path .. ' is the one that differs'
  elseif cdef == library then
    old = module_path .. ' is the one that differs'
  end
  error(('the parts of moonshard were built from different headers (%s: %s, %s: %s, %s: %s); %s')
    :format(cdef_path, cdef, library_path, library, module_path, module, old), 0)
end

--- Load the C module, which loads the library that it was linked with.
local function load_module(folder)
  local path = folder .. '/moonshard_lua.so'
  if exists(path) then
    local open, why = package.loadlib(path, 'luaopen_moonshard_lua')
    if not open then
      error(('cannot load %s: %s'):format(path, why), 0)
    end
    package.loaded.moonshard_lua = package.loaded.moonshard_lua or open()
  end
  return require 'moonshard_lua', path
end

local folder = find_folder()
local cdef, generated, cdef_path = load_declarations(folder)
if not pcall(ffi.typeof, 'ms_ref') then -- otherwise this process already has the declarations
  ffi.cdef(cdef.text)
end

local core, module_path = load_module(folder)
local beside = folder .. '/libmoonshard.so'
local library_path = exists(beside) and beside or 'libmoonshard.so.0'
local C = ffi.load(library_path)

check_hashes(cdef.hash, cdef_path, ffi.string(C.ms_abi_hash()), library_path, core.abi_hash,
  module_path)

package.preload['moonshard.options'] = function()
  return dofile(generated .. '/options.lua')
end

return {
  C = C,
  core = core,
  folder = folder,
  generated = folder_of(generated), -- contains 'moonshard.options'
  cdef_text = cdef.text,
  calls_path = generated .. '/calls.lua',
}
