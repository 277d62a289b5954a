-- Writes the pages of docs/reference/: luajit bindings/reference.lua FOLDER
local reference = require 'moonshard.reference'

reference.use(require 'moonshard', 'moonshard.ms')

local folder = assert(arg[1], 'expected the folder of the pages')
for _, name in ipairs(reference.pages()) do
  local file = assert(io.open(('%s/%s.md'):format(folder, name), 'w'))
  file:write(reference.page(name))
  file:close()
end
