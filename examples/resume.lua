--- What --resume of examples/train.lua makes of the flags: those of the run that is continued hold,
--- except where another value is given.

local ms = require 'moonshard'
local flags = require 'moonshard.tools.flags'

local resume = {}

-- A checkpoint holds these; another value for one is legal.
local KEPT = {
  'steps', 'lr', 'warmup', 'final-lr', 'weight-decay', 'clip', 'dropout', 'strategy', 'dtype',
  'reduce-dtype', 'micro-batches',
}

-- Which model learns which samples: no run goes on with others.
local FIXED = { 'layers', 'width', 'heads', 'context', 'tokens', 'seed' }

---@class Resumed  what the newest checkpoint of a run says
---@field path string
---@field step integer
---@field fixed table<string, any>  values of FIXED
---@field kept table<string, any>   values of KEPT; older checkpoints have none, or not all

--- What a checkpoint keeps of the flags beside `model`, the options of its model.
---@param o table  parsed flags
---@param model table
---@return table config
function resume.config(o, model)
  model.flags = {}
  for _, name in ipairs(KEPT) do
    model.flags[name] = o[name]
  end
  return model
end

-- Those of `names` that `found` has a value for, as if they had been typed.
local function parsed(path, names, found, spec)
  local words = {}
  for _, name in ipairs(names) do
    local value = found[name]
    if value then
      words[#words + 1] = ('--%s=%s'):format(name,
        type(value) == 'number' and ('%.17g'):format(value) or tostring(value))
    end
  end
  local values, mistake = flags.parse(words, spec)
  if not values then
    ms.error('FormatError', '%s: %s', path, mistake)
  end
  local out = {}
  for name in pairs(values.given) do -- order does not matter: each goes to a name of its own
    out[name] = values[name]
  end
  return out
end

--- Look at the newest checkpoint below `out`. FormatError when its flags are none of ours.
---@param out string
---@param spec table[]  of the flags
---@return Resumed?  nil when there is no checkpoint
function resume.from(out, spec)
  local path = ms.checkpoint.latest(out .. '/checkpoints')
  if not path then
    return nil
  end
  local meta = ms.checkpoint.read_meta(path)
  local config = type(meta.config) == 'table' and meta.config or {}
  local fixed = { seed = tonumber(meta.seed) }
  for _, name in ipairs { 'layers', 'width', 'heads', 'context' } do
    fixed[name] = config[name]
  end
  local samples = type(meta.loader) == 'table' and tonumber(meta.loader.samples_per_step)
  if samples and tonumber(config.context) then
    fixed.tokens = samples * config.context
  end
  local kept = type(config.flags) == 'table' and config.flags or {}
  return {
    path = path, step = meta.step, fixed = parsed(path, FIXED, fixed, spec),
    kept = parsed(path, KEPT, kept, spec),
  }
end

--- Give flags that were not typed the values the run was trained with.
---@param o table  parsed flags
---@param values table<string, any>  of a Resumed: `fixed` or `kept`
function resume.inherit(o, values)
  for name, value in pairs(values) do -- order does not matter, as above
    if not o.given[name] then
      o[name], o.given[name] = value, true
    end
  end
end

--- What stands in the way of going on with these flags, or nil.
---@param o table
---@param resumed Resumed
---@return string?
function resume.mistake(o, resumed)
  local was, is = '', ''
  for _, name in ipairs(FIXED) do
    if resumed.fixed[name] ~= o[name] then
      was = ('%s --%s=%s'):format(was, name, resumed.fixed[name])
      is = ('%s --%s=%s'):format(is, name, o[name])
    end
  end
  if was ~= '' then
    return ('--resume: %s was made with%s, this run has%s'):format(resumed.path, was, is)
  end
end

--- A line for each flag that rules from here on with another value than before, and for what
--- follows from it.
---@param o table
---@param resumed Resumed
---@return string[]
function resume.changes(o, resumed)
  local lines, kept, start = {}, resumed.kept, resumed.step + 1
  for _, name in ipairs(KEPT) do
    if kept[name] ~= nil and kept[name] ~= o[name] then
      local follows = name == 'steps' and ': learning rates are those of a run of that length' or ''
      lines[#lines + 1] = ('--%s=%s from step %d on, before it was %s%s'):format(name, o[name],
        start, kept[name], follows)
    end
  end
  local warmup = math.min(o.warmup, o.steps)
  local before = kept.warmup and math.min(kept.warmup, kept.steps or kept.warmup) or warmup
  if before ~= warmup and kept.warmup == o.warmup then
    lines[#lines + 1] = ('warm-up takes %d steps, before it was %d: at most --steps'):format(warmup,
      before)
  end
  return lines
end

return resume
