--- Recording of operators and gradients: switching it off, gradients of chosen inputs, hooks.

local B = require 'moonshard_ffi'
local Hook = require 'moonshard.base.hook'
local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'
local graph = require 'moonshard.base.graph'
local finally = require 'moonshard.base.finally'
local parameter = require 'moonshard_ffi.parameter'
local scope = require 'moonshard.base.scope'
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
  return finally.run(switch, C.ms_grad_enabled(), switched, on, fn, ...)
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

---@class ms.Grad.Options: ms.Backward.Options
---@field allow_unused? boolean  an input that no output came from has no gradient; else an error

-- A tensor, or a list of them.
local function listed(name, value)
  if B.is_ref(value) then
    return { value }
  elseif type(value) ~= 'table' then
    arguments.refuse('grad', name, value, 'a tensor or a list of tensors')
  end
  local list = arguments.array('grad', name, value)
  if #list == 0 then
    errors.raise('ValueError', "grad: '%s' is empty, expected one tensor at least", name)
  end
  return list
end

local function put(refs, at, name, list)
  for i = 1, #list do
    refs[at + i - 1] = arguments.tensor('grad', ('%s[%d]'):format(name, i), list[i])
  end
end

-- The given gradients: one for each output, false where none is.
local function put_given(refs, outputs, given)
  given = B.is_ref(given) and { given } or arguments.list('grad', 'grad_outputs', given)
  if #given ~= #outputs then
    errors.raise('ValueError', "grad: 'grad_outputs' has %d entries, expected %d as 'outputs' "
      .. '(false where there is none)', #given, #outputs)
  end
  for i = 1, #given do
    if given[i] then
      local ref = arguments.tensor('grad', ('grad_outputs[%d]'):format(i), given[i])
      if ref.ptr == nil then -- which C would take for none
        errors.raise('RuntimeError', "grad: 'grad_outputs[%d]' was released", i)
      end
      refs[#outputs + i - 1] = ref
    end
  end
end

--- Gradients of the sum of `outputs` with respect to `inputs`, leaves or results: returned, while
--- no leaf's own changes. What was differentiated is used up, as by backward().
--- RuntimeError for an input that no output came from, or that does not require grad;
--- NotImplementedError for a parameter of a wrapped model, whose gradient the ranks sum.
---@param outputs ms.Tensor|ms.Tensor[]
---@param inputs ms.Tensor|ms.Tensor[]
---@param grad_outputs? ms.Tensor|(ms.Tensor|false)[]  of their shapes; not needed for one element,
---                      and may be left out in front of options
---@param options? ms.Grad.Options
---@return ms.Tensor[]  one for each input; false, with allow_unused, for an unused one
function autograd.grad(outputs, inputs, grad_outputs, options)
  if options == nil and type(grad_outputs) == 'table' and type(next(grad_outputs)) == 'string' then
    grad_outputs, options = nil, grad_outputs
  end
  outputs, inputs = listed('outputs', outputs), listed('inputs', inputs)
  local flags = graph.flags('grad', options)
  local n_outputs, n_inputs = #outputs, #inputs
  local refs = B.new('ms_ref[?]', 2 * (n_outputs + n_inputs))
  put(refs, 0, 'outputs', outputs)
  if grad_outputs ~= nil then
    put_given(refs, outputs, grad_outputs)
  end
  put(refs, 2 * n_outputs, 'inputs', inputs)
  B.check(core.grad(refs, n_outputs, n_inputs, flags))
  local results = {}
  for i = 1, n_inputs do
    local ref = B.Ref(refs[2 * n_outputs + n_inputs + i - 1])
    results[i] = ref.ptr ~= nil and (B.state.depth == 0 and B.own(ref) or ref)
  end
  return results
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
  if parameter.is_flat(t) then
    errors.raise('NotImplementedError', '%s: hooks of flat parameters are not supported; wrap '
      .. 'with use_orig_params = true, or hook the parameters in the fields of the module', what)
  end
end

-- Which tensor a hook hangs on, by what hook() gave; copies of refs, which own nothing.
local tensors = setmetatable({}, { __mode = 'k' })
local WEAK = { __mode = 'v' }

local function nothing() end

-- C holds the function that `add` is given, and so `hook`; a handle holds neither that nor the
-- tensor. What hangs on a graph whose tensor was released cannot be taken out, and does nothing.
local function register(add, tensor, fn, call)
  local hook, t = { fn = fn }, B.Ref(tensor)
  local status, id = add(tensor, function(address)
    call(address, hook.fn or nothing)
  end)
  B.check(status)
  local held = setmetatable({ hook }, WEAK)
  local handle = Hook(function()
    if held[1] then
      held[1].fn = nil
    end
    if C.ms_ref_alive(t) then
      C.ms_hook_remove(t.ptr, id) -- fails when backward was first
    end
  end)
  tensors[handle] = t
  return handle
end

local function run_on_gradient(address, fn)
  scope.run('a hook', see_gradient, address, fn)
end

local function run_on_leaf(address, fn)
  scope.run('a hook', fn, B.own(ref_at(address)))
end

--- Call `fn(grad)` when this tensor's gradient is complete; what it returns replaces the gradient.
--- NotImplementedError for a flat parameter: hook the parameters in the fields of the module.
--- An error in it ends the backward and reaches its caller as the same object.
--- The function lives as long as the hook, and with it every tensor it mentions: on a leaf until
--- the hook is removed or the leaf is nobody's, on a result until backward has used its graph up or
--- the graph is nobody's. A function that mentions the tensor it hangs on, or the model that holds
--- it, makes it somebody's: on a leaf, or where no backward follows, such a hook is to be removed.
---@param fn fun(grad: ms.Tensor): ms.Tensor?
---@return ms.Hook  takes the hook away, and lets go of `fn`; again is harmless
function Tensor:hook(fn)
  check_hook('hook', self, fn)
  return register(core.hook, self, fn, run_on_gradient)
end

--- Call `fn(leaf)` after each backward has added to this leaf's gradient. For a parameter of a
--- wrapped model that is the end of the backward that has reduced its gradient (inside no_sync none
--- does): on all ranks, unit by unit, for what the backward of any rank has reached.
--- Steps and zero_grad() are legal there; in other hooks they are an AssertionError.
--- NotImplementedError for a flat parameter, as of hook().
--- The function lives as the one of hook() on a leaf does.
---@param fn fun(leaf: ms.Tensor)
---@return ms.Hook  as hook() gives
function Tensor:accumulate_hook(fn)
  check_hook('accumulate_hook', self, fn)
  return register(core.accumulate_hook, self, fn, run_on_leaf)
end

--- `hook.remove()`, for a hook of this tensor; KeyError for another's.
---@param hook ms.Hook  what hook() or accumulate_hook() gave
function Tensor:remove_hook(hook)
  local t = tensors[hook]
  if not t then
    arguments.refuse('remove_hook', 'hook', hook, 'what hook() or accumulate_hook() gave')
  elseif t.ptr ~= self.ptr or t.generation ~= self.generation then
    errors.raise('KeyError', "remove_hook: 'hook' hangs on another tensor")
  end
  hook.remove()
end

return autograd
