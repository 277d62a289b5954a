--- Which samples a batch holds, and how often each place that draws for them ran on these.
---
--- A loader says which, and its batch keeps it: a module called with the batch is at those samples
--- again, whatever was dealt, run or seeded since.
---
--- A place is one of moonshard.sites.

local parameter = require 'moonshard_ffi.parameter'
local util = require 'moonshard.base.util'

local samples = {}

---@class ms.Samples.Runs  of one place on the samples of one batch
---@field n integer

local WEAK_KEYS = { __mode = 'k' }

local function no_runs()
  return setmetatable({}, WEAK_KEYS)
end

---@class ms.Samples
---@field first integer?  global number of the first one; nil: nobody has said it
---@field seeding table  the value of `seeding` when its runs began
---@field runs table<ms.Site, ms.Samples.Runs>
---@field earlier table<string, integer>  of places that have none there, by name
---@field group ms.dist.Group|false|nil  among whose ranks they were dealt out

---@type table<ms.Tensor, ms.Samples>  of each batch that was dealt, by its tensors
local dealt = setmetatable({}, WEAK_KEYS)

local NONE = {}
local seeding = NONE -- another one after each seed
local seeded, present ---@type ms.Samples, ms.Samples  the first since then, and those that are run

local function begin(first, earlier)
  return { first = first, seeding = seeding, runs = no_runs(), earlier = earlier or NONE }
end

--- The values of a batch hold samples `first`, `first` + 1, ..., and so does what comes next. The
--- caller begins the samples in the runtime.
---@param values (ms.Tensor|table)[]
---@param first integer
---@param group? ms.dist.Group|false  whose ranks have the other samples
function samples.deal(values, first, group)
  present = begin(first)
  present.group = group
  for _, value in ipairs(values) do
    dealt[value] = present
  end
end

--- What comes next are the samples of the batch that `x` is part of, if it is part of one.
---@param x any
function samples.resume(x)
  local batch = dealt[x]
  if not batch or batch == present then
    return
  end
  if batch.seeding ~= seeding then
    if batch.first == seeded.first then -- a state was set that was taken while it ran
      batch = seeded
      dealt[x] = batch
    else -- masks begin anew with a seed
      batch.seeding, batch.runs, batch.earlier = seeding, no_runs(), NONE
    end
  end
  parameter.begin_samples(batch.first)
  present = batch
end

--- Among whose ranks the batch that `x` is part of was dealt out; nil or false: nobody's.
---@param x any
---@return ms.dist.Group|false|nil
function samples.group_of(x)
  local batch = dealt[x]
  return batch and batch.group
end

--- A seed was set: nobody has said which samples come next, and nothing has run; unless a state()
--- says so.
---@param first? integer
---@param earlier? table<string, integer>
function samples.restart(first, earlier)
  seeding = {}
  seeded = begin(first, earlier)
  present = seeded
  if first then
    parameter.begin_samples(first)
  end
end

samples.restart()

--- How often a place ran on the samples that are present.
---@param place ms.Site
---@return integer
function samples.ran(place)
  local runs = present.runs[place]
  return runs and runs.n or present.earlier[place.name] or 0
end

-- Those of a place that has run `n` times.
local function runs_of(place, n)
  local runs = present.runs[place]
  if not runs then
    runs = { n = n }
    present.runs[place] = runs
  end
  return runs
end

--- Go on as if it had run `n` times on them.
---@param place ms.Site
---@param n integer
function samples.continue(place, n)
  runs_of(place, n).n = n
end

--- It ran once more.
---@param place ms.Site
---@param n integer  how often it ran before
function samples.count(place, n)
  runs_of(place, n).n = n + 1
end

--- Which samples are present, and how often each place ran on them, by its name. Of two places of
--- one name, as modules made alike after the same seed are, it is the one that ran more often.
---@return integer? first, table<string, integer> runs
function samples.state()
  local own = {}
  for place, runs in next, present.runs do
    own[place.name] = math.max(own[place.name] or 0, runs.n)
  end
  return present.first, util.merged(present.earlier, own)
end

return samples
