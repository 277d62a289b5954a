--- May a script write into a tensor now? Writes are not recorded; so while operators are, what
--- requires grad is not written. (The runtime refuses results of operators at any time, so nothing
--- but t:detach() writes into one.)

local B = require 'moonshard_ffi'
local errors = require 'moonshard.base.errors'

local C, calls = B.C, B.calls

local info = B.new('ms_tensor_info')

--- Raise a RuntimeError when it may not.
---@param t ms.Tensor
---@param what string  the write, for the message: 'fill_', 't[%s] = x'
---@param i? integer  the entry that is written
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
