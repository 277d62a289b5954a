--- Exact memory use of the runtime.

local B = require 'moonshard_ffi'

local C = B.C

local memory = {}

local kinds = { 'parameter', 'gradient', 'optimizer', 'activation', 'arena', 'scratch' }
local stats = B.new('ms_memory_stats')

---@class ms.Memory
---@field live table<string, integer>  bytes in use by kind: parameter, gradient, ...
---@field peak table<string, integer>  highest `live` of each kind since reset_peak_memory()
---@field live_total integer
---@field peak_total integer
---@field reserved integer  bytes allocated from the system, caches included
---@field cached integer  part of `reserved` in free blocks, kept for later requests
---@field allocs integer
---@field system_allocs integer  allocations passed on to the system
---@field live_handles integer  number of tensors
---@field pinned integer  host memory for transfers to a device, not part of the others; 0 on the
---  CPU

--- Exact memory use, in bytes.
---@return ms.Memory
function memory.memory()
  C.ms_memory_stats_get(stats)
  local live, peak = {}, {}
  for i, kind in ipairs(kinds) do
    live[kind], peak[kind] = tonumber(stats.live[i - 1]), tonumber(stats.peak[i - 1])
  end
  return {
    live = live,
    peak = peak,
    live_total = tonumber(stats.live_total),
    peak_total = tonumber(stats.peak_total),
    reserved = tonumber(stats.reserved),
    cached = tonumber(stats.cached),
    allocs = tonumber(stats.n_allocs),
    system_allocs = tonumber(stats.n_system),
    live_handles = tonumber(stats.live_handles),
    pinned = tonumber(stats.pinned),
  }
end

--- Reset all peaks to the current values.
function memory.reset_peak_memory()
  C.ms_memory_reset_peak()
end

return memory
