--- What `moonshard run` starts once per rank for a Lua script: luajit, but for two things. Lines
--- are printed when they are whole though a pipe takes them, and errors reach the job whenever they
--- are raised, also before the script has joined it.

local uncaught = require 'moonshard.base.uncaught'

--- Run a script as luajit does.
---@param words string[]  the script and its arguments; [-1]: the interpreter
return function(words)
  io.stdout:setvbuf('line')
  arg = { [-1] = words[-1], [0] = words[1], unpack(words, 2) } -- luacheck: globals arg
  local script, mistake = loadfile(words[1])
  if script then
    script = uncaught.call(script, unpack(words, 2))
  else
    uncaught.report(mistake)
  end
  if not script then
    os.exit(1, true)
  end
end
