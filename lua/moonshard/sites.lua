--- Places that draw dropout masks and are no modules: ms.ops.dropout() goes by their names.
---
--- Touches: moonshard.samples, moonshard_ffi.

local B = require 'moonshard_ffi'
local samples = require 'moonshard.samples'

local sites = {}

---@class ms.Site  a place of moonshard.samples
---@field key ffi.cdata*  of its random stream
local Site = {}

local all = {} ---@type table<string, ms.Site>  by name

--- The place of that name; it draws the masks of a module at that path.
---@param name string
---@return ms.Site
function sites.of(name)
  local site = all[name]
  if not site then
    site = setmetatable({ key = B.C.ms_name_key(name), _place = 'site ' .. name }, Site)
    all[name] = site
  end
  return site
end

---@return boolean
function sites.is(value)
  return getmetatable(value) == Site
end

--- How often each ran on the samples that are present.
---@return table<string, integer> counts  by name, of those that did
function sites.counts()
  local counts = {}
  for name, site in next, all do
    local n = samples.ran(site)
    counts[name] = n > 0 and n or nil
  end
  return counts
end

--- Go on as if they had run so often.
---@param counts table<string, integer>
function sites.continue(counts)
  for _, site in next, all do
    samples.continue(site, 0)
  end
  for name, n in next, counts do
    samples.continue(sites.of(name), n)
  end
end

return sites
