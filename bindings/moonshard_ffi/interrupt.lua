--- Ctrl-C. luajit turns a SIGINT into an error in the Lua code that is interpreted next.

local ffi = require 'ffi'

ffi.cdef [[
void (*signal(int number, void (*handler)(int)))(int);
int raise(int number);
int fflush(void *stream);
]]

local SIGINT = 2

local interrupt = {}

--- Is this the error that luajit raises for a SIGINT?
---@param err any
---@return boolean
function interrupt.is(err)
  return type(err) == 'string' and err:find('^[^\n]-interrupted!$') ~= nil
end

--- End this process by SIGINT, after writing all buffered output.
function interrupt.pass_on()
  ffi.C.fflush(nil)
  ffi.C.signal(SIGINT, nil)
  ffi.C.raise(SIGINT)
end

return interrupt
