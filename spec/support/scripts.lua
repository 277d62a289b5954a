--- Running scripts and command lines of this tree from specs.

local shell = require 'support.shell'

local scripts = {}

--- Run a command in this tree.
---@param command string
---@return string output   of stdout and stderr
---@return integer code
function scripts.shell(command)
  local code, output = shell.run('.', command)
  return output, code
end

--- Call `fn(path)` with a script of this code, in which `ms` is the library.
---@param code string
---@param fn fun(path: string)
function scripts.with_script(code, fn)
  local path = os.tmpname()
  os.remove(path)
  path = path .. '.lua'
  shell.write(path, "local ms = require 'moonshard'\n" .. code)
  local ok, err = pcall(fn, path)
  os.remove(path)
  if not ok then
    error(err, 0)
  end
end

return scripts
