--- The moonshard command: `moonshard run -n 4 script.lua args...`.

local B = require 'moonshard_ffi'
local errors = require 'moonshard.errors'

local C = B.C

local cli = {}

local USAGE = [[
usage: moonshard run [-n RANKS] [--no-prefix] SCRIPT [ARGUMENT...]
       moonshard info
       moonshard --version | --help

run    start SCRIPT on RANKS ranks of this host and supervise them: lines get a "[rank N]" in
       front, the first failure ends all, the exit code is that of the rank that failed first.
       A .lua file is run by luajit, anything else by itself.
  -n, --ranks RANKS   default: one per core, at most 8
  --no-prefix         leave the lines of the ranks as they are
info   version, instruction set of the kernels, cores, folder of the library
]]

local RUN_FLAGS = { '-n', '--ranks', '--no-prefix' }

local function refuse(message)
  io.stderr:write('moonshard: ', message, '\n')
  return 2
end

local function launch(command, ranks, prefix)
  local argv = B.new('const char *[?]', #command + 1)
  for i, word in ipairs(command) do
    argv[i - 1] = word
  end
  local out = B.new('ms_launch *[1]')
  local code, cause = B.new('int32_t[1]'), B.new('const char *[1]')
  B.check(C.ms_launch_exec(out, ranks, argv, prefix))
  B.check(C.ms_launch_wait(out[0], code, cause))
  local why = B.string(cause[0])
  if why ~= '' then
    io.stderr:write('moonshard: ', why, '\n')
  end
  return code[0]
end

local function run(words)
  local ranks, prefix, at = nil, true, 1
  while words[at] and words[at]:sub(1, 1) == '-' do
    local flag, value = words[at]:match('^(%-%-%w+)=(.*)$')
    flag = flag or words[at]
    if flag == '-n' or flag == '--ranks' then
      if not value then
        at = at + 1
        value = words[at]
      end
      ranks = tonumber(value)
      if not ranks or ranks < 1 or ranks % 1 ~= 0 then
        return refuse(('%s: expected a whole number from 1, got %s'):format(flag,
          value or 'nothing'))
      end
    elseif flag == '--no-prefix' then
      prefix = false
    else
      local near = errors.nearest(flag, RUN_FLAGS)
      return refuse('run: unknown flag ' .. flag
        .. (near and ', did you mean ' .. near .. '?' or ''))
    end
    at = at + 1
  end
  if not words[at] then
    return refuse('run: no script given')
  end
  local command = { unpack(words, at) }
  if command[1]:find('%.lua$') then
    table.insert(command, 1, 'luajit')
  end
  return launch(command, ranks or math.min(require('moonshard.dist').info().cores, 8), prefix)
end

local function info()
  local ms = require 'moonshard'
  print('moonshard ' .. ms.version)
  print('kernels   ' .. B.string(C.ms_cpu_isa()))
  print('cores     ' .. ms.dist.info().cores)
  print('library   ' .. (B.folder or 'installed'))
  return 0
end

--- Run a command line.
---@param words string[]  without the program's name
---@return integer exit_code
function cli.main(words)
  local command = words[1]
  local rest = { unpack(words, 2) }
  if command == 'run' then
    local ok, result = pcall(run, rest)
    return ok and result or refuse(errors.describe(result))
  elseif command == 'info' then
    return info()
  elseif command == '--version' then
    print('moonshard ' .. B.string(C.ms_version()))
    return 0
  elseif command == '--help' or command == '-h' or command == 'help' then
    io.stdout:write(USAGE)
    return 0
  end
  io.stderr:write(USAGE)
  return 2
end

return cli
