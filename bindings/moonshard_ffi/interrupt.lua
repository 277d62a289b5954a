--- Ctrl-C. On SIGINT luajit raises an error in the Lua code that is interpreted next.

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

--- Makes the xpcall of a prompt: SIGINT interrupts only the code that it calls, and otherwise ends
--- the process. luajit removes its handler at each signal, so every call installs it again.
---@param handler fun(err: any): any  of xpcall
---@return fun(fn: function, ...): boolean, any
function interrupt.catcher(handler)
  local on_signal = ffi.C.signal(SIGINT, nil) -- luajit's handler, which runs the caller
  return function(fn, ...)
    ffi.C.signal(SIGINT, on_signal)
    local ok, result = xpcall(fn, handler, ...)
    ffi.C.signal(SIGINT, nil)
    return ok, result
  end
end

--- End this process by SIGINT, after writing all buffered output.
function interrupt.pass_on()
  ffi.C.fflush(nil)
  ffi.C.signal(SIGINT, nil)
  ffi.C.raise(SIGINT)
end

return interrupt
