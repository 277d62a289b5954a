--- Errors that a rank does not catch. Their message and traceback are sent to the launcher and the
--- other ranks before the stack is unwound. The launcher prints both when the job has ended, so the
--- rank itself prints one line.

local B = require 'moonshard_ffi'
local errors = require 'moonshard.base.errors'
local interrupt = require 'moonshard_ffi.interrupt'

local C = B.C

local uncaught = {}

--- Remove the frames of the script runner (rank.lua) from a traceback.
local function trim(traceback)
  local inside = traceback:match('^(.-)\n\t[^\n]*moonshard/tools/rank%.lua:')
  if not inside then
    return traceback
  end
  inside = inside:gsub("\n\t%[C%]: in function 'xpcall'\n\t[^\n]*uncaught%.lua:[^\n]*$", '')
  return inside ~= 'stack traceback:' and inside or ''
end

local info = B.new('ms_dist_info')

-- Before a rank has joined, its number is known only from the environment.
local function rank()
  C.ms_dist_info_get(info)
  return not info.initialized and os.getenv 'MOONSHARD_RANK' or info.rank
end

--- Was this error caused by another rank's? After a failure every collective raises its reason.
local function is_known(line)
  local joined, world = pcall(B.world)
  return joined and C.ms_comm_barrier(world) ~= 0
    and B.string(C.ms_error_message()):find(line, 1, true) ~= nil
end

-- The text for the rank to print: one line, or the whole error if the job ends for another reason.
-- A Ctrl-C is not an error of the script: the rank ends by the signal, which the launcher reports.
local function tell(err, traceback)
  if interrupt.is(err) then
    interrupt.pass_on()
  end
  if C.ms_dist_launched() then -- a launcher is reached before the script has joined
    C.ms_dist_join()
  end
  local line, text = B.errors.report(err, trim(errors.is(err) and err.traceback
    or traceback:sub(2)))
  local is_cause = C.ms_dist_abort(errors.status(err), text)
  local is_consequence = errors.is(err) and err.kind == 'CommError'
  return (is_cause or is_consequence or is_known(line)) and line or text
end

local function print_what_is_told(err, traceback)
  local text = tell(err, traceback)
  io.stderr:write(('moonshard: rank %s: %s\n'):format(rank(), text))
end

-- [Note: handlers] A stack that has overflown has room for two small frames. So handlers only make
-- the traceback and continue in a coroutine, which has its own stack.

--- Message handler of xpcall: report the error to the job.
---@return string text  for the rank to print: one line, or the whole error if the job ends for
---  another reason
function uncaught.tell(err)
  return coroutine.wrap(tell)(err, debug.traceback('', 2))
end

--- Message handler of xpcall: report the error to the job, and print the rank's text in one write,
--- because other ranks print too. Returns nothing, so that the caller prints nothing.
function uncaught.report(err)
  coroutine.wrap(print_what_is_told)(err, debug.traceback('', 2))
end

--- Call `fn` and report its error, also an error that bypasses handlers (out of memory).
---@return boolean ok, ...  fn's results
function uncaught.call(fn, ...)
  local results = { xpcall(fn, uncaught.report, ...) }
  if not results[1] and results[2] ~= nil then
    uncaught.report(results[2])
  end
  return unpack(results, 1, table.maxn(results))
end

--- The outermost function on the stack if it is C: the function of luajit that runs the script.
---@return integer? level
local function outermost()
  local level = 2
  while debug.getinfo(level + 1, 'l') do
    level = level + 1
  end
  return debug.getinfo(level, 'S').what == 'C' and level - 1 or nil
end

local function is_traceback(value)
  local ok, text = pcall(value, 'probe')
  return ok and type(text) == 'string' and text:find('^probe\nstack traceback:') ~= nil
end

--- Also report errors that the script itself does not catch. A forked rank returns into a script
--- that luajit has already called with a handler that only makes a traceback. The handler is on the
--- stack directly below the script and is replaced there. If it is not found (another host, a
--- coroutine), the job receives only the exit code.
function uncaught.install()
  local level = outermost()
  if not level then
    return
  end
  local last = 0
  while debug.getlocal(level, last + 1) do
    last = last + 1
  end
  local _, handler = debug.getlocal(level, last)
  if type(handler) == 'function' and handler ~= uncaught.report and is_traceback(handler) then
    debug.setlocal(level, last, uncaught.report)
  end
end

return uncaught
