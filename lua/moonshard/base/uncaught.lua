--- What becomes of an error that nobody in a rank catches: launcher and other ranks are told its
--- message and traceback before anything is unwound. The launcher prints both when the job has
--- ended, so the rank itself prints one line.

local B = require 'moonshard_ffi'
local errors = require 'moonshard.base.errors'
local interrupt = require 'moonshard_ffi.interrupt'

local C = B.C

local uncaught = {}

--- A traceback without what runs the script (rank.lua).
local function trim(traceback)
  local inside = traceback:match('^(.-)\n\t[^\n]*moonshard/tools/rank%.lua:')
  if not inside then
    return traceback
  end
  inside = inside:gsub("\n\t%[C%]: in function 'xpcall'\n\t[^\n]*uncaught%.lua:[^\n]*$", '')
  return inside ~= 'stack traceback:' and inside or ''
end

local info = B.new('ms_dist_info')

-- Until a rank has joined it knows from its environment alone which it is.
local function rank()
  C.ms_dist_info_get(info)
  return not info.initialized and os.getenv 'MOONSHARD_RANK' or info.rank
end

--- Did another rank fail by the same? Every collective of a job that has failed says why.
local function is_known(line)
  local joined, world = pcall(B.world)
  return joined and C.ms_comm_barrier(world) ~= 0
    and B.string(C.ms_error_message()):find(line, 1, true) ~= nil
end

-- The text for the rank to print: a line, or all when the job ends for another reason. A Ctrl-C is
-- no mistake of the script: the rank ends by the signal, which the launcher tells.
local function tell(err, traceback)
  if interrupt.is(err) then
    interrupt.pass_on()
  end
  if C.ms_dist_launched() then -- by a launcher, which may be told before the script has joined
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

-- [Note: handlers] The stack on which something was raised may have overflown, and holds two small
-- frames more: so handlers only make the traceback and go on in a coroutine, which has its own.

--- Message handler of xpcall: tell the job.
---@return string text  for the rank to print: a line, or all when the job ends for another reason
function uncaught.tell(err)
  return coroutine.wrap(tell)(err, debug.traceback('', 2))
end

--- Message handler of xpcall: tell the job, and print what is the rank's to print, in one piece, as
--- other ranks print too. Gives nothing: whoever called the script has nothing more to print.
function uncaught.report(err)
  coroutine.wrap(print_what_is_told)(err, debug.traceback('', 2))
end

--- Call `fn`; what it raises is reported, also where no handler is asked, as when memory is out.
---@return boolean ok, ...  what it returns
function uncaught.call(fn, ...)
  local results = { xpcall(fn, uncaught.report, ...) }
  if not results[1] and results[2] ~= nil then
    uncaught.report(results[2])
  end
  return unpack(results, 1, table.maxn(results))
end

--- The outermost function on the stack, when it is C: luajit's, which runs the script.
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

--- Tell the job also of what the script itself does not catch. A forked rank returns into a script
--- that luajit called long ago, with a handler that only makes a traceback; it lies on the stack
--- right below the script, where it can be replaced. Where it is not found (a host of another kind,
--- a coroutine) the job learns the exit code only.
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
