--- The global sample indices of batches, and for each batch the number of draws from each dropout
--- stream (moonshard.base.dropout_streams).
---
--- A batch keeps both: a module called with the batch continues with its samples and counters,
--- whatever was loaded, called or seeded since.

local capture = require 'moonshard.base.capture'
local parameter = require 'moonshard_ffi.parameter'
local util = require 'moonshard.base.util'

local samples = {}

---@class ms.Samples.Runs  draws from one stream on one batch
---@field n integer

local WEAK_KEYS = { __mode = 'k' }

local function no_runs()
  return setmetatable({}, WEAK_KEYS)
end

---@class ms.Samples
---@field first integer?  global index of the first sample; nil if no loader set it
---@field seeding table  the value of `seeding` when its counters started
---@field runs table<ms.Site, ms.Samples.Runs>
---@field earlier table<string, integer>  restored counts by name, of streams not in `runs`
---@field group ms.dist.Group|false|nil  the group whose ranks share the batch

---@type table<ms.Tensor, ms.Samples>  by each tensor of a batch
local batches = setmetatable({}, WEAK_KEYS)

local NONE = {}
local seeding = NONE -- identifies the seed: a new table after each one
local seeded, present ---@type ms.Samples, ms.Samples  the first since the seed, and the current

local function begin(first, earlier)
  return { first = first, seeding = seeding, runs = no_runs(), earlier = earlier or NONE }
end

--- Record that the values of a batch contain samples `first`, `first` + 1, ..., and make them
--- current. The caller also sets `first` in the runtime.
---@param values (ms.Tensor|table)[]
---@param first integer
---@param group? ms.dist.Group|false  whose ranks have the other samples of the batch
function samples.assign(values, first, group)
  capture.breaks 'a batch is loaded'
  present = begin(first)
  present.group = group
  for _, value in ipairs(values) do
    batches[value] = present
  end
end

local function resume(x)
  local batch = batches[x]
  if batch == present then
    return
  end
  if batch.seeding ~= seeding then
    if batch.first == seeded.first then -- a state of set_rng_state() was taken during this batch
      batch = seeded
      batches[x] = batch
    else -- a seed restarts the masks
      batch.seeding, batch.runs, batch.earlier = seeding, no_runs(), NONE
    end
  end
  parameter.begin_samples(batch.first)
  present = batch
end

--- Make the samples of the batch that contains `x` current; no effect if no batch contains it.
---@param x any
function samples.resume(x)
  if batches[x] then
    capture.step('resume', resume, x)
  end
end

--- Is `x` a value of a batch?
---@param x any
---@return boolean
function samples.has(x)
  return batches[x] ~= nil
end

--- The group whose ranks share the batch that contains `x`; nil or false if there is none.
---@param x any
---@return ms.dist.Group|false|nil
function samples.group_of(x)
  local batch = batches[x]
  return batch and batch.group
end

--- Called after a seed was set. The current samples are unknown and all counters are 0, unless they
--- come from a state().
---@param first? integer
---@param earlier? table<string, integer>
function samples.restart(first, earlier)
  capture.breaks 'a seed is set'
  seeding = {}
  seeded = begin(first, earlier)
  present = seeded
  if first then
    parameter.begin_samples(first)
  end
end

samples.restart()

--- Number of draws from a stream on the current samples.
---@param stream ms.Site
---@return integer
function samples.ran(stream)
  local runs = present.runs[stream]
  return runs and runs.n or present.earlier[stream.name] or 0
end

-- The counter of a stream, made with the value `n`.
local function runs_of(stream, n)
  local runs = present.runs[stream]
  if not runs then
    runs = { n = n }
    present.runs[stream] = runs
  end
  return runs
end

--- Set the counter of a stream to `n`.
---@param stream ms.Site
---@param n integer
function samples.continue(stream, n)
  runs_of(stream, n).n = n
end

--- Increase the counter of a stream.
---@param stream ms.Site
---@param n integer  the counter before
function samples.count(stream, n)
  runs_of(stream, n).n = n + 1
end

local function draw(stream)
  local n = samples.ran(stream)
  samples.count(stream, n)
  return n
end

--- An operator drew from a stream: count it, also in replays.
---@param stream ms.Site
---@param n integer  the counter before
function samples.drew(stream, n)
  samples.count(stream, n)
  capture.drew(draw, stream)
end

local function given(call)
  return call
end

--- An operator drew a mask with a number that the caller gave.
---@param call integer
function samples.drew_given(call)
  capture.drew(given, call)
end

--- The current samples and the counters of all streams by name. Modules made alike after the same
--- seed can have equal names; the larger counter is returned then.
---@return integer? first, table<string, integer> runs
function samples.state()
  local own = {}
  for stream, runs in next, present.runs do
    own[stream.name] = math.max(own[stream.name] or 0, runs.n)
  end
  return present.first, util.merged(present.earlier, own)
end

return samples
