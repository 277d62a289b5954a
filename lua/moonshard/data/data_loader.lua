--- Loads batches of a dataset, sharded over ranks, shuffled by (seed, epoch), resumable between
--- steps.
---
--- A step consists of W ranks x m micro-batches of B samples, as in data.Loader. Micro-batch k of
--- rank r is number r m + k of the step and holds consecutive samples of the epoch's order. So the
--- order does not depend on W: one rank with batches of 4 B gets the samples of 4 ranks with B.
---
--- The last step of an epoch may have fewer samples. `drop_last = true` drops it. Otherwise it is
--- padded with the first samples of the epoch up to a multiple of W m, as in PyTorch's
--- DistributedSampler, and divided equally: all ranks get the same number of batches of equal size.

local arguments = require 'moonshard_ffi.arguments'
local class = require 'moonshard.base.class'
local collate = require 'moonshard.data.collate'
local errors = require 'moonshard.base.errors'
local parameter = require 'moonshard_ffi.parameter'
local runtime = require 'moonshard_ffi.data'
local samples = require 'moonshard.base.samples'
local sharded = require 'moonshard.data.sharded'

---@class ms.data.DataLoader: ms.data.Steps
---@field dataset ms.data.Dataset
---@field batch_size integer
---@field micro_batches integer
---@field steps_per_epoch integer
---@overload fun(dataset: any, opts?: ms.data.DataLoader.Options): ms.data.DataLoader
local DataLoader = class('data.DataLoader', nil, sharded.Steps)

DataLoader._batch_option = 'batch_size'
DataLoader._meaning = {
  { 'n_samples', '%s samples', shared = true },
  { 'shuffle', 'shuffle = %s' },
  { 'drop_last', 'drop_last = %s' },
}

---@class ms.data.DataLoader.Options
---@field batch_size? integer  B, samples in a batch of one rank (default 1)
---@field shuffle? boolean  default false
---@field drop_last? boolean  drop the last step of an epoch if it is not full (default false)
---@field collate_fn? fun(samples: any[]): ...  makes a batch from samples (default:
---  data.default_collate() for each value of get()). A sample of several values is a list of them
---@field sampler? integer[]|fun(epoch: integer): integer[]  indices from 1 in the order of an
---  epoch (epochs count from 0), equal on all ranks; replaces shuffle
---@field seed? integer  of the order, from 0 (default 0)
---@field process_group? ms.dist.Group  whose ranks share the samples (default: all ranks)
---@field rank? integer  default: this rank of the group
---@field world_size? integer  default: size of the group; 1: each rank gets all samples
---@field micro_batches? integer  m, batches per rank and step (default 1)

local function check_sampler(self, sampler)
  if sampler == nil then
    return false
  elseif self.shuffle then
    errors.raise('ValueError', "%s: got 'sampler' and shuffle = true, expected one of them",
      self._name)
  elseif type(sampler) ~= 'function' and type(sampler) ~= 'table' then
    arguments.refuse(self._name, 'sampler', sampler, 'a list of indices or a function of the epoch')
  end
  return sampler
end

-- The sampler's indices in an epoch, or nil without a sampler.
local function order_of(self, epoch)
  if not self._sampler or self._order_epoch == epoch then
    return self._order
  end
  local order = self._sampler
  if type(order) == 'function' then
    order = order(epoch)
  end
  order = collate.indices(self._name .. ': sampler', arguments.array(self._name, 'sampler', order),
    self.dataset:len())
  local n = rawget(self, 'n_samples')
  if n and #order ~= n then
    errors.raise('ValueError', '%s: the sampler gives %d indices in epoch %d, expected %d as at '
      .. 'first', self._name, #order, epoch, n)
  end
  self._order, self._order_epoch = order, epoch
  return order
end

---@param dataset ms.data.Dataset|any[]
---@param opts? ms.data.DataLoader.Options
function DataLoader:init(dataset, opts)
  opts = errors.options(self._name, opts, {
    batch_size = 'number', shuffle = 'flag', drop_last = 'flag', collate_fn = 'fn', seed = 'whole',
    process_group = 'group', rank = 'whole', world_size = 'number', micro_batches = 'number',
    sampler = 'any',
  })
  self.dataset = collate.dataset(self._name, dataset)
  self.batch_size, self.micro_batches = opts.batch_size or 1, opts.micro_batches or 1
  self.seed = arguments.whole(self._name, 'seed', opts.seed, 0, 0)
  self.shuffle, self.drop_last = opts.shuffle or false, opts.drop_last or false
  self._collate, self._sampler = opts.collate_fn or false, check_sampler(self, opts.sampler)
  sharded.set_ranks(self, opts, { 'batch_size', 'world_size', 'micro_batches' })
  local order = order_of(self, 0)
  self.n_samples = order and #order
    or arguments.whole(self._name, 'len()', self.dataset:len(), nil, 0)
  self.samples_per_step = self.world_size * self.micro_batches * self.batch_size
  self._full_steps = math.floor(self.n_samples / self.samples_per_step)
  local rest = self.n_samples - self._full_steps * self.samples_per_step
  -- Samples in a batch of the last step if that is not full.
  self._last_rows = self.drop_last and 0
    or math.ceil(rest / (self.world_size * self.micro_batches))
  self.steps_per_epoch = self._full_steps + (self._last_rows > 0 and 1 or 0)
  if self.steps_per_epoch < 1 then
    errors.raise('ValueError', '%s: the dataset has %d samples, one step takes %d', self._name,
      self.n_samples, self.samples_per_step)
  end
  self._step, self._micro, self._loaded = 0, 0, false
end

--- Number of batches of this rank in an epoch.
---@return integer
function DataLoader:len()
  return self.steps_per_epoch * self.micro_batches
end

--- The epoch that the next batch belongs to, from 0.
---@return integer
function DataLoader:epoch()
  return math.floor(self._step / self.steps_per_epoch)
end

--- Begin an epoch. A position in this epoch set by load_state() is kept.
---@param epoch integer  from 0
function DataLoader:set_epoch(epoch)
  arguments.whole('set_epoch', 'epoch', epoch, nil, 0)
  if not (self._loaded and epoch == self:epoch()) then
    self._step, self._micro = epoch * self.steps_per_epoch, 0
  end
  self._loaded = false
end

-- Indices of the next batch, and the number of its first sample over all epochs.
local function next_indices(self)
  local epoch = self:epoch()
  local step = self._step - epoch * self.steps_per_epoch
  local rows = step < self._full_steps and self.batch_size or self._last_rows
  local first = step * self.samples_per_step + (self.rank * self.micro_batches + self._micro) * rows
  local order, n, indices = order_of(self, epoch), self.n_samples, {}
  for b = 1, rows do
    local place = (first + b - 1) % n
    indices[b] = order and order[place + 1]
      or 1 + (self.shuffle and runtime.permute(place, n, self.seed, epoch) or place)
  end
  return indices, epoch * self.steps_per_epoch * self.samples_per_step + first
end

local function pack(...)
  return { n = select('#', ...), ... }
end

local function sample_of(self, i)
  local values = pack(self.dataset:get(i))
  for k = 1, math.max(1, values.n) do
    if values[k] == nil then
      errors.raise('TypeError', '%s: value %d of get(%d) is nil, expected a sample', self._name, k,
        i)
    end
  end
  return values
end

-- The collated values of a batch.
local function gathered(self, indices)
  if not self._collate and self.dataset.get_batch then
    return pack(self.dataset:get_batch(indices))
  end
  local list, columns = {}, nil
  for b, i in ipairs(indices) do
    local values = sample_of(self, i)
    columns = columns or values.n
    if values.n ~= columns then
      errors.raise('ValueError', '%s: get(%d) has %d values, get(%d) has %d; expected equally many',
        self._name, i, values.n, indices[1], columns)
    end
    values.n = nil
    list[b] = columns == 1 and values[1] or values
  end
  if self._collate then
    return pack(self._collate(list))
  elseif columns == 1 then
    return pack(collate.default_collate(list))
  end
  local batch = collate.default_collate(list)
  batch.n = columns
  return batch
end

-- All tensors and tables in a batch, at any depth.
local function holders(value, out)
  if parameter.is_tensor(value) then
    out[#out + 1] = value
  elseif type(value) == 'table' and getmetatable(value) == nil then
    out[#out + 1] = value
    for _, entry in next, value do
      holders(entry, out)
    end
  end
  return out
end

--- The next batch of this rank, in this epoch or the next one: the collated values of get().
---@return any ...
function DataLoader:next()
  local indices, first = next_indices(self)
  local batch = gathered(self, indices)
  parameter.begin_samples(first)
  samples.assign(holders(batch, {}), first, self._shared_by)
  self._loaded = false
  self:_advance()
  return unpack(batch, 1, batch.n)
end

local function move_to(self, step, micro, loaded, ...)
  self._step, self._micro, self._loaded = step, micro, loaded
  return ...
end

--- The batch that next() will return, without advancing. Its samples are read again by next().
---@return any ...
function DataLoader:peek()
  return move_to(self, self._step, self._micro, self._loaded, self:next())
end

--- Iterate over (i, batch) from the current position to the end of the epoch, with i from 1. If
--- get() returns several values: `for i, x, y in loader:batches() do`. The next call continues with
--- the next epoch, or where a loop was left; set_epoch() begins an epoch.
---@param most? integer  maximum number of batches (default: to the end of the epoch)
---@return fun(): integer?, any ...
function DataLoader:batches(most)
  local left = arguments.whole('batches', 'most', most, math.huge, 0)
  local epoch = self:epoch()
  return function()
    if left < 1 or self:epoch() ~= epoch then
      return nil
    end
    left = left - 1
    local i = (self._step - epoch * self.steps_per_epoch) * self.micro_batches + self._micro + 1
    return i, self:next()
  end
end

--- Continue at the position of another loader over the same dataset. The number of ranks may
--- differ, the number of samples per step must not.
---@param state ms.data.State
function DataLoader:load_state(state)
  sharded.Steps.load_state(self, state)
  self._loaded = true
end

function DataLoader:__tostring()
  return ('DataLoader(batch_size=%d, steps_per_epoch=%d, rank=%d of %d)'):format(self.batch_size,
    self.steps_per_epoch, self.rank, self.world_size)
end

return DataLoader
