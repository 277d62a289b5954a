--- FSDP(module, options) without the warnings of NO_SHARD and of a world of one.

local ms = require 'moonshard'

---@return ms.fsdp.FSDP
return function(module, opts)
  local model
  ms.capture_warnings(function() model = ms.fsdp.FSDP(module, opts) end)
  return model
end
