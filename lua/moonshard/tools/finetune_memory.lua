--- The plan of `moonshard finetune`: the rows of a micro-batch, and whether blocks are computed
--- again in the backward, so that a run fits into a budget of memory. Each candidate is run on the
--- device that computes nothing, so its memory is exact.

local buffer = require 'string.buffer'
local ms = require 'moonshard'
local report = require 'moonshard.train.report'
local run = require 'moonshard.tools.finetune_run'
local util = require 'moonshard.base.util'

local memory = {}

---@class ms.tools.FinetunePlan
---@field rows integer  of a micro-batch
---@field micro_batches integer  of a rank and step
---@field checkpointing boolean
---@field steps integer  of the run
---@field parameters integer
---@field trained integer  elements of parameters that are trained
---@field peak integer  bytes of a rank
---@field total integer  bytes of all ranks, shared slots counted once
---@field kinds table<string, integer>  peaks of a rank by kind

--- The result of fn() in a process of its own, as a process with a device cannot fork ranks.
---@param fn fun(): any
---@return any  what string.buffer encodes
function memory.alone(fn)
  local path = os.tmpname()
  local ok, err = pcall(ms.dist.spawn, 1, function()
    local file = assert(io.open(path, 'w'))
    file:write(buffer.encode(fn()))
    file:close()
  end)
  local file = io.open(path)
  local text = file and file:read '*a'
  if file then
    file:close()
  end
  os.remove(path)
  if not ok then
    error(err, 0)
  end
  return buffer.decode(text)
end

-- Tokens of a micro-batch beyond which more rows bring no speed.
local ENOUGH = 8192

local function candidates(o)
  local most, list = o.batch / o.ranks, {}
  for rows = most, 1, -1 do
    if most % rows == 0 and (o.rows == 0 and (rows * o.context <= ENOUGH or rows == 1)
      or rows == o.rows) then
      for _, checkpointing in ipairs { false, true } do
        local wanted = ({ on = true, off = false })[o.checkpointing]
        if wanted == nil or wanted == checkpointing then
          list[#list + 1] = {
            rows = rows, micro_batches = most / rows, checkpointing = checkpointing,
          }
        end
      end
    end
  end
  table.sort(list, function(a, b) -- fast ones first
    if a.checkpointing ~= b.checkpointing then
      return b.checkpointing
    end
    return a.rows > b.rows
  end)
  return list
end

-- Two steps and a validation on the device that computes nothing.
local function measured(o, set, candidate)
  return memory.alone(function()
    ms.device 'plan'
    local group = ms.dist.fake { rank = 0, world = o.ranks }
    local model, opt = run.model(o, candidate, group)
    local training, validation = run.loaders(o, candidate, set, group)
    local steps = o.steps > 0 and o.steps or math.ceil(o.epochs * training.steps_per_epoch)
    local all, trained = 0, 0
    for _, p in ipairs(model:named_parameters()) do
      local n = 1
      for _, size in ipairs(p.shape) do
        n = n * size
      end
      all, trained = all + n, trained + (p.tensor:requires_grad() and n or 0)
    end
    local few = math.min(steps, 2)
    ms.train.evaluate(model, validation, 1)
    ms.train(util.merged(run.options(o, { steps = few }, model, opt, training, validation), {
      log_every = 0, validation_steps = 1,
    }))
    local m = ms.memory()
    return util.merged(candidate, {
      steps = steps, parameters = all, trained = trained, peak = m.peak_total, kinds = m.peak,
      total = o.ranks * (m.peak_total - m.peak.arena) + m.peak.arena,
    })
  end)
end

-- Floating-point operations a second of a rank, in a product as large as the model's.
local function speed(o)
  return memory.alone(function()
    local dtype, n = run.dtype(o), 1024
    local a, b = ms.randn(n, n):to(dtype), ms.randn(n, n):to(dtype)
    local began, calls = nil, -1 -- the first call opens the library
    repeat
      ms.scope(function() return ms.matmul(a, b):narrow(1, 1, 1):sum():item() end)
      calls, began = calls + 1, began or ms.time()
    until ms.time() - began > 0.1
    return calls * 2 * n ^ 3 / (ms.time() - began)
  end)
end

--- Seconds that the products of a step take. Weights of a forward are used once, trained ones twice
--- in the backward, frozen ones once; with checkpoints a forward is repeated.
---@param o table
---@param plan ms.tools.FinetunePlan
---@return number
function memory.seconds(o, plan)
  local uses = 2 + (o.lora and 0 or 1) + (plan.checkpointing and 1 or 0)
  return 2 * uses * plan.parameters * (o.batch / o.ranks) * o.context / speed(o)
end

local function available()
  for line in io.lines '/proc/meminfo' do
    local kib = line:match '^MemAvailable:%s+(%d+) kB'
    if kib then
      return kib * 1024
    end
  end
  return math.huge
end

--- The fastest way to train that fits. ValueError with the least memory if none does.
---@param o table  flags
---@param set ms.tools.FinetuneData
---@return ms.tools.FinetunePlan
function memory.plan(o, set)
  local budget, least = o.budget or available(), nil
  for _, candidate in ipairs(candidates(o)) do
    local plan = measured(o, set, candidate)
    if plan.total <= budget then
      return plan
    end
    least = (not least or plan.total < least.total) and plan or least
  end
  ms.error('ValueError', 'finetune: %s are too few: the run needs %s (%d ranks x %d rows of %d '
    .. 'tokens, checkpointing %s); give a smaller --context%s', report.bytes(budget),
    report.bytes(least.total), o.ranks, least.rows, o.context, least.checkpointing and 'on'
      or 'off', o.lora and '' or ', or --lora')
end

return memory
