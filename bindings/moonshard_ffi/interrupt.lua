--- Ctrl-C: of a SIGINT luajit, and the prompt (bindings/interrupt.c), make an error wherever Lua is
--- interpreted next: "interrupted!".

local ffi = require 'ffi'

ffi.cdef [[
void (*signal(int number, void (*handler)(int)))(int);
int raise(int number);
int fflush(void *stream);
]]

local SIGINT = 2

local interrupt = {}

--- Is this what a SIGINT raised?
---@param err any
---@return boolean
function interrupt.is(err)
  return err == 'interrupted!'
    or type(err) == 'string' and err:find('^[^\n]+:%d+: interrupted!$') ~= nil
end

--- End this process as a SIGINT does that nobody handles, with all that was printed written.
function interrupt.pass_on()
  ffi.C.fflush(nil)
  ffi.C.signal(SIGINT, nil)
  ffi.C.raise(SIGINT)
end

return interrupt
