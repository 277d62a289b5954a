--- Loads the library once for all spec files. busted unloads modules after each file, but FFI
--- declarations can be made only once in a process.

local lfs = require 'lfs'

require 'moonshard_ffi'

local function load_all(folder, prefix)
  local names = {}
  for name in lfs.dir(folder) do
    names[#names + 1] = name
  end
  table.sort(names)
  for _, name in ipairs(names) do
    local path = folder .. '/' .. name
    if name:sub(1, 1) ~= '.' and lfs.attributes(path, 'mode') == 'directory' then
      load_all(path, prefix .. name .. '.')
    elseif name:match('%.lua$') and name ~= 'init.lua' then
      require(prefix .. name:match('^(.*)%.lua$'))
    elseif name == 'init.lua' then
      require((prefix:gsub('%.$', '')))
    end
  end
end

load_all('lua/moonshard', 'moonshard.')
require 'support.checks'
require 'support.scripts'
require 'support.samples'
require 'support.op_counts'

-- A spec may have made this process a rank of a world of one; the next one may fork ranks.
require('busted').subscribe({ 'file', 'end' }, function()
  require('moonshard').close()
  return nil, true -- other listeners go on
end)
