-- Writes the pages of docs/reference/: luajit bindings/reference.lua FOLDER
local reference = require 'moonshard.internal.reference'

local folder = assert(arg[1], 'expected the folder of the pages')
for _, name in ipairs(reference.pages()) do
  local file = assert(io.open(('%s/%s.md'):format(folder, name), 'w'))
  file:write(reference.page(name))
  file:close()
end
