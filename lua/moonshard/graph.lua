--- What a backward is told of its graph.

local errors = require 'moonshard.errors'

local graph = {}

local RETAIN_GRAPH = 1 -- MS_RETAIN_GRAPH
local BACKWARD = { retain_graph = 'flag', create_graph = 'flag' }

---@class ms.Backward.Options
---@field retain_graph? boolean  the graph stays, with its hooks, for another backward
---@field create_graph? boolean  true is a NotImplementedError

--- The flags of C for the options of backward().
---@param options? ms.Backward.Options
---@return integer
function graph.flags(options)
  options = errors.options('backward', options, BACKWARD)
  if options.create_graph then
    errors.raise('NotImplementedError', "backward: 'create_graph' is not supported: gradients have "
      .. 'no gradients of their own')
  end
  return options.retain_graph and RETAIN_GRAPH or 0
end

return graph
