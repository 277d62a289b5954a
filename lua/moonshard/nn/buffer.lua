--- Values of declared buffers: what replaces them, and mixed precision that keeps them in another
--- dtype.
---
--- The cast tensor is what the module computes with. Until something writes into it, or puts one of
--- its dtype in its place, the tensor it was cast from says its value exactly; afterwards the cast
--- one does.

local B = require 'moonshard_ffi'
local parameter = require 'moonshard_ffi.parameter'
local scope = require 'moonshard.base.scope'

---@class ms.nn.Buffer  a declaration
---@field module ms.nn.Module
---@field name string
---@field persistent boolean  part of state dicts
---@field value ms.nn.BufferValue
local Buffer = {}
Buffer.__index = Buffer

---@class ms.nn.BufferValue  never changed
---@field tensor ms.Tensor  what the field shows
---@field cast? ms.nn.BufferCast

---@class ms.nn.BufferCast  of what is computed with in another dtype than it was `declared` in
---@field dtype ms.DType
---@field declared ms.DType
---@field original? ms.Tensor  what says the value as long as the tensor has this ...
---@field version? integer

--- Let the field show this value.
---@param value ms.nn.BufferValue
function Buffer:show(value)
  self.value = value
  rawset(self.module, self.name, value.tensor)
end

-- The value of a tensor that says the same as another one of another dtype, as long as it is not
-- written to.
local function cast_value(tensor, original)
  return {
    tensor = tensor,
    cast = {
      dtype = tensor:dtype(), declared = original:dtype(), original = original,
      version = tensor:version(),
    },
  }
end

--- Give a module a buffer.
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

--- Put another tensor behind the buffer: from now on that one says the value. One in the dtype of a
--- cast, as a forward makes it, is the buffer in that dtype.
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

--- Let the module compute with a cast copy of the buffer from now on.
---@param dtype ms.DType
function Buffer:cast(dtype)
  local value = self.value
  if not value.cast and value.tensor:dtype() ~= dtype then
    self:show(cast_value(scope.keep(value.tensor:to(dtype)), value.tensor))
  end
end

--- Let the module compute with the buffer in the dtype it was declared in, until the next cast.
function Buffer:restore()
  if self.value.cast then
    self:show({ tensor = scope.keep(self:uncast()) })
  end
end

--- The buffer in another dtype from now on, for good, as if it had been declared in that.
---@param tensor ms.Tensor  its value in that dtype
function Buffer:recast(tensor)
  self:show({ tensor = scope.keep(tensor) })
end

--- The buffer in the dtype it was declared in.
---@return ms.Tensor  shares memory with the buffer when it was never cast
function Buffer:uncast()
  local tensor, cast = self.value.tensor, self.value.cast
  if cast and tensor:version() ~= cast.version then
    return tensor:detach():to(cast.declared)
  end
  return (cast and cast.original or tensor):detach()
end

--- Overwrite the buffer, for good, in two halves as parameter.prepare_load(): in place, and where a
--- forward left something that nobody can write into, by another tensor.
---@param given ms.Tensor  of its shape; read by the second half
---@return fun() write
function Buffer:prepare_load(given)
  local tensor, cast, from = self.value.tensor, self.value.cast, given:detach()
  if not parameter.takes(tensor, from) then
    tensor = scope.keep(tensor:detach():clone())
    B.calls.tensor_check_copy(tensor, from, 'load_state_dict') -- or it was the values' fault
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
