--- Code shared by the loaders: the ranks that share samples, steps, and positions.

local B = require 'moonshard_ffi'
local arguments = require 'moonshard_ffi.arguments'
local dist = require 'moonshard.dist'
local errors = require 'moonshard.base.errors'
local sharding = require 'moonshard_ffi.fsdp'

local sharded = {}

--- Rank and size of the group that shares the samples. For all ranks dist.init() is not needed.
---@return integer rank, integer world_size
function sharded.ranks(self)
  if self._group then
    return B.C.ms_comm_rank(self._group), B.C.ms_comm_size(self._group)
  end
  return dist.rank(), dist.world_size()
end

-- Rank numbers must be the group's. Otherwise some samples would be used twice, and the order in
-- which gradients are summed would differ from that of a single rank.
local function check_rank(self, rank, world_size)
  if self.rank < 0 or self.rank >= self.world_size then
    errors.raise('ValueError', 'rank is %s, expected 0 to %d', tostring(self.rank),
      self.world_size - 1)
  elseif world_size == 1 or self.world_size == 1 then
    return
  elseif self.world_size ~= world_size then
    errors.raise('ValueError', 'world_size is %d, but the %s has %d ranks; leave it out, or give '
      .. '1 for a loader that gives all samples to this rank', self.world_size,
      self._group and 'group' or 'job', world_size)
  elseif self.rank ~= rank then
    errors.raise('ValueError', 'rank is %d, but this is rank %d of the %s; leave it out',
      self.rank, rank, self._group and 'group' or 'job')
  end
end

--- Set rank, world_size and the group of a loader from its options.
---@param self table  the loader
---@param opts { process_group?: ms.dist.Group, rank?: integer, world_size?: integer }
---@param positive string[]  fields that must be positive integers
function sharded.set_ranks(self, opts, positive)
  self._group = opts.process_group or false
  self._hold = self._group and sharding.hold(self._group)
  local rank, world_size = sharded.ranks(self)
  self.world_size = opts.world_size or world_size
  self.rank = opts.rank or self.world_size == world_size and rank or 0
  for _, name in ipairs(positive) do
    local value = rawget(self, name)
    if type(value) ~= 'number' or value < 1 or value % 1 ~= 0 then
      errors.raise('ValueError', '%s is %s, expected a whole number above 0', name,
        tostring(value))
    end
  end
  check_rank(self, rank, world_size)
  -- A loader that shares samples over all ranks must be equal on all of them.
  local shared = self.world_size > 1 and self.world_size == world_size
  -- The group that shares the samples; false: each rank gets all samples.
  self._shared_by = self.world_size == world_size and self._group or shared and dist.world()
end

-- Advice for another number of samples per step; `batch` is the option for one rank's batch size.
local function batch_for(self, samples_per_step, batch)
  local rows = self.world_size * self.micro_batches
  local split = ('%d rank%s x %d micro-batch%s'):format(self.world_size,
    self.world_size > 1 and 's' or '', self.micro_batches, self.micro_batches > 1 and 'es' or '')
  if type(samples_per_step) ~= 'number' or samples_per_step % 1 ~= 0 or samples_per_step < 1 then
    return ''
  elseif samples_per_step % rows ~= 0 then
    return ('; %d samples cannot be divided over %s evenly'):format(samples_per_step, split)
  end
  return ('; with %s, give %s = %d'):format(split, batch, samples_per_step / rows)
end

local function check_meaning(state, own, meaning)
  for _, entry in ipairs(meaning) do
    local name, text = entry[1], entry[2]
    local was, is = state[name], own[name]
    if was ~= nil and is ~= nil and was ~= is then -- older checkpoints lack some
      local function shown(value)
        return text:format(type(value) == 'number' and ('%.0f'):format(value) or tostring(value))
      end
      errors.raise('ValueError', 'the position is that of a loader with %s, this one has %s',
        shown(was), shown(is))
    end
  end
end

local function check_state(self, state, own, meaning, batch)
  if type(state) ~= 'table' then
    errors.raise('TypeError', 'the position in the data is %s, expected a table',
      arguments.noun(state))
  elseif state.seed ~= self.seed or state.samples_per_step ~= self.samples_per_step then
    errors.raise('ValueError', 'the position is that of a loader with seed %s and %s samples a '
      .. 'step, this one has seed %d and %d%s', tostring(state.seed),
      tostring(state.samples_per_step), self.seed, self.samples_per_step,
      state.samples_per_step == self.samples_per_step and ''
        or batch_for(self, state.samples_per_step, batch))
  end
  check_meaning(state, own, meaning)
  local drawn = state.samples
  if type(drawn) ~= 'number' or not (drawn >= 0 and drawn <= 2 ^ 53)
    or drawn % self.samples_per_step ~= 0 then
    errors.raise('ValueError', 'the position is sample %s, expected a multiple of %d from 0 to '
      .. '2^53', tostring(drawn), self.samples_per_step)
  end
end

-- Fields of the loader that a position must match.
local function meaning_of(self)
  -- If each rank of a group gets all samples, ranks may have different ones.
  local alone = self.world_size < select(2, sharded.ranks(self))
  local out = {}
  for _, entry in ipairs(self._meaning) do
    local name, _, field = unpack(entry)
    if not (alone and entry.shared) then
      out[name] = self[field or name]
    end
  end
  return out
end

--- The methods that all loaders have. A class with them has the fields of set_ranks(), seed,
--- samples_per_step, steps_per_epoch, _step and _micro, and these of its own:
---   _meaning  fields that a position must match: { name, text in errors, field of the loader },
---             with shared = true if ranks that share no samples may differ in it
---   _batch_option  name of the option for the batch size of one rank
---@class ms.data.Steps
local Steps = { _name = 'data.Steps', _is_loader = true }

--- The loader's group (`process_group`, or all ranks), and whether its ranks share the samples. If
--- not, each of them gets all samples.
---@return ms.dist.Group group, boolean shared
function Steps:group()
  return self._group or dist.world(), self._shared_by ~= false
end

--- Number of the step that the next batch belongs to, over all epochs, from 0.
---@return integer
function Steps:step()
  return self._step
end

--- Number of completed passes over the samples before the next batch.
---@return number
function Steps:epoch()
  return self._step / self.steps_per_epoch
end

-- Continue with the next micro-batch.
function Steps:_advance()
  self._micro = self._micro + 1
  if self._micro == self.micro_batches then
    self._step, self._micro = self._step + 1, 0
  end
end

local function move_to(self, step, micro, ...)
  self._step, self._micro = step, micro
  return ...
end

--- The batch that next() will return, without advancing.
---@return any ...
function Steps:peek()
  return move_to(self, self._step, self._micro, self:next())
end

---@class ms.data.State
---@field samples integer  used so far by all ranks together; independent of the number of ranks
---@field seed integer
---@field samples_per_step integer
---@field shuffle? boolean  like all fields below, absent in older checkpoints
---@field context? integer  of Loader and PackedLoader
---@field packed? boolean  of PackedLoader
---@field drop_last? boolean  of DataLoader
---@field n_windows? integer  of Loader; like all fields below, absent if each rank of a job gets
---  all samples
---@field n_rows? integer  of PackedLoader
---@field n_samples? integer  of DataLoader, whose samples are not compared
---@field contents? integer|string  hash of the tokens, of Loader and PackedLoader

--- The position of the loader, for load_state() and checkpoints. RuntimeError inside a step.
---@return ms.data.State
function Steps:state()
  if self._micro ~= 0 then
    errors.raise('RuntimeError', 'the position is taken between steps: micro-batch %d of %d is '
      .. 'next', self._micro + 1, self.micro_batches)
  end
  local state = meaning_of(self)
  state.samples = self._step * self.samples_per_step
  state.seed = self.seed
  state.samples_per_step = self.samples_per_step
  return state
end

--- Raise an error if this loader cannot continue at a position.
---@param state ms.data.State
function Steps:check_state(state)
  check_state(self, state, meaning_of(self), self._meaning, self._batch_option)
end

--- Continue at the position of another loader over the same samples. The number of ranks may
--- differ; choose the size of batches and `micro_batches` so that a step has as many samples.
--- ValueError names a difference.
---@param state ms.data.State
function Steps:load_state(state)
  self:check_state(state)
  self._step, self._micro = state.samples / self.samples_per_step, 0
end

sharded.Steps = Steps

return sharded
