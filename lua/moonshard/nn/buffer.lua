--- Values of declared buffers where mixed precision keeps them in another dtype.
---
--- The cast tensor is what the module computes with. Until something writes into it, or puts one of
--- its dtype in its place, the tensor it was cast from says its value exactly; afterwards the cast
--- one does.

local scope = require 'moonshard.scope'

local buffer = {}

-- What the buffer was cast from, or nil: a cast counts for the tensor it made alone, or what took
-- its place.
local function cast_of(entry)
  local cast = entry.cast
  return cast and rawequal(cast.tensor, entry.tensor) and cast or nil
end

local function note_cast(entry, tensor, original)
  entry.cast = {
    tensor = tensor, dtype = tensor:dtype(), original = original, version = tensor:version(),
  }
end

local function show(module, entry, tensor)
  entry.tensor = scope.keep(tensor)
  rawset(module, entry.name, tensor)
end

--- Put another tensor behind a declared buffer: from now on that one says the value. One in the
--- dtype of a cast, as a forward makes it, is the buffer in that dtype.
---@param module ms.nn.Module
---@param entry table  its declaration
---@param tensor ms.Tensor
function buffer.replace(module, entry, tensor)
  local before = cast_of(entry)
  show(module, entry, tensor)
  local cast = cast_of(entry) -- the same tensor's
  if before and not cast and tensor:dtype() == before.dtype then
    cast = { tensor = tensor, dtype = before.dtype, original = before.original } -- of no version
  end
  entry.cast = cast
end

--- Let the module compute with a cast copy of a buffer from now on.
---@param module ms.nn.Module
---@param entry table  its declaration
---@param dtype ms.DType
function buffer.cast(module, entry, dtype)
  if cast_of(entry) or entry.tensor:dtype() == dtype then
    return
  end
  local copy = entry.tensor:to(dtype)
  note_cast(entry, copy, entry.tensor)
  show(module, entry, copy)
end

--- The buffer in the dtype it was declared in.
---@return ms.Tensor  shares memory with the buffer when it was never cast
function buffer.value(entry)
  local cast = cast_of(entry)
  if cast and entry.tensor:version() ~= cast.version then
    return entry.tensor:detach():to(cast.original:dtype())
  end
  return (cast and cast.original or entry.tensor):detach()
end

--- Overwrite the buffer.
---@param value ms.Tensor
function buffer.load(entry, value)
  local cast = cast_of(entry)
  entry.tensor:copy_(value:detach())
  if cast then
    note_cast(entry, entry.tensor, scope.keep(value:to(cast.original:dtype()):clone()))
  end
end

return buffer
