--- Callbacks before backward, and the flags of a backward.

local C = require('moonshard_ffi').C
local errors = require 'moonshard.base.errors'

local graph = {}

--- nil while unused: traces with a loop over an empty table are not compiled
local before

--- Call `fn(key)` before each backward, as long as `key` is alive.
function graph.before_backward(key, fn)
  before = before or setmetatable({}, { __mode = 'k' })
  before[key] = fn
end

--- Called at the start of a backward.
function graph.begin_backward()
  if before then
    for key, fn in next, before do -- in any order: each reads only its key
      fn(key)
    end
  end
end

local KNOWN = {
  backward = { retain_graph = 'flag', create_graph = 'flag' },
  grad = { retain_graph = 'flag', create_graph = 'flag', allow_unused = 'flag' },
}

---@class ms.Backward.Options
---@field retain_graph? boolean  keep the graph and its hooks for another backward
---@field create_graph? boolean  NotImplementedError if true

--- The options as flags of the C API.
---@param what 'backward'|'grad'  the function that received the options
---@param options? ms.Backward.Options
---@return integer
function graph.flags(what, options)
  options = errors.options(what, options, KNOWN[what])
  if options.create_graph then
    errors.raise('NotImplementedError', "%s: 'create_graph' is not supported: gradients have no "
      .. 'gradients of their own', what)
  end
  return (options.retain_graph and C.MS_RETAIN_GRAPH or 0)
    + (options.allow_unused and C.MS_ALLOW_UNUSED or 0)
end

return graph
