--- What becomes of an error that nobody in a rank catches: launcher and other ranks are told its
--- message and traceback before anything is unwound. The launcher prints both when the job has
--- ended, so the rank itself prints one line.

local B = require 'moonshard_ffi'
local errors = require 'moonshard.errors'

local C = B.C

local uncaught = {}

--- A traceback without what runs the script (rank.lua).
local function trim(traceback)
  local inside = traceback:match('^(.-)\n\t[^\n]*moonshard/rank%.lua:')
  if not inside then
    return traceback
  end
  inside = inside:gsub("\n\t%[C%]: in function 'xpcall'$", '')
  return inside ~= 'stack traceback:' and inside or ''
end

local comm_out = B.new('ms_comm *[1]')

--- Did another rank fail by the same? Every collective of a job that has failed says why.
local function is_known(line)
  return C.ms_comm_world(comm_out) == 0 and C.ms_comm_barrier(comm_out[0]) ~= 0
    and B.string(C.ms_error_message()):find(line, 1, true) ~= nil
end

--- Message handler of xpcall: tell the job.
---@return string text  for the rank to print: a line, or all when the job ends for another reason
function uncaught.tell(err)
  if C.ms_dist_launched() then -- by a launcher, which may be told before the script has joined
    C.ms_dist_join()
  end
  local line = errors.describe(err)
  local traceback = errors.is(err) and err.traceback or debug.traceback('', 2):sub(2)
  local told, text = B.errors.report(err, trim(traceback))
  local is_cause = C.ms_dist_abort(errors.status(err), told)
  local is_consequence = errors.is(err) and err.kind == 'CommError'
  return (is_cause or is_consequence or is_known(line)) and line or text
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
  if type(handler) == 'function' and is_traceback(handler) then
    debug.setlocal(level, last, uncaught.tell)
  end
end

return uncaught
