--- Runs a command that answers with one line of JSON.

local ms = require 'moonshard'
local json = require 'moonshard.base.json'

local subprocess = {}

local function contents(path)
  local file = io.open(path)
  local text = file:read('*a')
  file:close()
  return text
end

---@param command string
---@return table? answer
---@return number seconds  from the start of the command to its line
---@return string? why  what it wrote to stderr, when there is no answer
function subprocess.answer(command)
  local errors = os.tmpname()
  local begin = ms.time()
  local pipe = io.popen(('%s 2>%s'):format(command, errors))
  local line = pipe:read('*l')
  local seconds = ms.time() - begin
  pipe:read('*a')
  pipe:close()
  local why = not line and contents(errors) or nil
  os.remove(errors)
  return line and json.decode(line) or nil, seconds, why
end

return subprocess
