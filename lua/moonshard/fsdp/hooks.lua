--- Functions of a script for the gradients of units: see ms_fsdp_unit_set_hook().

local B = require 'moonshard_ffi'
local runtime = require 'moonshard_ffi.fsdp'
local scope = require 'moonshard.base.scope'

local hooks = {}

local function run(fn, address)
  local refs = B.cast('ms_ref *', address)
  local grad = B.calls.tensor_detach(B.Ref(refs[0]))
  fn(grad, refs[1].ptr ~= nil and B.calls.tensor_detach(B.Ref(refs[1])) or nil)
end

local function setter(moment, name)
  return function(unit, fn)
    runtime.set_hook(unit, moment, function(address) scope.run(name, run, fn, address) end)
  end
end

--- Let `fn(grad, out)` reduce the gradient of a unit.
---@type fun(unit: ffi.cdata*, fn: fun(grad: ms.Tensor, out?: ms.Tensor))
hooks.set_reduce = setter(B.C.MS_HOOK_REDUCE, 'a communication hook')

--- Let `fn(grad)` change this rank's part of a reduced gradient.
---@type fun(unit: ffi.cdata*, fn: fun(grad: ms.Tensor))
hooks.set_reduced = setter(B.C.MS_HOOK_REDUCED, 'an all-reduce hook')

return hooks
