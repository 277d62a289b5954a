--- Loads windows of a token stream, sharded over ranks, shuffled by (seed, epoch), resumable after
--- any step.
---
--- A step consists of W ranks x m micro-batches of B rows. Micro-batch k of rank r has number i = r
--- m + k and holds the samples i B .. i B + B - 1 of the step. So one rank with 4 micro-batches
--- gets the samples of 4 ranks with one each. Each batch keeps the global index of its first
--- sample, and modules called with it draw dropout masks for these samples, independently of other
--- batches loaded since. An epoch ends when no whole step is left.
---
--- Rank and number of ranks W are those of `process_group`, as in FSDP, or of the job. With
--- `world_size = 1` in a job each rank gets all samples (for validation that every rank does on its
--- own). A process without a job may ask for any rank of any number of ranks. A sharded model
--- refuses a batch that was sharded over other ranks than its own, and so does a checkpoint a
--- loader.
---
--- A loader is not a list: `#loader` is 0. An epoch has `loader.steps_per_epoch` steps.
---
--- Shapes: x, y i64 (B, T); y is x one token later

local Mixture = require 'moonshard.data.mixture'
local arguments = require 'moonshard_ffi.arguments'
local class = require 'moonshard.base.class'
local create = require 'moonshard.base.create'
local errors = require 'moonshard.base.errors'
local samples = require 'moonshard.base.samples'
local sharded = require 'moonshard.data.sharded'

---@class ms.data.Loader: ms.data.Steps
---@field batch integer
---@field context integer
---@field micro_batches integer
---@field steps_per_epoch integer
---@overload fun(opts: ms.data.Loader.Options): ms.data.Loader
local Loader = class('data.Loader', nil, sharded.Steps)

Loader._batch_option = 'batch'
Loader._meaning = {
  { 'context', 'a context of %s' },
  { 'shuffle', 'shuffle = %s' },
  { 'n_windows', 'tokens that hold %s windows', shared = true },
  { 'contents', 'tokens of digest %s', '_contents', shared = true },
}

---@class ms.data.Loader.Options
---@field tokens ms.Tensor|ms.data.TokenFile|ms.data.Mixture  u8 or i64 (n), or a file of u16 or u32
---@field batch integer  B, rows of one micro-batch
---@field context integer  T, tokens of a row
---@field seed? integer  of the order, from 0 (default 0)
---@field shuffle? boolean  default true
---@field process_group? ffi.cdata*  whose ranks share the samples (default: all ranks)
---@field rank? integer  default: this rank of the group
---@field world_size? integer  default: size of the group
---@field micro_batches? integer  m, per rank and step (default 1)

---@param opts ms.data.Loader.Options
function Loader:init(opts)
  opts = errors.options(self._name, opts, {
    tokens = 'any', batch = 'number', context = 'number', seed = 'whole', shuffle = 'flag',
    rank = 'whole', world_size = 'number', micro_batches = 'number', process_group = 'group',
  })
  self.tokens = opts.tokens
  self._source = Mixture._source(self._name, opts.tokens)
  self.batch, self.context = opts.batch, opts.context
  self.seed = arguments.whole(self._name, 'seed', opts.seed, 0, 0)
  self.shuffle = opts.shuffle ~= false
  self.micro_batches = opts.micro_batches or 1
  sharded.set_ranks(self, opts, { 'batch', 'context', 'world_size', 'micro_batches' })
  self.samples_per_step = self.world_size * self.micro_batches * self.batch
  self.n_windows = self._source:_n_windows(self.context)
  self.steps_per_epoch = math.floor(self.n_windows / self.samples_per_step)
  if self.steps_per_epoch < 1 then
    errors.raise('ValueError', 'the tokens hold %d windows of %d, one step takes %d',
      self.n_windows, self.context, self.samples_per_step)
  end
  self._step, self._micro = 0, 0
  -- Computed now, so that a position can be saved after the file is gone.
  self._contents = self._source:_digest()
end

--- Number of targets in the step that the next batch belongs to, over all micro-batches and ranks.
---@return integer
function Loader:step_targets()
  return self.samples_per_step * self.context
end

--- The next micro-batch of this rank.
---@return ms.Tensor x, ms.Tensor y  (B, T)
function Loader:next()
  local in_step = (self.rank * self.micro_batches + self._micro) * self.batch
  local x = create.empty({ self.batch, self.context }, { dtype = 'i64' })
  local y = create.empty({ self.batch, self.context }, { dtype = 'i64' })
  local first = self._step * self.samples_per_step + in_step
  self._source:_windows(x, y, first, self.steps_per_epoch * self.samples_per_step, self.seed,
    self.shuffle)
  samples.assign({ x, y }, first, self._shared_by)
  self:_advance()
  return x, y
end

--- Iterate over (step, x, y, k): the step from 1, and the number of the micro-batch in it, from 1.
---@param most? integer  maximum number of micro-batches (default: unlimited)
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

function Loader:__tostring()
  return ('Loader(batch=%d, context=%d, steps_per_epoch=%d, rank=%d of %d)'):format(self.batch,
    self.context, self.steps_per_epoch, self.rank, self.world_size)
end

return Loader
