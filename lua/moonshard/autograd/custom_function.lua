--- Autograd functions with a backward written in Lua.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local autograd = require 'moonshard.autograd'
local class = require 'moonshard.base.class'
local create = require 'moonshard.base.create'
local dtypes = require 'moonshard.base.dtype'
local errors = require 'moonshard.base.errors'
local scope = require 'moonshard.base.scope'

local core = B.core

---@class ms.autograd.Context  passed from forward to backward; scripts may add fields
---@field needs_input_grad boolean[]  for each argument of apply()
local Context = class('autograd.Context')

--- Save tensors for backward: arguments, results, or others. They must not be written until then.
---@param ... ms.Tensor?  a nil is saved as nil
function Context:save_for_backward(...)
  self._saved, self._versions = { n = select('#', ...) }, {}
  for i = 1, self._saved.n do
    local tensor = select(i, ...)
    if tensor ~= nil then
      arguments.tensor('save_for_backward', tostring(i), tensor)
      self._saved[i] = scope.keep(tensor:detach())
      self._versions[i] = tensor:version()
    end
  end
end

--- The saved tensors. RuntimeError if one was written since.
---@return ms.Tensor? ...
function Context:saved_tensors()
  local saved = self._saved or { n = 0 }
  for i = 1, saved.n do
    local tensor = saved[i]
    if tensor and tensor:version() ~= self._versions[i] then
      errors.raise('RuntimeError', 'saved tensor %d of %s was modified by an in-place operation: '
        .. 'it is at version %d, expected %d', i, self._owner, tensor:version(),
        self._versions[i])
    end
  end
  return unpack(saved, 1, saved.n)
end

--- Whether backward gets zeros for results without a gradient; with false it gets nil.
---@param on boolean  default true
function Context:set_materialize_grads(on)
  self._materialize = arguments.flag('set_materialize_grads', 'on', on)
end

--- The base of functions with their own backward, as in PyTorch:
---
---   local Cube = ms.autograd.Function.extend 'Cube'
---   function Cube.forward(ctx, x) ctx:save_for_backward(x); return x * x * x end
---   function Cube.backward(ctx, grad) return ctx:saved_tensors() ^ 2 * 3 * grad end
---   local y = Cube.apply(x)
---
--- forward runs without recording and returns tensors. backward gets a gradient for each result and
--- returns one for each argument of forward, nil for arguments that are not tensors or need no
--- gradient; RuntimeError if it returns another number of values.
---@class ms.autograd.Function
---@field forward fun(ctx: ms.autograd.Context, ...): ms.Tensor ...
---@field backward fun(ctx: ms.autograd.Context, ...: ms.Tensor?): ms.Tensor? ...
---@field apply fun(...): ms.Tensor ...
local Function = {}

local function pack(...)
  return { n = select('#', ...), ... }
end

local function gradient(ctx, ref, result)
  if ref.ptr ~= nil then
    return B.calls.tensor_detach(B.Ref(ref))
  end
  return ctx._materialize and create.zeros(result.shape, { dtype = result.dtype }) or nil
end

local function run_backward(fn, ctx, address, results)
  local refs, grads = B.cast('ms_ref *', address), {}
  for i, result in ipairs(results) do
    grads[i] = gradient(ctx, refs[i - 1], result)
  end
  return fn.backward(ctx, unpack(grads, 1, #results))
end

-- Check the number of gradients: one for each of the n arguments. The last ones may be omitted if
-- those arguments are not tensors. Further values must be nil.
local function check_count(fn, given, n, places)
  local n_given = given.n
  while n_given > n and given[n_given] == nil do
    n_given = n_given - 1
  end
  if n_given > n or n_given < (places[#places] or 0) then
    errors.raise('RuntimeError', 'function %sBackward returned an incorrect number of gradients '
      .. '(expected %d, got %d)', fn._name, n, n_given)
  end
end

local function check_gradient(what, place, grad, argument)
  local found, expected = arguments.tensor(what, 'result ' .. place, grad):shape(), argument.shape
  local found_text, text = table.concat(found, ', '), table.concat(expected, ', ')
  if argument.needs and (found_text ~= text or not dtypes.is_floating(grad:dtype())) then
    errors.raise('ValueError', '%s: the gradient of input %d is %s of shape (%s), expected %s of '
      .. 'shape (%s)', what, place, grad:dtype(), found_text, argument.dtype, text)
  end
  return grad
end

-- The function that the runtime calls with refs of the results' gradients. It appends the gradients
-- of the tensors among the arguments.
local function backward_of(fn, ctx, results, inputs)
  return function(address)
    local what = 'backward of ' .. fn._name
    local given = pack(scope.run(what, run_backward, fn, ctx, address, results))
    local refs = B.cast('ms_ref *', address)
    check_count(fn, given, inputs.n, inputs.places)
    for k, place in ipairs(inputs.places) do
      local grad = given[place]
      if grad ~= nil then
        refs[#results + k - 1] = check_gradient(what, place, grad, inputs[k])
      end
    end
    ctx._given = given -- keep them alive until C owns them
  end
end

local function apply(fn, ...)
  local args, places = pack(...), {}
  local inputs = { n = args.n, places = places }
  local ctx = Context()
  ctx.needs_input_grad, ctx._owner, ctx._materialize = {}, fn._name, true
  for i = 1, args.n do
    local is_tensor = B.is_ref(args[i])
    ctx.needs_input_grad[i] = is_tensor and autograd.is_grad_enabled()
      and args[i]:requires_grad() or false
    if is_tensor then
      places[#places + 1] = i
      inputs[#places] = { shape = args[i]:shape(), dtype = args[i]:dtype(),
        needs = ctx.needs_input_grad[i] }
    end
  end
  local given = pack(autograd.no_grad(fn.forward, ctx, ...))
  local n_out, n_in, results = given.n, #places, {}
  if n_out == 0 then
    errors.raise('ValueError', 'forward of %s returned nothing, expected tensors', fn._name)
  end
  local refs = B.new('ms_ref[?]', math.max(1, 2 * n_out + n_in))
  for i = 1, n_out do
    local result = arguments.tensor('forward of ' .. fn._name, 'result ' .. i, given[i])
    refs[i - 1], results[i] = result, { shape = result:shape(), dtype = result:dtype() }
  end
  for k, place in ipairs(places) do
    refs[n_out + k - 1] = args[place]
  end
  B.check(core.custom(refs, n_out, n_in, backward_of(fn, ctx, results, inputs)))
  local out = {}
  for i = 1, n_out do
    local ref = B.Ref(refs[n_out + n_in + i - 1])
    out[i] = B.state.depth == 0 and B.own(ref) or ref
  end
  return unpack(out, 1, n_out)
end

--- Make a new function class. Set its `forward` and `backward`, then call its `apply`.
---@param name string  for errors
---@return ms.autograd.Function
function Function.extend(name)
  arguments.text('autograd.Function.extend', 'name', name)
  local fn = { _name = name }
  function fn.forward()
    errors.raise('NotImplementedError', '%s has no forward', name)
  end
  function fn.backward()
    errors.raise('NotImplementedError', '%s has no backward', name)
  end
  function fn.apply(...)
    return apply(fn, ...)
  end
  return fn
end

return Function
