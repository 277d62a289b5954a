--- moonshard: sharded training without Python.
---
---   local ms = require 'moonshard'
---   local x = ms.randn(2, 3)
---   print(x * 2 + 1)
---
--- Submodules (ms.nn, ms.fsdp, ms.optim, ...) are loaded when first used.

require 'moonshard_ffi.library' -- first: it loads the runtime
local without_jit = require 'moonshard.base.without_jit'

return without_jit.run(require, 'moonshard.ms')
