--- Programs of this tree in processes of their own: what they say, and what they were doing when
--- they ended.

local child = {}

--- Run a script in a folder of its own, which MS_MISUSE_DIR names; its last argument is the file
--- its progress goes to.
---@param script string
---@param arguments (string|number)[]
---@param seconds integer  it is killed after these
---@return string[] lines  of its standard output
---@return string last  the first line of its progress: the last call it made
function child.run(script, arguments, seconds)
  local pipe = io.popen('mktemp -d')
  local folder = pipe:read('*l')
  pipe:close()
  local tokens = assert(io.open(folder .. '/tokens', 'w'))
  tokens:write('abcdefgh')
  tokens:close()
  local here = require('lfs').currentdir()
  local path = ('spec/?.lua;bindings/?.lua;' .. package.path):gsub('([^;]+)', function(place)
    return place:sub(1, 1) == '/' and place or here .. '/' .. place
  end)
  local command = ("cd %s && MS_MISUSE_DIR=%s LUA_PATH='%s' timeout -s KILL %d luajit %s/%s %s %s")
    :format(folder, folder, path, seconds, here, script, table.concat(arguments, ' '),
      folder .. '/progress')
  local lines = {}
  pipe = io.popen(command .. ' 2>' .. folder .. '/errors')
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
  os.execute('rm -rf ' .. folder)
  return lines, last
end

return child
