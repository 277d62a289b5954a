--- Random streams of dropout masks: one for each module that draws masks, and streams named by the
--- caller of ms.ops.dropout().

local B = require 'moonshard_ffi'
local parameter = require 'moonshard_ffi.parameter'
local samples = require 'moonshard.base.samples'

local dropout_streams = {}

---@class ms.Site  a dropout stream; moonshard.base.samples counts its draws
---@field key ffi.cdata*  of the random stream
---@field name string
local Site = {}

local all = {} ---@type table<string, ms.Site>  by name; of no modules

--- The stream of a module. Modules with equal paths have different streams.
---@param path string
---@param stream integer  of the module's tree
---@param site? ms.Site  the module's existing stream: it keeps its counter under the new path
---@return ms.Site
function dropout_streams.of_module(path, stream, site)
  site = site or setmetatable({}, Site)
  site.key, site.name = parameter.stream_key(path, stream), ('%d %s'):format(stream, path)
  return site
end

--- The stream of this name. It draws the masks of a module with that path.
---@param name string
---@return ms.Site
function dropout_streams.of(name)
  local site = all[name]
  if not site then
    site = setmetatable({ key = B.C.ms_name_key(name), name = 'site ' .. name }, Site)
    all[name] = site
  end
  return site
end

---@return boolean
function dropout_streams.is(value)
  return getmetatable(value) == Site
end

--- Numbers of draws from the named streams on the current samples.
---@return table<string, integer> counts  by name; streams that were not drawn from are left out
function dropout_streams.counts()
  local counts = {}
  for name, site in next, all do
    local n = samples.ran(site)
    counts[name] = n > 0 and n or nil
  end
  return counts
end

--- Restore the counters of the named streams.
---@param counts table<string, integer>
function dropout_streams.continue(counts)
  for _, site in next, all do
    samples.continue(site, 0)
  end
  for name, n in next, counts do
    samples.continue(dropout_streams.of(name), n)
  end
end

return dropout_streams
