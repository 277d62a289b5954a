--- Deals windows of a token stream to ranks, shuffled by (seed, epoch), resumable anywhere.
---
--- A step takes W ranks x m micro-batches of B rows. Micro-batch k of rank r is number i = r m + k
--- of the step's W m, whatever W and m are, and holds samples i B .. i B + B - 1 of the step: so 1
--- rank with 4 micro-batches sees what 4 ranks with 1 see. Each batch keeps the global number of
--- its first sample, and modules that are called with it draw dropout's masks for those: when the
--- batch was dealt, and what other loaders dealt since, does not matter. An epoch ends when no
--- whole step is left.
---
--- Rank and number of ranks are those of `process_group`, as FSDP's, or of the job: W here.
--- `world_size = 1` inside a job deals all samples to each rank that asks (validation that every
--- rank does alone). In a process without a job any rank of any number can be asked for. A sharded
--- model takes no batch that was dealt to other ranks than its own, nor a checkpoint such a loader.
---
--- A loader is no list: `#loader` is 0, an epoch has `loader.steps_per_epoch` steps.
---
--- Shapes: x, y i64 (B, T); y is x one token later

local TokenFile = require 'moonshard.data.token_file'
local arguments = require 'moonshard_ffi.arguments'
local class = require 'moonshard.base.class'
local create = require 'moonshard.base.create'
local dealing = require 'moonshard.data.dealing'
local dist = require 'moonshard.dist'
local errors = require 'moonshard.base.errors'
local runtime = require 'moonshard_ffi.data'
local samples = require 'moonshard.base.samples'
local util = require 'moonshard.base.util'

---@class ms.data.Loader
---@field batch integer
---@field context integer
---@field micro_batches integer
---@field steps_per_epoch integer
---@overload fun(opts: ms.data.Loader.Options): ms.data.Loader
local Loader = class('data.Loader')

Loader._is_loader = true

---@class ms.data.Loader.Options
---@field tokens ms.Tensor|ms.data.TokenFile  u8 or i64 (n), or a file of u16 or u32
---@field batch integer  B, rows of one micro-batch
---@field context integer  T, tokens of a row
---@field seed? integer  of the order, from 0 (default 0)
---@field shuffle? boolean  default true
---@field process_group? ffi.cdata*  the group that the samples are dealt to, default: all ranks
---@field rank? integer  default: this rank of the group
---@field world_size? integer  default: ranks of the group
---@field micro_batches? integer  m, per rank and step (default 1)

---@param opts ms.data.Loader.Options
function Loader:init(opts)
  opts = errors.options(self._name, opts, {
    tokens = 'any', batch = 'number', context = 'number', seed = 'whole', shuffle = 'flag',
    rank = 'whole', world_size = 'number', micro_batches = 'number', process_group = 'group',
  })
  self.tokens = opts.tokens
  self._ids = util.is(opts.tokens, TokenFile) and opts.tokens._bytes
    or arguments.tensor(self._name, 'tokens', opts.tokens)
  self.batch, self.context = opts.batch, opts.context
  self.seed = arguments.whole(self._name, 'seed', opts.seed, 0, 0)
  self.shuffle = opts.shuffle ~= false
  self.micro_batches = opts.micro_batches or 1
  dealing.place(self, opts, { 'batch', 'context', 'world_size', 'micro_batches' })
  self.samples_per_step = self.world_size * self.micro_batches * self.batch
  self.n_windows = runtime.n_windows(self._ids, self.context)
  self.steps_per_epoch = math.floor(self.n_windows / self.samples_per_step)
  if self.steps_per_epoch < 1 then
    errors.raise('ValueError', 'the tokens hold %d windows of %d, one step takes %d',
      self.n_windows, self.context, self.samples_per_step)
  end
  self._step, self._micro = 0, 0
  -- Now: a position can be saved still when the file is gone.
  self._contents = runtime.digest(self._ids)
end

--- The group of its ranks: `process_group`, else all. And whether they share the samples; else each
--- of them has all.
---@return ms.dist.Group group, boolean shared
function Loader:group()
  return self._group or dist.world(), self._dealt_to ~= false
end

--- Step the next batch belongs to, from 0.
---@return integer
function Loader:step()
  return self._step
end

--- Passes over the tokens that the next batch comes after.
---@return number
function Loader:epoch()
  return self._step / self.steps_per_epoch
end

--- The next micro-batch of this rank.
---@return ms.Tensor x, ms.Tensor y  (B, T)
function Loader:next()
  local in_step = (self.rank * self.micro_batches + self._micro) * self.batch
  local x = create.empty({ self.batch, self.context }, { dtype = 'i64' })
  local y = create.empty({ self.batch, self.context }, { dtype = 'i64' })
  local first = self._step * self.samples_per_step + in_step
  runtime.windows(x, y, self._ids, first, self.steps_per_epoch * self.samples_per_step,
    self.seed, self.shuffle)
  samples.deal({ x, y }, first, self._dealt_to)
  self._micro = self._micro + 1
  if self._micro == self.micro_batches then
    self._step, self._micro = self._step + 1, 0
  end
  return x, y
end

--- The batch that next() gives next; the position stays.
---@return ms.Tensor x, ms.Tensor y  (B, T)
function Loader:peek()
  local step, micro = self._step, self._micro
  local x, y = self:next()
  self._step, self._micro = step, micro
  return x, y
end

--- Iterate over (step, x, y, k): the step from 1, and which of its micro-batches this is (from 1).
--- With one micro-batch a step, k is always 1.
---@param most? integer  stop after so many micro-batches (default: never)
---@return fun(): integer?, ms.Tensor?, ms.Tensor?, integer?
function Loader:batches(most)
  local left = arguments.whole('batches', 'most', most, math.huge, 0)
  return function()
    if left < 1 then
      return nil
    end
    left = left - 1
    local step, k = self._step + 1, self._micro + 1
    local x, y = self:next()
    return step, x, y, k
  end
end

-- What its numbers of samples stand for.
local function meaning(self)
  -- Where each rank of a group deals to itself alone, ranks may have other tokens.
  local alone = self.world_size < select(2, dealing.ranks(self))
  return {
    context = self.context,
    shuffle = self.shuffle,
    n_windows = not alone and self.n_windows or nil,
    contents = not alone and self._contents or nil,
  }
end

---@class ms.data.Loader.State
---@field samples integer  drawn so far over all ranks: independent of how they were dealt
---@field seed integer
---@field samples_per_step integer
---@field context? integer  this and what follows: absent in older checkpoints
---@field shuffle? boolean
---@field n_windows? integer  absent too where each rank of a job deals to itself alone
---@field contents? integer  a digest of the tokens (ms_data_digest()); likewise

--- Where the loader stands. Between two steps only.
---@return ms.data.Loader.State
function Loader:state()
  if self._micro ~= 0 then
    errors.raise('RuntimeError', 'the position is taken between steps: micro-batch %d of %d is '
      .. 'next', self._micro + 1, self.micro_batches)
  end
  local state = meaning(self)
  state.samples = self._step * self.samples_per_step
  state.seed = self.seed
  state.samples_per_step = self.samples_per_step
  return state
end

-- What the numbers of samples mean, and its text in errors.
local MEANING = {
  { 'context', 'a context of %s' },
  { 'shuffle', 'shuffle = %s' },
  { 'n_windows', 'tokens that hold %s windows' },
  { 'contents', 'tokens of digest %s' },
}

--- Is this a position of a loader like this one? Raises what is wrong with it.
---@param state ms.data.Loader.State
function Loader:check_state(state)
  dealing.check_state(self, state, meaning(self), MEANING, 'batch')
end

--- Continue from where another loader over the same tokens stood, on any number of ranks: `batch`
--- and `micro_batches` are such that a step has as many samples. A ValueError names what differs.
---@param state ms.data.Loader.State
function Loader:load_state(state)
  self:check_state(state)
  self._step, self._micro = state.samples / self.samples_per_step, 0
end

function Loader:__tostring()
  return ('Loader(batch=%d, context=%d, steps_per_epoch=%d, rank=%d of %d)'):format(self.batch,
    self.context, self.steps_per_epoch, self.rank, self.world_size)
end

return Loader
