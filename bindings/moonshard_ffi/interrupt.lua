--- Ctrl-C. luajit makes of a SIGINT an error wherever Lua is interpreted next, "interrupted!", and
--- lets go of the signal: a second one ends the process.

local ffi = require 'ffi'

ffi.cdef [[
void (*signal(int number, void (*handler)(int)))(int);
int siginterrupt(int number, int does_end_calls);
int raise(int number);
int fflush(void *stream);
]]

local SIGINT = 2

local interrupt = {}

--- Is this what luajit raises on a SIGINT?
---@param err any
---@return boolean
function interrupt.is(err)
  return err == 'interrupted!'
    or type(err) == 'string' and err:find('^[^\n]+:%d+: interrupted!$') ~= nil
end

--- A function that lets luajit take the next SIGINT too. Give it true to have the signal end a read
--- that waits, instead of what comes after that.
---@return fun(ends_reads: boolean)
function interrupt.keeper()
  local handler = ffi.C.signal(SIGINT, nil)
  return function(ends_reads)
    ffi.C.siginterrupt(SIGINT, ends_reads and 1 or 0)
    ffi.C.signal(SIGINT, handler)
  end
end

--- End this process as a SIGINT does that nobody handles, with all that was printed written.
function interrupt.pass_on()
  ffi.C.fflush(nil)
  ffi.C.signal(SIGINT, nil)
  ffi.C.raise(SIGINT)
end

return interrupt
