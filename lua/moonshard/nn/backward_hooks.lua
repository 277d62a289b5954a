--- Backward hooks of a module. As in PyTorch, an identity function of autograd is applied before
--- the forward and another one after it; their gradients are those of the arguments and of the
--- results.

local B = require 'moonshard_ffi'
local Function = require 'moonshard.autograd.custom_function'
local arguments = require 'moonshard_ffi.arguments'
local autograd = require 'moonshard.autograd'
local class = require 'moonshard.base.class'
local errors = require 'moonshard.base.errors'
local scope = require 'moonshard.base.scope'

local Unchanged = Function.extend 'a module hook'

function Unchanged.forward(ctx, pass, method, ...)
  ctx.pass, ctx.method = pass, method
  ctx:set_materialize_grads(method == '_on_inputs') -- an unused argument gets zeros in PyTorch
  return ...
end

function Unchanged.backward(ctx, ...)
  return nil, nil, ctx.pass[ctx.method](ctx.pass, { ... })
end

--- One forward and its backward.
---@class ms.nn._BackwardPass
---@field module ms.nn.Module
---@field pre { fn: fun(...) }[]  hooks that were registered at the forward
---@field post { fn: fun(...) }[]
---@field n_in integer  arguments
---@field n_out integer  results
---@field from integer[]  indices of the arguments that require grad
---@field to integer[]  indices of the results that require grad
---@field grad_outputs (ms.Tensor|false)[]?  gradients of the results, kept between the two
---  backward functions
local Pass = class('nn._BackwardPass')

function Pass:init(module, pre, post)
  self.module, self.pre, self.post = module, pre, post
end

-- Apply a function to the values that require grad. Its backward calls `method` with their
-- gradients. Returns the values and the indices of those that require grad.
local function observed(self, method, values, n)
  local indices, tensors, out = {}, {}, { n = n }
  for i = 1, n do
    out[i] = values[i]
    if B.is_ref(values[i]) and autograd.is_grad_enabled() and values[i]:requires_grad() then
      indices[#indices + 1] = i
      tensors[#indices] = values[i]
    end
  end
  if #indices > 0 then
    for k, t in ipairs { Unchanged.apply(self, method, unpack(tensors)) } do
      out[indices[k]] = t
    end
  end
  return out, indices
end

--- Wrap the arguments of forward.
---@param args table
---@return table
function Pass:inputs(args)
  self.n_in, self.from = args.n or #args, {}
  if #self.post > 0 then
    args, self.from = observed(self, '_on_inputs', args, self.n_in)
  end
  return args
end

--- Wrap the results of forward and its hooks.
---@param results table
---@return table
function Pass:outputs(results)
  self.n_out = results.n
  results, self.to = observed(self, '_on_outputs', results, results.n)
  return results
end

local function spread(n, indices, grads)
  local all = { n = n }
  for i = 1, n do
    all[i] = false
  end
  for k, index in ipairs(indices) do
    all[index] = grads[k] or false
  end
  return all
end

local function picked(indices, all)
  local grads = {}
  for k, index in ipairs(indices) do
    grads[k] = all[index] or nil
  end
  return unpack(grads, 1, #indices)
end

-- A hook's result as an array with as many entries as `all`. Returns `all` if the hook returned
-- nil.
local function replaced(what, name, all, given)
  if given == nil then
    return all
  elseif B.is_ref(given) then
    given = { given }
  elseif type(given) ~= 'table' then
    errors.raise('TypeError', '%s returned %s, expected a list of tensors or nil', what,
      arguments.noun(given))
  end
  local n, out = given.n or #given, { n = all.n }
  if n ~= all.n then
    errors.raise('RuntimeError', '%s returned an invalid number of %s, got %d, but expected %d',
      what, name, n, all.n)
  end
  for i = 1, n do
    out[i] = given[i] and arguments.tensor(what, ('%s[%d]'):format(name, i), given[i]) or false
  end
  return out
end

local HOOK, PRE_HOOK = 'Backward hook', 'Backward pre hook'

-- Runs the hooks when no argument requires grad.
local function run_without_inputs(self, grad_outputs)
  if #self.post == 0 then
    return
  end
  errors.warn('UserWarning', 'Full backward hook is firing when gradients are computed with '
    .. 'respect to module outputs since no inputs require gradients')
  local none = spread(self.n_in, {}, {})
  for _, hook in ipairs(self.post) do
    local given = replaced(HOOK, 'grad_input', none, hook.fn(self.module, none, grad_outputs))
    for i = 1, given.n do
      if given[i] then
        errors.raise('RuntimeError', 'Backward hook for modules where no input requires gradient '
          .. 'should always return nil or false for all gradients')
      end
    end
  end
end

-- New handles to the tensors among the gradients.
local function handles(grads)
  local out = { n = grads.n }
  for i = 1, grads.n do
    out[i] = grads[i] and grads[i]:detach()
  end
  return out
end

function Pass:_on_outputs(grads)
  local all = spread(self.n_out, self.to, grads)
  for _, hook in ipairs(self.pre) do
    all = replaced(PRE_HOOK, 'grad_output', all, hook.fn(self.module, all))
  end
  if #self.from == 0 then
    run_without_inputs(self, all)
  else
    self.grad_outputs = handles(all)
    for i = 1, all.n do
      if all[i] then
        scope.keep(self.grad_outputs[i])
      end
    end
  end
  return picked(self.to, all)
end

-- grad_outputs is nil if backward did not reach the results: the gradients pass unchanged.
function Pass:_on_inputs(grads)
  local kept = self.grad_outputs
  if not kept then
    return unpack(grads, 1, #self.from)
  end
  self.grad_outputs = nil
  local grad_outputs = handles(kept) -- a hook may keep its own
  for i = 1, kept.n do
    if kept[i] then
      kept[i]:release()
    end
  end
  local all = spread(self.n_in, self.from, grads)
  for _, hook in ipairs(self.post) do
    all = replaced(HOOK, 'grad_input', all, hook.fn(self.module, all, grad_outputs))
  end
  return picked(self.from, all)
end

return Pass
