--- The seed, and how far everything is that draws since it was set.

local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'
local parameter = require 'moonshard_ffi.parameter'
local samples = require 'moonshard.base.samples'
local dropout_streams = require 'moonshard.base.dropout_streams'

local random = {}

-- Drawn since the seed was set: tensors of ms.rand() and ms.randn() without a stream of their own,
-- tokens of generate() without a seed of its own.
local tensors, tokens = 0, 0

---@return integer  from 1
function random.next_tensor()
  tensors = tensors + 1
  return tensors
end

---@return integer  from 1
function random.next_token()
  tokens = tokens + 1
  return tokens
end

--- Seed of everything random from now on: tensors, first values of parameters, dropout, tokens that
--- generate() draws. All of it begins anew: after the same seed come the same tensors, the same
--- model and the same masks, in the same order.
---@param seed integer
function random.manual_seed(seed)
  parameter.set_seed(arguments.whole('manual_seed', 'seed', seed))
  tensors, tokens = 0, 0
  samples.restart()
end

---@class ms.Random.Position  what a checkpoint keeps beside the seed
---@field tensors integer  that ms.rand() and ms.randn() made
---@field tokens integer  that generate() drew
---@field sites table<string, integer>  how often ms.ops.dropout() ran, by site

---@return ms.Random.Position
function random.position()
  return { tensors = tensors, tokens = tokens, sites = dropout_streams.counts() }
end

local function check_counts(what, name, counts)
  arguments.list(what, name, counts)
  for key, n in next, counts do
    if type(key) ~= 'string' then
      errors.raise('TypeError', "%s: '%s' has an entry %s, expected names", what, name,
        tostring(key))
    end
    arguments.text(what, name, key)
    arguments.whole(what, ('%s.%s'):format(name, key), n, nil, 0)
  end
end

--- Raises what is wrong with a position.
function random.check(what, position)
  arguments.list(what, 'position', position)
  arguments.whole(what, 'tensors', position.tensors, nil, 0)
  arguments.whole(what, 'tokens', position.tokens, nil, 0)
  check_counts(what, 'sites', position.sites)
end

--- Go on from there, whatever the seed is.
---@param position ms.Random.Position
function random.continue(position)
  tensors, tokens = position.tensors, position.tokens
  dropout_streams.continue(position.sites)
end

---@class ms.Random.State  numbers and texts: it can stand in the config of a checkpoint
---@field seed string  its digits
---@field tensors integer  that ms.rand() and ms.randn() made
---@field tokens integer  that generate() drew
---@field modules integer  that were made with parameters or masks
---@field sample? integer  the first of the batch that was dealt or run last, if one was
---@field runs table<string, integer>  how often each place that draws masks ran on it

--- The seed and how far everything is that draws, for set_rng_state(). Each rank has its own.
---@return ms.Random.State
function random.get_rng_state()
  local sample, runs = samples.state()
  return {
    seed = parameter.seed(), tensors = tensors, tokens = tokens, modules = parameter.streams(),
    sample = sample, runs = runs,
  }
end

local FIELDS = { 'seed', 'tensors', 'tokens', 'modules', 'sample', 'runs' }

--- Go on from where get_rng_state() was called, in this process or another one: what was drawn
--- after it is drawn again. Loaders are where they are. A TypeError or ValueError names what is no
--- state; then nothing is changed.
---@param state ms.Random.State
function random.set_rng_state(state)
  local what = 'set_rng_state'
  if type(state) ~= 'table' then
    arguments.refuse(what, 'state', state, 'a table of get_rng_state()')
  end
  errors.options(what, state, FIELDS)
  local seed = parameter.seed_of(arguments.text(what, 'seed', state.seed))
  if not seed then
    errors.raise('ValueError', "%s: 'seed' is '%s', expected the digits of a number below 2^64",
      what, state.seed:sub(1, 80))
  end
  for _, name in ipairs { 'tensors', 'tokens', 'modules' } do
    arguments.whole(what, name, state[name], nil, 0)
  end
  if state.sample ~= nil then
    arguments.whole(what, 'sample', state.sample, nil, 0)
  end
  check_counts(what, 'runs', state.runs)
  local runs = {}
  for name, n in next, state.runs do
    runs[name] = n
  end
  parameter.set_seed(seed, state.modules)
  tensors, tokens = state.tensors, state.tokens
  samples.restart(state.sample, runs)
end

return random
