--- Values of declared buffers: assignment, and mixed precision that computes with a copy in another
--- dtype.
---
--- The module computes with the cast tensor. The original tensor keeps the exact value until the
--- cast tensor is written to or replaced; from then on the cast tensor holds the value.

local B = require 'moonshard_ffi'
local parameter = require 'moonshard_ffi.parameter'
local scope = require 'moonshard.base.scope'

---@class ms.nn.Buffer  a declared buffer
---@field module ms.nn.Module
---@field name string
---@field persistent boolean  part of state dicts
---@field value ms.nn.BufferValue
local Buffer = {}
Buffer.__index = Buffer

---@class ms.nn.BufferValue  immutable
---@field tensor ms.Tensor  the value of the module's field
---@field cast? ms.nn.BufferCast

---@class ms.nn.BufferCast  a buffer in another dtype than its `declared` one
---@field dtype ms.DType
---@field declared ms.DType
---@field original? ms.Tensor  the exact value while the version of the cast tensor is ...
---@field version? integer  ... this one

--- Set the module's field to this value.
---@param value ms.nn.BufferValue
function Buffer:show(value)
  self.value = value
  rawset(self.module, self.name, value.tensor)
end

-- A value cast from `original`, which is exact until `tensor` is written to.
local function cast_value(tensor, original)
  return {
    tensor = tensor,
    cast = {
      dtype = tensor:dtype(), declared = original:dtype(), original = original,
      version = tensor:version(),
    },
  }
end

--- Declare a buffer of a module.
---@param module ms.nn.Module
---@param name string
---@param tensor ms.Tensor
---@param persistent boolean
---@return ms.nn.Buffer
function Buffer.declare(module, name, tensor, persistent)
  local value = { tensor = scope.keep(tensor) }
  local self = setmetatable(
    { module = module, name = name, persistent = persistent, value = value }, Buffer)
  self:show(value)
  return self
end

--- Replace the tensor of the buffer. A tensor in the dtype of the cast becomes the cast tensor.
---@param tensor ms.Tensor
function Buffer:replace(tensor)
  local value, before = self.value, self.value.cast
  if not rawequal(tensor, value.tensor) then
    value = { tensor = scope.keep(tensor) }
    if before and tensor:dtype() == before.dtype then
      value.cast = { dtype = before.dtype, declared = before.declared }
    end
  end
  self:show(value)
end

--- Compute with a cast copy of the buffer from now on.
---@param dtype ms.DType
function Buffer:cast(dtype)
  local value = self.value
  if not value.cast and value.tensor:dtype() ~= dtype then
    self:show(cast_value(scope.keep(value.tensor:to(dtype)), value.tensor))
  end
end

--- Compute with the buffer in its declared dtype until the next cast.
function Buffer:restore()
  if self.value.cast then
    self:show({ tensor = scope.keep(self:uncast()) })
  end
end

--- Change the declared dtype of the buffer.
---@param tensor ms.Tensor  the value in the new dtype
function Buffer:recast(tensor)
  self:show({ tensor = scope.keep(tensor) })
end

--- The buffer in its declared dtype.
---@return ms.Tensor  shares memory with the buffer if it was never cast
function Buffer:uncast()
  local tensor, cast = self.value.tensor, self.value.cast
  if cast and tensor:version() ~= cast.version then
    return tensor:detach():to(cast.declared)
  end
  return (cast and cast.original or tensor):detach()
end

--- Prepare to overwrite the buffer and return a function that does it. It writes in place, or
--- replaces a tensor that cannot be written because autograd recorded it.
---@param given ms.Tensor  of the buffer's shape; read by the returned function
---@return fun() write
function Buffer:prepare_load(given)
  local tensor, cast, from = self.value.tensor, self.value.cast, given:detach()
  if not parameter.takes(tensor, from) then
    tensor = scope.keep(tensor:detach():clone())
    B.calls.tensor_check_copy(tensor, from, 'load_state_dict') -- the error is not about the values
  end
  local original = cast and scope.keep(tensor:detach():to(cast.declared):clone())
  local into = tensor:detach()
  return function()
    into:copy_(from)
    if original then
      original:copy_(from)
    end
    self:show(original and cast_value(tensor, original) or { tensor = tensor })
  end
end

return Buffer
