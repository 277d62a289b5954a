--- Two ranks that run one training program, of which one of them may do something else.

local ms = require 'moonshard'
local nn, fsdp, optim, data = ms.nn, ms.fsdp, ms.optim, ms.data
local runs = require 'support.runs'

local function layers()
  return nn.Sequential {
    nn.Linear(4, 6), nn.Sequential { nn.Linear(6, 6), nn.Dropout(0.1) }, nn.Linear(6, 2),
  }
end

-- A state dict for them, every element of which has this value.
local function all_at(value)
  local sd = layers():state_dict()
  for _, name in ipairs(sd) do
    sd[name] = ms.full(sd[name]:shape(), value)
  end
  return sd
end

local function counting(n, from)
  return ms.arange(n):add(from or 0):to('i64')
end

local function nothing() end

local DEFAULTS = {
  seed = 1,
  layers = layers,
  before_wrap = nothing, -- (module)
  options = {}, -- of FSDP
  ignored = nothing, -- (module)
  after_wrap = nothing, -- (model)
  optimizer = function(model) return optim.SGD(model:parameters(), { lr = 0.1 }) end,
  tokens = function() return counting(200) end,
  loader = {}, -- options
  steps = 3,
  before_step = nothing, -- (step, model, opt, loader)
  backward = function(loss) loss:backward() end,
  clip = function(model) model:clip_grad_norm_(1) end,
  step = function(opt) opt:step() end,
  zero_grad = function(opt) opt:zero_grad() end,
  last = function(model) ms.no_grad(model, ms.ones(1, 4)) end, -- what was noted last is compared
}

local function merged(base, over)
  local out = {}
  for _, t in ipairs { base, over } do
    for name, value in pairs(t) do -- order does not matter: names differ
      out[name] = value
    end
  end
  return out
end

-- As the program wraps them: `module`, or other such layers.
local function wrapped(opts, module)
  return fsdp.FSDP(module or layers(), merged({
    auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.Sequential }, use_orig_params = true,
  }, opts or {}))
end

local function train(settings, rank)
  local s = merged(DEFAULTS, settings)
  ms.manual_seed(s.seed)
  local module = s.layers()
  s.before_wrap(module)
  local model = wrapped(merged({ ignored_modules = s.ignored(module) }, s.options), module)
  s.after_wrap(model)
  local opt = s.optimizer(model)
  local loader = data.Loader(merged({
    tokens = s.tokens(), batch = 2, context = 4, seed = 3, rank = rank, world_size = 2,
  }, s.loader))
  for step = 1, s.steps do
    s.before_step(step, model, opt, loader)
    local x = loader:next()
    ms.scope(function()
      s.backward(model(x:to('f32'):mul(0.01)):sum(), step)
    end)
    s.clip(model, step)
    s.step(opt, step)
    s.zero_grad(opt, step)
  end
  s.last(model, loader)
end

-- What each rank has to say: the seconds it took, 'ok' or the error, and its warnings; and what
-- became of the job.
local function run(base, odd)
  local reports, cause = runs.reports(2, function(rank)
    local began, ok, err = ms.time()
    local warnings = ms.capture_warnings(function()
      ok, err = pcall(train, rank == 1 and merged(base, odd) or base, rank)
    end)
    local said = { ('%.3f'):format(ms.time() - began), ok and 'ok' or ms.errors.describe(err) }
    for _, warning in ipairs(warnings) do
      said[#said + 1] = warning.message
    end
    return table.concat(said, '\n'), not ok and err or nil
  end)
  local out = {}
  for rank = 0, 1 do
    local seconds, message, warnings = reports[rank]:match '^(.-)\n([^\n]*)\n?(.*)$'
    out[rank + 1] = { seconds = tonumber(seconds), message = message, warnings = warnings }
  end
  return out, cause
end

-- On the step of this number only (the second, unless said).
local function on(wanted, fn, otherwise)
  return function(subject, step)
    return (step == wanted and fn or otherwise or nothing)(subject, step)
  end
end

local function before(wanted, fn)
  return function(step, ...)
    if step == wanted then
      fn(...)
    end
  end
end

-- The gradient of a bias is changed after the first backward, before it is clipped.
local function changes(write)
  return on(1, function(model)
    ms.no_grad(write, model.module[3].bias)
    model:clip_grad_norm_(1)
  end, DEFAULTS.clip)
end

local function frozen(i, place)
  return function(module) module[i]:requires_grad_(place == 'on') end
end

local function transformer(opts)
  local base = { vocab = 13, layers = 1, heads = 2, width = 8, context = 4 }
  return function() return ms.models.GPT(merged(base, opts)) end
end

local function writes(n, opts, prompt)
  return function(model)
    model:generate(prompt or { 1 }, n, opts)
    ms.dist.barrier()
  end
end

local WRITER = {
  layers = transformer {}, steps = 0, last = writes(2),
  options = { auto_wrap_policy = fsdp.ModuleWrapPolicy { nn.TransformerBlock } },
}

local NO_SHARD = { sharding_strategy = 'NO_SHARD' }
local PLANNED = { after_wrap = function(model) model:plan() end } -- its collectives are over

return {
  layers = layers, all_at = all_at, wrapped = wrapped, counting = counting, nothing = nothing,
  DEFAULTS = DEFAULTS, merged = merged,
  run = run, on = on, before = before, changes = changes, frozen = frozen,
  transformer = transformer, writes = writes, WRITER = WRITER, NO_SHARD = NO_SHARD,
  PLANNED = PLANNED,
}
