--- Checks in-place writes by scripts. Autograd does not record them, so a tensor that requires grad
--- cannot be written while it is recording. (The runtime always refuses results of operators; they
--- are written through t:detach().)

local B = require 'moonshard_ffi'
local errors = require 'moonshard.base.errors'

local C, calls = B.C, B.calls

local info = B.new('ms_tensor_info')

--- Raise a RuntimeError if the tensor cannot be written now.
---@param t ms.Tensor
---@param what string  the write in the message: 'fill_', 't[%s] = x'
---@param i? integer  the index that is written
return function(t, what, i)
  if not C.ms_grad_enabled() then
    return
  end
  calls.tensor_describe(t, info)
  if info.requires_grad then
    errors.raise('RuntimeError', '%s: the tensor requires grad, and writing into it is not '
      .. 'differentiable; write %sto t:detach()', what:format(i),
      info.is_leaf and 'inside ms.no_grad(function() ... end), or ' or '')
  end
end
