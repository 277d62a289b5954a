--- Values of declared buffers where mixed precision keeps them in another dtype.
---
--- The cast tensor is what the module computes with. Until something writes into it the tensor it
--- was cast from says its value exactly; afterwards the cast one does.

local scope = require 'moonshard.scope'

local buffer = {}

--- Let the module compute with a cast copy of a buffer from now on.
---@param module ms.nn.Module
---@param entry table  its declaration
---@param dtype ms.DType
function buffer.cast(module, entry, dtype)
  if entry.original or entry.tensor:dtype() == dtype then
    return
  end
  entry.original = entry.tensor
  module:set_buffer(entry.name, entry.tensor:to(dtype))
  entry.cast_version = entry.tensor:version()
end

--- The buffer in the dtype it was declared in.
---@return ms.Tensor  shares memory with the buffer when it was never cast
function buffer.value(entry)
  if entry.original and entry.tensor:version() ~= entry.cast_version then
    return entry.tensor:detach():to(entry.original:dtype())
  end
  return (entry.original or entry.tensor):detach()
end

--- Overwrite the buffer.
---@param value ms.Tensor
function buffer.load(entry, value)
  entry.tensor:copy_(value:detach())
  if entry.original then
    entry.original = scope.keep(value:to(entry.original:dtype()):clone())
    entry.cast_version = entry.tensor:version()
  end
end

return buffer
