--- Programs of this tree in processes of their own: what they say, and what they were doing when
--- they ended.

local shell = require 'support.shell'

local child = {}

--- Run a script in a folder of its own, which MS_MISUSE_DIR names; its last argument is the file
--- its progress goes to.
---@param script string
---@param arguments (string|number)[]
---@param seconds integer  it is killed after these
---@return string[] lines  of its standard output
---@return string last  the first line of its progress: the last call it made
function child.run(script, arguments, seconds)
  local folder = shell.make_folder()
  shell.write(folder .. '/tokens', 'abcdefgh')
  local here = require('lfs').currentdir()
  local path = ('spec/?.lua;bindings/?.lua;' .. package.path):gsub('([^;]+)', function(place)
    return place:sub(1, 1) == '/' and place or here .. '/' .. place
  end)
  local command = ("cd %s && MS_MISUSE_DIR=%s LUA_PATH='%s' timeout -s KILL %d luajit %s/%s %s %s")
    :format(folder, folder, path, seconds, here, script, table.concat(arguments, ' '),
      folder .. '/progress')
  local lines = {}
  local pipe = io.popen(command .. ' 2>' .. folder .. '/errors')
  for line in pipe:lines() do
    lines[#lines + 1] = line
  end
  pipe:close()
  local function first_line(name)
    local file = io.open(folder .. '/' .. name)
    local line = file and file:read('*l') or ''
    if file then
      file:close()
    end
    return line
  end
  local last = first_line('progress') .. ' ' .. first_line('errors')
  shell.remove_folder(folder)
  return lines, last
end

return child
