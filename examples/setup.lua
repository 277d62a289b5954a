--- Lets a script run from a checkout: finds Lua files and libraries relative to this file. Examples
--- begin with
---   dofile((arg[0]:match('^(.*)/') or '.') .. '/setup.lua')
--- Installed, none of this is needed.

local here = debug.getinfo(1, 'S').source:match('^@(.*)/[^/]*$') or '.'
local root = here .. '/..'

package.path = table.concat({
  here .. '/?.lua',
  root .. '/lua/?.lua', root .. '/lua/?/init.lua', root .. '/bindings/?.lua',
  root .. '/bindings/?/init.lua', package.path,
}, ';')
