--- Places that draw dropout masks: those of modules, and others by their names, as ms.ops.dropout()
--- is told.

local B = require 'moonshard_ffi'
local parameter = require 'moonshard_ffi.parameter'
local samples = require 'moonshard.base.samples'

local dropout_streams = {}

---@class ms.Site  a place of moonshard.samples
---@field key ffi.cdata*  of its random stream
---@field name string
local Site = {}

local all = {} ---@type table<string, ms.Site>  by name; of no modules

--- The place of a module; of several modules at equal paths each has its own.
---@param path string
---@param stream integer  of the module's tree
---@param site? ms.Site  the one it has: it goes on counting under its new path
---@return ms.Site
function dropout_streams.of_module(path, stream, site)
  site = site or setmetatable({}, Site)
  site.key, site.name = parameter.stream_key(path, stream), ('%d %s'):format(stream, path)
  return site
end

--- The place of that name; it draws the masks of a module at that path.
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

--- How often each that is no module's ran on the samples that are present.
---@return table<string, integer> counts  by name, of those that did
function dropout_streams.counts()
  local counts = {}
  for name, site in next, all do
    local n = samples.ran(site)
    counts[name] = n > 0 and n or nil
  end
  return counts
end

--- Go on as if they had run so often.
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
