--- Loads rows of examples, several in a row, sharded over ranks, shuffled by (seed, epoch),
--- resumable after any step.
---
--- Examples are packed into rows of `context` tokens by best fit, longest first. Each is a document
--- of its own: its positions begin at 0, its tokens see only its own (models take the positions),
--- and its first token is no target. Rows are divided over ranks and micro-batches as in
--- data.Loader, in an order that does not depend on the number of ranks. Every row is used once in
--- an epoch: the last step is filled up with rows without targets.
---
---   local loader = ms.data.PackedLoader { examples = examples, context = 2048, batch = 4 }
---   local ids, targets, positions = loader:next()
---   local loss = model(ids, targets, { positions = positions, reduction = 'sum' })
---
--- Shapes: ids, targets, positions i64 (B, T); targets[b][t] is the token after ids[b][t], or -100
--- if it is not learned

local B = require 'moonshard_ffi'
local Column = require 'moonshard.data.column'
local Examples = require 'moonshard.data.examples'
local arguments = require 'moonshard_ffi.arguments'
local class = require 'moonshard.base.class'
local errors = require 'moonshard.base.errors'
local packing = require 'moonshard.data.packing'
local parameter = require 'moonshard_ffi.parameter'
local runtime = require 'moonshard_ffi.data'
local samples = require 'moonshard.base.samples'
local sharded = require 'moonshard.data.sharded'
local util = require 'moonshard.base.util'

---@class ms.data.PackedLoader: ms.data.Steps
---@field examples ms.data.Examples
---@field batch integer
---@field context integer
---@field micro_batches integer
---@field n_rows integer
---@field samples_per_step integer  rows
---@field steps_per_epoch integer
---@overload fun(opts: ms.data.PackedLoader.Options): ms.data.PackedLoader
local PackedLoader = class('data.PackedLoader', nil, sharded.Steps)

PackedLoader._batch_option = 'batch'
PackedLoader._meaning = {
  { 'context', 'a context of %s' },
  { 'packed', 'packed = %s' },
  { 'shuffle', 'shuffle = %s' },
  { 'n_rows', '%s rows', shared = true },
  { 'contents', 'examples of digest %s', '_contents', shared = true },
}

---@class ms.data.PackedLoader.Options
---@field examples ms.data.Examples
---@field batch integer  B, rows of one micro-batch
---@field context? integer  T, tokens of a row (default: that of the examples)
---@field packed? boolean  false: one example a row. Rows of a micro-batch have the length of its
---  longest example, rounded up to a multiple of 64 (default true)
---@field seed? integer  of the order, from 0 (default 0)
---@field shuffle? boolean  default true
---@field process_group? ms.dist.Group  whose ranks share the rows (default: all ranks)
---@field rank? integer  default: this rank of the group
---@field world_size? integer  default: size of the group; 1: each rank gets all rows
---@field micro_batches? integer  m, per rank and step (default 1)

local IGNORED, MULTIPLE = -100, 64

-- Number of tokens that example i, from 1, takes in a row: its last token is only a target.
local function room_of(self, i)
  local _, n = self.examples.documents:span(i)
  return n - 1
end

-- Set the rows and the number of targets of each.
local function set_rows(self)
  local docs, rooms = self.examples.documents, Column 'double'
  for i = 1, docs.n do
    rooms:push(room_of(self, i))
    if room_of(self, i) > self.context then
      errors.raise('ValueError', '%s: example %d has %d tokens, expected at most %d for a context '
        .. "of %d; give the examples' context", self._name, i, room_of(self, i) + 1,
        self.context + 1, self.context)
    end
  end
  if self.packed then
    self._documents, self._firsts, self.n_rows = packing.best_fit(rooms.data, docs.n, self.context)
  else
    self._documents, self._firsts = B.new('int32_t[?]', docs.n), B.new('int32_t[?]', docs.n + 1)
    self.n_rows = docs.n
    for i = 0, docs.n - 1 do
      self._documents[i], self._firsts[i + 1] = i + 1, i + 1
    end
  end
end

---@param opts ms.data.PackedLoader.Options
function PackedLoader:init(opts)
  opts = errors.options(self._name, opts, {
    examples = 'any', batch = 'number', context = 'number', packed = 'flag', seed = 'whole',
    shuffle = 'flag', rank = 'whole', world_size = 'number', micro_batches = 'number',
    process_group = 'group',
  })
  self.examples = opts.examples
  if not util.is(opts.examples, Examples) then
    arguments.refuse(self._name, 'examples', opts.examples, 'data.Examples')
  end
  self.batch, self.context = opts.batch, opts.context or opts.examples.context
  self.seed = arguments.whole(self._name, 'seed', opts.seed, 0, 0)
  self.packed, self.shuffle = opts.packed ~= false, opts.shuffle ~= false
  self.micro_batches = opts.micro_batches or 1
  sharded.set_ranks(self, opts, { 'batch', 'context', 'world_size', 'micro_batches' })
  set_rows(self)
  self.samples_per_step = self.world_size * self.micro_batches * self.batch
  self.steps_per_epoch = math.ceil(self.n_rows / self.samples_per_step)
  self._step, self._micro = 0, 0
  self._contents = self.examples:digest()
  self._buffers = {}
  for k = 1, 3 do
    self._buffers[k] = B.new('double[?]', self.batch * self.context)
  end
end

-- First and end in _documents of the row that is sample `place` of the epoch; an empty range behind
-- the last row.
local function row_at(self, place, epoch)
  if place >= self.n_rows then
    return 0, 0
  end
  local row = self.shuffle and runtime.permute(place, self.n_rows, self.seed, epoch) or place
  return self._firsts[row], self._firsts[row + 1]
end

-- Call fn(first, past, b) with the ranges of `n` rows from sample `first` of the current step on.
local function each_row(self, first, n, fn)
  local epoch = math.floor(self._step / self.steps_per_epoch)
  local place = (self._step - epoch * self.steps_per_epoch) * self.samples_per_step + first
  for b = 0, n - 1 do
    local from, past = row_at(self, place + b, epoch)
    fn(from, past, b)
  end
end

--- Number of targets in the step that the next batch belongs to, over all micro-batches and ranks.
---@return integer
function PackedLoader:step_targets()
  local n, counts = 0, self.examples.documents.n_targets.data
  each_row(self, 0, self.samples_per_step, function(first, past)
    for k = first, past - 1 do
      n = n + counts[self._documents[k] - 1]
    end
  end)
  return n
end

-- Write the tokens of a document into the buffers from `at` on.
local function write_document(self, i, at)
  local docs, ids, targets, positions = self.examples.documents, unpack(self._buffers)
  local first, n = docs:span(i)
  local from, marks = docs.ids.data + first, docs.marks.data + first
  for k = 0, n - 2 do
    ids[at + k], positions[at + k] = from[k], k
    targets[at + k] = marks[k + 1] == 1 and from[k + 1] or IGNORED
  end
  return at + n - 1
end

local function write_row(self, first, past, at, width)
  local ids, targets, positions = unpack(self._buffers)
  local stop = at + width
  for k = first, past - 1 do
    at = write_document(self, self._documents[k], at)
  end
  for k = at, stop - 1 do
    ids[k], targets[k], positions[k] = 0, IGNORED, k - at
  end
end

-- Tokens of the rows of a micro-batch.
local function width_of(self, first)
  local longest = 1
  each_row(self, first, self.batch, function(from, past)
    for k = from, past - 1 do
      longest = math.max(longest, room_of(self, self._documents[k]))
    end
  end)
  return self.packed and self.context
    or math.min(self.context, math.ceil(longest / MULTIPLE) * MULTIPLE)
end

--- The next micro-batch of this rank.
---@return ms.Tensor ids, ms.Tensor targets, ms.Tensor? positions  positions: nil if not packed, as
---  each row begins at 0 then
function PackedLoader:next()
  local in_step = (self.rank * self.micro_batches + self._micro) * self.batch
  local width, tensors = width_of(self, in_step), {}
  each_row(self, in_step, self.batch, function(first, past, b)
    write_row(self, first, past, b * width, width)
  end)
  for k = 1, self.packed and 3 or 2 do
    tensors[k] = runtime.table_of(self._buffers[k], self.batch, width)
  end
  local first = self._step * self.samples_per_step + in_step
  parameter.begin_samples(first)
  samples.assign(tensors, first, self._shared_by)
  self:_advance()
  return tensors[1], tensors[2], tensors[3]
end

function PackedLoader:__tostring()
  return ('PackedLoader(batch=%d, context=%d, n_rows=%d, steps_per_epoch=%d, rank=%d of %d)')
    :format(self.batch, self.context, self.n_rows, self.steps_per_epoch, self.rank,
      self.world_size)
end

return PackedLoader
