--- Running scripts and command lines from specs.

local scripts = {}

--- Run a command line.
---@param command string
---@return string output   of stdout and stderr
---@return integer code
function scripts.shell(command)
  local pipe = io.popen('(' .. command .. ') 2>&1; echo "code $?"')
  local output = pipe:read('*a')
  pipe:close()
  local text, code = output:match('^(.*)code (%d+)\n$')
  return text, tonumber(code)
end

--- Call `fn(path)` with a script of this code, which finds the library as `ms`.
---@param code string
---@param fn fun(path: string)
function scripts.with_script(code, fn)
  local path = os.tmpname()
  os.remove(path)
  path = path .. '.lua'
  local file = assert(io.open(path, 'w'))
  file:write("local ms = require 'moonshard'\n", code)
  file:close()
  local ok, err = pcall(fn, path)
  os.remove(path)
  if not ok then
    error(err, 0)
  end
end

return scripts
