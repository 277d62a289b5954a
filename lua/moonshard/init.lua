--- moonshard: sharded training without Python.
---
---   local ms = require 'moonshard'
---   local x = ms.randn(2, 3)
---   print(x * 2 + 1)
---
--- Submodules (ms.nn, ms.fsdp, ms.optim, ...) are loaded when first used.

-- Nothing that is loaded becomes garbage, and looking for some takes a quarter of the time.
local function load_without_collector()
  require 'moonshard_ffi.library' -- first: it loads the runtime
  return require('moonshard.base.without_jit').run(require, 'moonshard.ms')
end

collectgarbage 'stop'
local ok, ms = pcall(load_without_collector)
collectgarbage 'restart'
return ok and ms or error(ms, 0)
