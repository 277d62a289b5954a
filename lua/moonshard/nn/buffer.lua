--- Values of declared buffers: what replaces them, and mixed precision that keeps them in another
--- dtype.
---
--- The cast tensor is what the module computes with. Until something writes into it, or puts one of
--- its dtype in its place, the tensor it was cast from says its value exactly; afterwards the cast
--- one does.

local scope = require 'moonshard.scope'

local buffer = {}

---@class ms.nn.Buffer  a declaration
---@field name string
---@field persistent boolean  part of state dicts
---@field value ms.nn.BufferValue  another one after each assignment, the earlier again if that was
---                                in a call that fails; casts and loads change it, for good

---@class ms.nn.BufferValue
---@field tensor ms.Tensor  what the field shows
---@field cast? table  see cast_of()

-- What the tensor was cast from, or nil: a cast counts for the tensor it made alone, or what took
-- its place.
local function cast_of(value)
  local cast = value.cast
  return cast and rawequal(cast.tensor, value.tensor) and cast or nil
end

local function note_cast(value, tensor, original)
  value.cast = {
    tensor = tensor, dtype = tensor:dtype(), original = original, version = tensor:version(),
  }
end

--- Let the field of a declared buffer show this value.
---@param module ms.nn.Module
---@param entry ms.nn.Buffer
---@param value? ms.nn.BufferValue  nil: none
function buffer.show(module, entry, value)
  entry.value = value or entry.value
  rawset(module, entry.name, value and value.tensor)
end

--- Give a module a buffer. If the scope that is open fails, it holds `tensor` again.
---@param module ms.nn.Module
---@param name string
---@param tensor ms.Tensor
---@param persistent boolean
---@return ms.nn.Buffer
function buffer.declare(module, name, tensor, persistent)
  local entry = { name = name, persistent = persistent, value = { tensor = scope.keep(tensor) } }
  scope.on_failure(module, entry, entry.value)
  buffer.show(module, entry, entry.value)
  return entry
end

--- Put another tensor behind a declared buffer: from now on that one says the value. One in the
--- dtype of a cast, as a forward makes it, is the buffer in that dtype.
---@param module ms.nn.Module
---@param entry ms.nn.Buffer
---@param tensor ms.Tensor
function buffer.replace(module, entry, tensor)
  local value, before = entry.value, cast_of(entry.value)
  if not rawequal(tensor, value.tensor) then
    value = { tensor = scope.keep(tensor) }
    if before and tensor:dtype() == before.dtype then -- a cast of no version
      value.cast = { tensor = tensor, dtype = before.dtype, original = before.original }
    end
  end
  buffer.show(module, entry, value)
end

--- Let the module compute with a cast copy of a buffer from now on.
---@param module ms.nn.Module
---@param entry ms.nn.Buffer
---@param dtype ms.DType
function buffer.cast(module, entry, dtype)
  local value = entry.value
  if cast_of(value) or value.tensor:dtype() == dtype then
    return
  end
  local copy = scope.keep(value.tensor:to(dtype))
  note_cast(value, copy, value.tensor)
  value.tensor = copy
  buffer.show(module, entry, value)
end

--- The buffer in the dtype it was declared in.
---@param entry ms.nn.Buffer
---@return ms.Tensor  shares memory with the buffer when it was never cast
function buffer.value(entry)
  local value, cast = entry.value, cast_of(entry.value)
  if cast and value.tensor:version() ~= cast.version then
    return value.tensor:detach():to(cast.original:dtype())
  end
  return (cast and cast.original or value.tensor):detach()
end

--- Overwrite the buffer.
---@param entry ms.nn.Buffer
---@param given ms.Tensor
function buffer.load(entry, given)
  local value, cast = entry.value, cast_of(entry.value)
  value.tensor:copy_(given:detach())
  if cast then
    note_cast(value, value.tensor, scope.keep(given:to(cast.original:dtype()):clone()))
  end
end

return buffer
