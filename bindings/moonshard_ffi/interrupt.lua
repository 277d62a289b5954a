--- Ctrl-C: of a SIGINT luajit, and the prompt (bindings/interrupt.c), make an error wherever Lua is
--- interpreted next.

local ffi = require 'ffi'
local core = require('moonshard_ffi.library').core

ffi.cdef [[
void (*signal(int number, void (*handler)(int)))(int);
int raise(int number);
int fflush(void *stream);
]]

local SIGINT = 2

local interrupt = {}

-- What a SIGINT raises at the prompt.
local INTERRUPT = setmetatable({}, { __tostring = function() return 'interrupted' end })

--- pcall(fn, ...) that a Ctrl-C ends, also a read in it. What comes outside ends the next one.
---@param fn fun(...): ...
---@return boolean ok, ...
function interrupt.pcall(fn, ...)
  return core.interruptible(INTERRUPT, fn, ...)
end

-- luajit lets go of the signal when it makes an error of it, and that error is a text.
local handled = core.sigint_is_handled()

local function is_of_luajit(err)
  return type(err) == 'string' and err:find('^[^\n]-interrupted!$') ~= nil
    and handled and not core.sigint_is_handled()
end

--- Is this what a SIGINT raised?
---@param err any
---@return boolean
function interrupt.is(err)
  return rawequal(err, INTERRUPT) or is_of_luajit(err)
end

--- End this process as a SIGINT does that nobody handles, with all that was printed written.
function interrupt.pass_on()
  ffi.C.fflush(nil)
  ffi.C.signal(SIGINT, nil)
  ffi.C.raise(SIGINT)
end

return interrupt
