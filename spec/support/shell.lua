--- Commands, files and folders that specs make.

local lfs = require 'lfs'

local shell = {}

---@param path string
---@return string
function shell.read(path)
  local file = assert(io.open(path, 'rb'))
  local text = file:read('*a')
  file:close()
  return text
end

---@param path string
---@param text string
function shell.write(path, text)
  local file = assert(io.open(path, 'wb'))
  assert(file:write(text))
  file:close()
end

--- A new folder. The caller removes it with remove_folder().
---@return string path
function shell.make_folder()
  local path = os.tmpname()
  os.remove(path)
  assert(lfs.mkdir(path))
  return path
end

--- Remove a folder and all in it; links in it are removed, not followed.
---@param path string
function shell.remove_folder(path)
  os.execute(("rm -rf '%s'"):format(path))
end

--- Run a command, with nothing to read, in a folder.
---@param folder string
---@param command string  one simple command: program and words
---@return integer code  124 when it took more than five minutes
---@return string output  what it wrote to stdout and stderr
function shell.run(folder, command)
  local out = os.tmpname()
  local status = os.execute(("cd '%s' && timeout 300 %s >'%s' 2>&1 </dev/null"):format(folder,
    command, out))
  local text = shell.read(out)
  os.remove(out)
  return status / 256, text
end

return shell
