--- The tape from Lua: switching it off, and hooks.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.errors'
local guard = require 'moonshard.guard'
local receiver = require 'moonshard.receiver'
local scope = require 'moonshard.scope'
local Tensor = require 'moonshard.tensor'

local C, calls, core = B.C, B.calls, B.core

local autograd = {}

local function switch(on)
  C.ms_grad_enabled_set(on)
end

local function switched(on, fn, ...)
  C.ms_grad_enabled_set(on)
  return fn(...)
end

local function run(name, on, fn, ...)
  arguments.fn(name, 'fn', fn)
  return guard.run(name, switch, C.ms_grad_enabled(), switched, on, fn, ...)
end

--- Run `fn(...)` without recording, and return what it returns.
---@param fn fun(...): ...
---@return ...
function autograd.no_grad(fn, ...)
  return run('no_grad', false, fn, ...)
end

--- Run `fn(...)` recording again inside a no_grad.
---@param fn fun(...): ...
---@return ...
function autograd.enable_grad(fn, ...)
  return run('enable_grad', true, fn, ...)
end

--- Are operators recorded now?
---@return boolean
function autograd.is_grad_enabled()
  return C.ms_grad_enabled()
end

--- A ref of one's own on the handle whose ref stands at `address`.
local function ref_at(address)
  return B.Ref(B.cast('ms_ref *', address)[0])
end

local function see_gradient(address, fn)
  local result = fn(calls.tensor_detach(ref_at(address)))
  if result == nil then
    return
  elseif not B.is_ref(result) then
    errors.raise('TypeError', 'hook: it returned %s, expected a tensor or nil',
      arguments.noun(result))
  end
  B.check(core.replace_gradient(result))
end

-- What goes to the classic C module is checked here: it sees no types of the FFI.
local function check_hook(what, t, fn)
  arguments.tensor(what, 'self', t)
  arguments.fn(what, 'fn', fn)
end

local function checked(status, id)
  B.check(status)
  return id
end

--- Call `fn(grad)` when this tensor's gradient is complete; what it returns replaces the gradient.
--- An error in it ends the backward and reaches its caller as the same object.
---@param fn fun(grad: ms.Tensor): ms.Tensor?
---@return integer id  for remove_hook
function Tensor:hook(fn)
  check_hook('hook', self, fn)
  return checked(core.hook(self, function(address)
    scope.run('a hook', see_gradient, address, fn)
  end))
end

--- Call `fn(leaf)` after each backward has added to this leaf's gradient. For a parameter of a
--- wrapped model that is the end of the backward that has reduced its gradient (inside no_sync none
--- does): on all ranks, unit by unit, for what the backward of any rank has reached.
--- Steps and zero_grad() are legal there; in other hooks they are an AssertionError.
---@param fn fun(leaf: ms.Tensor)
---@return integer id  for remove_hook
function Tensor:accumulate_hook(fn)
  check_hook('accumulate_hook', self, fn)
  return checked(core.accumulate_hook(self, function(address)
    scope.run('a hook', fn, B.own(ref_at(address)))
  end))
end

---@param id integer
function Tensor:remove_hook(id)
  calls.hook_remove(self, id)
end

receiver.check_tensors(Tensor)

return autograd
