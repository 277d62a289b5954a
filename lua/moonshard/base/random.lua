--- The seed, and the counters of everything that draws random numbers.

local arguments = require 'moonshard_ffi.arguments'
local errors = require 'moonshard.base.errors'
local parameter = require 'moonshard_ffi.parameter'
local samples = require 'moonshard.base.samples'
local dropout_streams = require 'moonshard.base.dropout_streams'

local random = {}

-- Counters since the seed was set: tensors of ms.rand() and ms.randn() without a stream of their
-- own, and tokens of generate() without a seed of its own.
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

--- Set the seed of all random numbers: tensors, initial values of parameters, dropout masks, tokens
--- of generate(). All counters restart, so the same seed gives the same tensors, models and masks
--- in the same order.
---@param seed integer
function random.manual_seed(seed)
  parameter.set_seed(arguments.whole('manual_seed', 'seed', seed))
  tensors, tokens = 0, 0
  samples.restart()
end

---@class ms.Random.Position  counters that a checkpoint stores beside the seed
---@field tensors integer  number of tensors drawn by ms.rand() and ms.randn()
---@field tokens integer  number of tokens drawn by generate()
---@field sites table<string, integer>  number of calls of ms.ops.dropout(), by stream

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

--- Raise an error if a position is not valid.
function random.check(what, position)
  arguments.list(what, 'position', position)
  arguments.whole(what, 'tensors', position.tensors, nil, 0)
  arguments.whole(what, 'tokens', position.tokens, nil, 0)
  check_counts(what, 'sites', position.sites)
end

--- Restore the counters; the seed is not changed.
---@param position ms.Random.Position
function random.continue(position)
  tensors, tokens = position.tensors, position.tokens
  dropout_streams.continue(position.sites)
end

---@class ms.Random.State  numbers and strings, so it can be part of a checkpoint's config
---@field seed string  its decimal digits
---@field tensors integer  number of tensors drawn by ms.rand() and ms.randn()
---@field tokens integer  number of tokens drawn by generate()
---@field modules integer  number of modules made that have parameters or masks
---@field sample? integer  first sample of the batch that was loaded or used last, if any
---@field runs table<string, integer>  draws from each dropout stream on that batch

--- The seed and all counters, for set_rng_state(). Each rank has its own.
---@return ms.Random.State
function random.get_rng_state()
  local sample, runs = samples.state()
  return {
    seed = parameter.seed(), tensors = tensors, tokens = tokens, modules = parameter.streams(),
    sample = sample, runs = runs,
  }
end

local FIELDS = { 'seed', 'tensors', 'tokens', 'modules', 'sample', 'runs' }

--- Restore the state returned by get_rng_state(), in this process or another one: the same random
--- numbers are drawn again. Loaders are not affected. TypeError or ValueError for an invalid state,
--- and then nothing is changed.
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
