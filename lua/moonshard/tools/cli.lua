--- The moonshard command: `moonshard run -n 4 script.lua args...`.

local B = require 'moonshard_ffi'
local errors = require 'moonshard.base.errors'

local C = B.C

local cli = {}

local USAGE = [[
usage: moonshard run [-n RANKS] [--no-prefix] SCRIPT [ARGUMENT...]
       moonshard plan [FLAGS] SCRIPT [ARGUMENT...]
       moonshard finetune FOLDER DATA... [--lora] [--out=FOLDER] [--memory=SIZE] [--show]
       moonshard generate FOLDER PROMPT...
       moonshard tokenize TOKENIZER FILE... --out=PATH
       moonshard repl
       moonshard info
       moonshard doctor
       moonshard --version | --help

run       start a script on several ranks of this host and supervise them
plan      memory, traffic and time of a script on many ranks, without running them
finetune  train a model of a folder on JSON lines, and write a folder or an adapter
generate  text of a model of a folder
tokenize  files of text into one file of tokens
repl      a prompt for Lua, with ms loaded
info      version, instruction set of the kernels, cores, folder of the library
doctor    what this machine has for training, and what is missing

moonshard COMMAND --help gives details.
]]

local RUN_USAGE = [[
usage: moonshard run [-n RANKS] [--no-prefix] SCRIPT [ARGUMENT...]
       moonshard run --hosts=HOST:RANKS,HOST:RANKS... [--rsh=COMMAND] SCRIPT [ARGUMENT...]

Start SCRIPT on RANKS ranks of this host and supervise them. A .lua file is run by luajit, anything
else by itself. Each line that a rank prints gets a "[rank N]" ("[rank N, host H]" on several hosts)
in front and is printed when it is whole; "\r" ends a line, too. A line of more than 1 MiB is
printed in pieces that end in " ...". The first failure ends all ranks and is printed, with the
traceback of an error in Lua. The exit code is that of the rank that failed first, or 128 + signal.

  -n, --ranks RANKS   1 to 128; default: one per core, at most 8
  --no-prefix         leave the lines of the ranks as they are
  --restarts NUMBER   how often a failed job may be started again (not after a stop signal). Its
                      ranks find MS_RESTART set to 1, 2, ...: load the newest checkpoint
  --hosts LIST        a:4,b:4: four ranks on each of two hosts. The first is this host, at an
                      address that the others reach; the others are started by --rsh
  --rsh COMMAND       started as COMMAND HOST sh -s; default: ssh
  --host NUMBER       this is host NUMBER of the list, from 0, and starts no other; MOONSHARD_SECRET
                      is a text that is equal on all hosts
  --port PORT         where the hosts meet, on the first; default: 29500
  --wait SECONDS      how long they wait for each other; default: 60
  -h, --help          this text

All words after SCRIPT are arguments of it.

Ctrl-C (SIGINT), SIGTERM and SIGHUP ask the ranks to stop: ms.dist.stop_requested() returns the
signal. A second SIGINT or SIGTERM ends them at once. A rank that never calls it is ended after
MS_STOP_TIMEOUT seconds. Until its first call of it or of ms.dist.catch_signals(), a rank gets the
signal itself. SIGUSR1 is passed on, and the ranks decide. Processes that ranks leave end with them.

Variables of the environment, in seconds:
  MS_COMM_TIMEOUT=600   how long a rank waits for another before it fails
  MS_COMM_ANNOUNCE=15   after how long a wait is announced; 0: never
  MS_STOP_TIMEOUT=10    after a signal, until ranks that never ask are ended; and how long a failed
                        job waits for a reader of its last lines; 0: no limit
]]

local INFO_USAGE = [[
usage: moonshard info

Print version, instruction set of the kernels, cores, and the folder of the library.
]]

local DOCTOR_USAGE = [[
usage: moonshard doctor [--hosts=HOST:RANKS,HOST:RANKS...]

Print what this machine has for training, one fact a line: processor, memory and its limits, matrix
library, plug-ins, driver, cards and libraries for GPUs, and what is missing for what. It trains one
step on two ranks of this host, in processes of its own. The exit code is 0 if training on the CPU
works. With --hosts, and other flags of run: what each host has, latency and bandwidth between each
two of them.
]]

local REPL_USAGE = [[
usage: moonshard repl

Start a prompt for Lua with ms, nn, optim and fsdp loaded. An expression prints its values: lists
and tables their contents, functions and classes how they are called. ms.help('nn.Linear') prints
the reference of a name. Ctrl-C ends the line that runs, Ctrl-D the prompt.
]]

local RUN_FLAGS = { '-n', '--ranks', '--no-prefix', '--restarts', '--hosts', '--rsh', '--host',
  '--port', '--wait', '-h', '--help' }

-- Flags of `run` that have a value, and what it becomes.
local RUN_VALUES = { ['--restarts'] = tonumber, ['--hosts'] = tostring, ['--rsh'] = tostring,
  ['--host'] = tonumber,
  ['--port'] = tonumber, ['--wait'] = tonumber }

--- Refuse a command line: one line that says why, and exit code 2.
local function refuse(format, ...)
  errors.raise('ValueError', format, ...)
end

-- Cores this process may use. (dist.info() would make a rank of what a launcher started.)
local function cores()
  local info = B.new('ms_dist_info')
  C.ms_dist_info_get(info)
  return info.cores
end

local function is_help(word)
  return word == '--help' or word == '-h'
end

local function unknown(what, word, known)
  local near = errors.nearest(word, known)
  refuse('%s %s%s', what, word, near and ', did you mean ' .. near .. '?'
    or ', expected one of ' .. table.concat(known, ', '))
end

local function launch(command, ranks, prefix, at)
  local argv = B.new('const char *[?]', #command + 1)
  for i, word in ipairs(command) do
    argv[i - 1] = word
  end
  local out = B.new('ms_launch *[1]')
  local code, cause = B.new('int32_t[1]'), B.new('const char *[1]')
  if at then
    B.check(C.ms_launch_hosts(out, at, ranks, argv, prefix))
  else
    B.check(C.ms_launch_exec(out, ranks, argv, prefix))
  end
  B.check(C.ms_launch_wait(out[0], code, cause))
  local why = B.string(cause[0])
  if why ~= '' then
    io.stderr:write('moonshard: ', why, '\n')
  end
  return code[0], why:find '^stopped by' ~= nil
end

-- Run `start` until it succeeds, at most 1 + `most` times.
local function restarted(most, start)
  local code, stopped = start()
  for k = 1, most or 0 do
    if code == 0 or stopped then
      break
    end
    io.stderr:write(('moonshard: the job failed with code %d: restart %d of %d\n'):format(code, k,
      most))
    B.set_variable('MS_RESTART', tostring(k))
    code, stopped = start()
  end
  return code
end

--- The value of a flag, given as `--flag=value` or as the next word.
local function ranks_of(flag, text)
  local ranks = tonumber(text)
  if not ranks or ranks % 1 ~= 0 or ranks < 1 or ranks > C.MS_MAX_RANKS then
    refuse('run: %s is %s, expected a whole number from 1 to %d', flag, text or 'given nothing',
      C.MS_MAX_RANKS)
  end
  return ranks
end

--- Flags of `run`, up to the script.
local function run_flags(words)
  local o, at = { prefix = true }, 1
  while words[at] and words[at]:find('^%-') do
    local flag, value = words[at]:match('^(%-%-[%w_-]+)=(.*)$')
    if not flag then
      flag, value = words[at]:match('^(%-n)(%d+)$')
    end
    flag = flag or words[at]
    if flag == '-n' or flag == '--ranks' or RUN_VALUES[flag] then
      if not value then
        at = at + 1
        value = words[at]
      end
      if RUN_VALUES[flag] then
        o[flag:sub(3)] = value and RUN_VALUES[flag](value)
          or refuse('run: %s is %s', flag, value or 'given nothing')
      else
        o.ranks = ranks_of(flag, value)
      end
    elseif flag ~= '--no-prefix' and not is_help(flag) then
      unknown('run: unknown flag', flag, RUN_FLAGS)
    elseif value then
      refuse('run: %s takes no value, got %s', flag, value)
    elseif flag == '--no-prefix' then
      o.prefix = false
    else
      o.help = true
    end
    at = at + 1
  end
  o.command, o.flags_end = { unpack(words, at) }, at -- `run` is before the flags
  return o
end

--- The program that runs this one, as it was called.
local function interpreter(words)
  local at = -1
  while words[at - 1] do
    at = at - 1
  end
  return words[at] or 'luajit'
end

-- The same as a word for the shell.
local function quoted_interpreter(words)
  return "'" .. interpreter(words):gsub("'", "'\\''") .. "'"
end

--- Fail once, before ranks start, where each of them would fail.
local function check_script(path)
  local file, why = io.open(path)
  local _, unreadable = nil, why
  if file then
    _, unreadable = file:read(0)
    file:close()
  end
  if unreadable then
    refuse('run: cannot read %s: %s', path, (unreadable:gsub('^.*: ', '')))
  end
end

local function is_on_path(program)
  for folder in (os.getenv('PATH') or ''):gmatch('[^:]+') do
    local file = io.open(folder .. '/' .. program)
    if file then
      file:close()
      return true
    end
  end
  return false
end

-- A script of another language, named as a Lua script would be.
local function check_program(name)
  local file = not name:find('/', 1, true) and io.open(name)
  if file then
    file:close()
    if not is_on_path(name) then
      refuse('run: %s is no Lua script (.lua), nor a program on PATH; put what runs it in front of '
        .. 'it, or ./ when it runs by itself', name)
    end
  end
end

local function run_on_hosts(o, command, all)
  local hosts = require 'moonshard.tools.hosts'
  hosts.prepare(o)
  o.words = all
  return restarted(o.restarts, function()
    local others = o.host and {} or hosts.start_others(o)
    local code, stopped = launch(command, o.ranks, o.prefix, hosts.describe(o))
    for _, pipe in ipairs(code == 0 and others or {}) do -- a failed host may never answer
      pipe:close()
    end
    return code, stopped
  end)
end

local function run(words, all)
  local o = run_flags(words)
  if o.help then
    io.stdout:write(RUN_USAGE)
    return 0
  elseif not o.command[1] then
    refuse('run: no script given (moonshard run --help)')
  end
  local command = o.command
  if command[1]:find('%.lua$') then
    check_script(command[1])
    command = { interpreter(all), all[0], 'rank', unpack(command) }
  else
    check_program(command[1])
  end
  if o.hosts then
    return run_on_hosts(o, command, all)
  end
  local ranks = o.ranks or math.min(cores(), 8)
  return restarted(o.restarts, function() return launch(command, ranks, o.prefix) end)
end

-- Commands that take only --help: true if it was given and the usage was written.
local function explained(command, usage, words)
  if is_help(words[1]) then
    io.stdout:write(usage)
    return true
  elseif words[1] then
    refuse('%s: unexpected word %s', command, words[1])
  end
end

local function repl(words, all)
  if not explained('repl', REPL_USAGE, words) then
    -- interpreted: a compiled loop does not see a SIGINT
    local command = quoted_interpreter(all)
      .. [[ -joff -e 'require("moonshard.tools.prompt")()']]
    return os.execute(command) == 0 and 0 or 1
  end
  return 0
end

-- The loader may have found it elsewhere than beside the module for Lua.
local function folder_of_library()
  for line in io.lines('/proc/self/maps') do
    local folder = line:match('(/.*)/libmoonshard%.so')
    if folder then
      return folder
    end
  end
end

local function info(words)
  if explained('info', INFO_USAGE, words) then
    return 0
  end
  local ms = require 'moonshard'
  print('moonshard ' .. ms.version)
  print('kernels   ' .. B.string(C.ms_cpu_isa()))
  print('cores     ' .. cores())
  print('library   ' .. (folder_of_library() or B.folder))
  return 0
end

-- `doctor --hosts=...` is a run of a function of ours.
local function check_hosts(words, all)
  local as_run = { 'run', '--no-prefix', unpack(words) }
  local at = 0
  while all[at] do
    as_run[at], at = all[at], at - 1
  end
  for _, word in ipairs { interpreter(all), '-e', "require('moonshard.tools.hosts_check')()" } do
    as_run[#as_run + 1] = word
  end
  return run({ unpack(as_run, 2) }, as_run)
end

local function doctor(words, all)
  if words[1] and words[1]:find '^%-%-hosts' then
    return check_hosts(words, all)
  end
  if explained('doctor', DOCTOR_USAGE, words) then
    return 0
  end
  local works = require('moonshard.tools.doctor').main(cores(), folder_of_library() or B.folder,
    quoted_interpreter(all))
  return works and 0 or 1
end

-- A command in a file of its own.
local function in_file(name)
  return function(words, all)
    return require('moonshard.tools.' .. name).main(words, all)
  end
end

local function tokenize(words)
  return require('moonshard.tools.tokenize')(words, cores())
end

local function version()
  print('moonshard ' .. B.string(C.ms_version()))
  return 0
end

local function help()
  io.stdout:write(USAGE)
  return 0
end

local commands = {
  run = run, repl = repl, info = info, doctor = doctor, tokenize = tokenize,
  plan = in_file 'plan', finetune = in_file 'finetune', generate = in_file 'generate',
  ['--version'] = version, ['--help'] = help, ['-h'] = help, help = help,
}

local function main(words)
  local command = words[1]
  if not command then
    io.stderr:write(USAGE)
    return 2
  elseif command:find('%.lua$') then
    refuse('unknown command %s: a script is started by moonshard run %s', command, command)
  elseif not commands[command] then
    unknown('unknown command', command, { 'run', 'plan', 'finetune', 'generate', 'tokenize',
      'repl', 'info', 'doctor', 'help', '--version', '--help' })
  end
  return commands[command]({ unpack(words, 2) }, words)
end

--- Run a command line.
---@param words string[]  without the program's name, which is [0]; [-1]: the interpreter
---@return integer exit_code
function cli.main(words)
  if words[1] == 'rank' then -- started by `run`: no frame of this file is below the script
    require('moonshard.tools.rank')({ [-1] = interpreter(words), unpack(words, 2) })
    return 0
  end
  local ok, result = pcall(main, words)
  if ok then
    return result
  end
  io.stderr:write('moonshard: ', B.errors.text(result), '\n')
  local usage = errors.is(result)
    and (result.kind == 'ValueError' or result.kind == 'NotImplementedError')
  return usage and 2 or 1
end

return cli
