--- Autograd: modes of recording, gradients of chosen inputs, hooks.

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

--- Run `fn(...)` without recording and return its results.
---@param fn fun(...): ...
---@return ...
function autograd.no_grad(fn, ...)
  return run('no_grad', false, fn, ...)
end

--- Run `fn(...)` with recording enabled inside no_grad, and return its results.
---@param fn fun(...): ...
---@return ...
function autograd.enable_grad(fn, ...)
  return run('enable_grad', true, fn, ...)
end

--- Are operators being recorded?
---@return boolean
function autograd.is_grad_enabled()
  return C.ms_grad_enabled()
end

---@class ms.Grad.Options: ms.Backward.Options
---@field allow_unused? boolean  return false for inputs that no output depends on (default: raise)

-- A tensor or a list of tensors, as a list.
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

-- Append the given gradients: one for each output, false if omitted.
local function put_given(refs, outputs, given)
  given = B.is_ref(given) and { given } or arguments.list('grad', 'grad_outputs', given)
  if #given ~= #outputs then
    errors.raise('ValueError', "grad: 'grad_outputs' has %d entries, expected %d as 'outputs' "
      .. '(false where there is none)', #given, #outputs)
  end
  for i = 1, #given do
    if given[i] then
      local ref = arguments.tensor('grad', ('grad_outputs[%d]'):format(i), given[i])
      if ref.ptr == nil then -- C would take a released tensor as an omitted one
        errors.raise('RuntimeError', "grad: 'grad_outputs[%d]' was released", i)
      end
      refs[#outputs + i - 1] = ref
    end
  end
end

--- Gradients of the sum of `outputs` with respect to `inputs` (leaves or results). They are
--- returned; gradients of leaves do not change. The graph is freed, as by backward(). RuntimeError
--- for an input that does not require grad or on which no output depends; NotImplementedError for a
--- parameter of a wrapped model, whose gradient is reduced over ranks.
---@param outputs ms.Tensor|ms.Tensor[]
---@param inputs ms.Tensor|ms.Tensor[]
---@param grad_outputs? ms.Tensor|(ms.Tensor|false)[]  of the outputs' shapes; optional for one
---  element, and may be omitted before options
---@param options? ms.Grad.Options
---@return ms.Tensor[]  one for each input; with allow_unused, false for an unused input
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

--- A new ref to the handle of the ref at `address`.
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

-- Arguments of the C module are checked here, because it cannot see FFI types.
local function check_hook(what, t, fn)
  arguments.tensor(what, 'self', t)
  arguments.fn(what, 'fn', fn)
  if parameter.is_flat(t) then
    errors.raise('NotImplementedError', '%s: hooks of flat parameters are not supported; wrap '
      .. 'with use_orig_params = true, or hook the parameters in the fields of the module', what)
  end
end

-- The tensor of each hook, by the object that hook() returned; the refs are copies that own
-- nothing.
local tensors = setmetatable({}, { __mode = 'k' })
local WEAK = { __mode = 'v' }

local function nothing() end

-- Register a hook. C owns the function passed to `add`, and so `fn`; the returned object owns
-- neither fn nor the tensor. After the tensor of a graph was released, remove() has no effect.
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
      C.ms_hook_remove(t.ptr, id) -- fails if a backward was first
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

--- Call `fn(grad)` when this tensor's gradient is complete. A result replaces the gradient. An
--- error in fn ends the backward, and its caller gets the same error object. NotImplementedError
--- for a flat parameter: hook the module's parameters.
---
--- fn is kept alive by the hook, and with it every tensor that it refers to: on a leaf until the
--- hook is removed or the leaf is freed, on a result until backward has freed the graph or the
--- graph is no longer referenced. A hook that refers to its own tensor or model keeps it alive:
--- call remove() if it is on a leaf or no backward follows.
---@param fn fun(grad: ms.Tensor): ms.Tensor?
---@return ms.Hook  removes the hook and releases `fn`
function Tensor:hook(fn)
  check_hook('hook', self, fn)
  return register(core.hook, self, fn, run_on_gradient)
end

--- Call `fn(leaf)` after each backward that has added to this leaf's gradient. For a parameter of a
--- wrapped model it is called at the end of the backward that reduced its gradient (not inside
--- no_sync): on all ranks, unit by unit, for parameters that the backward of any rank reached.
--- Optimizer steps and zero_grad() are allowed in it; in other hooks they raise AssertionError.
--- NotImplementedError for a flat parameter. fn is kept alive as by hook() on a leaf.
---@param fn fun(leaf: ms.Tensor)
---@return ms.Hook  as for hook()
function Tensor:accumulate_hook(fn)
  check_hook('accumulate_hook', self, fn)
  return register(core.accumulate_hook, self, fn, run_on_leaf)
end

--- Same as `hook.remove()`. KeyError if the hook is not one of this tensor.
---@param hook ms.Hook  returned by hook() or accumulate_hook()
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
