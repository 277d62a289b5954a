--- Which samples a batch holds, and how often each module that draws for them ran on these.
---
--- A loader says which, and its batch keeps it: a module called with the batch is at those samples
--- again, whatever was dealt, run or seeded since.
---
--- Touches: moonshard_ffi.parameter.

local parameter = require 'moonshard_ffi.parameter'

local samples = {}

local WEAK = { __mode = 'k' }

local function weak()
  return setmetatable({}, WEAK)
end

---@class ms.Samples
---@field first integer?  global number of the first one; nil: nobody has said it
---@field seeding table  the value of `seeding` when its runs began
---@field runs table<ms.nn.Module, integer>

---@type table<ms.Tensor, ms.Samples>  of each batch that was dealt, by its tensors
local dealt = weak()

local seeding = {} -- another one after each seed
local present = { seeding = seeding, runs = weak() }

--- `x` and `y` hold samples `first`, `first` + 1, ..., and so does what comes next. (The runtime
--- has heard of it from who filled them.)
---@param x ms.Tensor
---@param y ms.Tensor
---@param first integer
function samples.deal(x, y, first)
  present = { first = first, seeding = seeding, runs = weak() }
  dealt[x], dealt[y] = present, present
end

--- What comes next are the samples of the batch that `x` is part of, if it is part of one.
---@param x any
function samples.resume(x)
  local batch = dealt[x]
  if not batch or batch == present then
    return
  end
  parameter.begin_samples(batch.first)
  if batch.seeding ~= seeding then -- masks begin anew with a seed
    batch.seeding, batch.runs = seeding, weak()
  end
  present = batch
end

--- A seed was set: nobody has said which samples come next, and nothing has run.
function samples.forget()
  seeding = {}
  present = { seeding = seeding, runs = weak() }
end

--- How often each module ran on the samples that are present.
---@return table<ms.nn.Module, integer>
function samples.runs()
  return present.runs
end

return samples
