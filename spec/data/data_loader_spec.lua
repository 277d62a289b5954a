-- lua/moonshard/data: datasets, batches of them, sharding over ranks, resuming
local ms = require 'moonshard'
local data = ms.data
local checks = require 'support.checks'
local runs = require 'support.runs'

local Squares = data.Dataset.extend 'Squares'

function Squares:init(n)
  self.n = n
end

function Squares:len()
  return self.n
end

function Squares:get(i)
  return ms.tensor { i }, ms.tensor(i * i, { dtype = 'i64' })
end

-- The first value of each sample of all batches of an epoch, in the order of their numbers.
local function order_of(W, m, opts, n, epoch)
  local by_number, last = {}, 0
  for rank = 0, W - 1 do
    local loader = data.DataLoader(Squares(n), {
      batch_size = 8 / W / m, micro_batches = m, rank = rank, world_size = W, seed = opts.seed,
      shuffle = opts.shuffle, drop_last = opts.drop_last, sampler = opts.sampler,
    })
    loader:set_epoch(epoch or 0)
    for i, x in loader:batches() do
      local step, k, rows = math.ceil(i / m), (i - 1) % m, x:size(1)
      for b = 1, rows do
        local number = (step - 1) * 8 + (rank * m + k) * rows + b
        by_number[number], last = x[b][1]:item(), math.max(last, number)
      end
    end
  end
  assert.equal(last, #by_number)
  return by_number
end

-- First in this file: a process that has opened its device cannot fork ranks.
describe('a position of a DataLoader', function()
  it('is saved by two ranks and continued by one', function()
    local root = runs.folder()
    local function loader(batch_size)
      return data.DataLoader(Squares(22), { batch_size = batch_size, shuffle = true, seed = 3 })
    end
    ms.dist.spawn(2, function()
      local dl = loader(2)
      for _ = 1, 8 do -- an epoch has six steps
        dl:next()
      end
      ms.checkpoint.save(root, 'x', { step = 8, loader = dl })
    end)
    local rest, expected = runs.alone(function()
      local dl, out = loader(4), {}
      ms.checkpoint.load(root .. '/x', { loader = dl })
      dl:set_epoch(1) -- as a script's loop over epochs does: the position stays
      for i, x in dl:batches() do
        out[#out + 1] = { i, x:reshape(-1):totable() }
      end
      return out
    end), runs.alone(function()
      local dl, out = loader(4), {}
      dl:set_epoch(1)
      for i, x in dl:batches() do
        out[#out + 1] = i > 2 and { i, x:reshape(-1):totable() } or nil
      end
      return out
    end)
    assert.equal(4, #rest)
    assert.same(expected, rest)
  end)
end)

describe('a DataLoader', function()
  it('deals the same order to any number of ranks and micro-batches', function()
    for epoch = 0, 1 do
      local expected = order_of(1, 1, { shuffle = true, seed = 5 }, 30, epoch)
      assert.equal(30, #expected)
      for _, dealt in ipairs { { 2, 1 }, { 1, 2 } } do
        assert.same(expected, order_of(dealt[1], dealt[2], { shuffle = true, seed = 5 }, 30, epoch))
      end
    end
    local first, second = order_of(1, 1, { shuffle = true }, 30, 0),
      order_of(1, 1, { shuffle = true }, 30, 1)
    assert.not_same(first, second)
    table.sort(second)
    assert.same(order_of(1, 1, {}, 30), second)
  end)

  it('pads the last step to equal batches, or drops it', function()
    local function counted(n, ...)
      local list = { ... }
      for i = n, 1, -1 do
        table.insert(list, 1, i)
      end
      return list
    end
    assert.same(counted(11), order_of(1, 1, {}, 11))
    assert.same(counted(11, 1), order_of(2, 1, {}, 11))
    assert.same(counted(11, 1), order_of(2, 2, {}, 11))
    assert.same(counted(9, 1, 2, 3), order_of(2, 2, {}, 9))
    assert.same(counted(8), order_of(2, 1, { drop_last = true }, 11))
    assert.equal(2, data.DataLoader(Squares(11), { batch_size = 8 }):len())
    checks.raises('ValueError', 'the dataset has 7 samples, one step takes 8', data.DataLoader,
      Squares(7), { batch_size = 8, drop_last = true })
    checks.raises('ValueError', 'the dataset has 0 samples', data.DataLoader, {})
  end)

  it('takes the order of a sampler', function()
    assert.same({ 9, 3, 3, 1 }, order_of(2, 1, { sampler = { 9, 3, 3, 1 } }, 11))
    local function of_epoch(epoch)
      return { epoch + 1, epoch + 2 }
    end
    assert.same({ 4, 5 }, order_of(1, 1, { sampler = of_epoch }, 11, 3))
    checks.raises('IndexError', 'sampler: index 2 is 12, expected 1 to 11', data.DataLoader,
      Squares(11), { sampler = { 1, 12 } })
    checks.raises('ValueError', "got 'sampler' and shuffle = true", data.DataLoader, Squares(11),
      { sampler = { 1 }, shuffle = true })
    local dl = data.DataLoader(Squares(11), { sampler = function(epoch)
      return epoch == 0 and { 1, 2 } or { 1 }
    end })
    dl:set_epoch(1)
    checks.raises('ValueError', 'gives 1 indices in epoch 1, expected 2', dl.next, dl)
  end)

  it('iterates to the end of an epoch, and peeks', function()
    local dl, seen = data.DataLoader(Squares(5), { batch_size = 2 }), {}
    for i, x, y in dl:batches(2) do
      seen[#seen + 1] = i .. ':' .. x[1][1]:item() .. ',' .. y[1]:item()
    end
    assert.same({ '1:1,1', '2:3,9' }, seen)
    assert.equal(5, (dl:peek())[1][1]:item())
    assert.equal(2, dl:step())
    for i, x in dl:batches() do
      seen[#seen + 1] = i .. ':' .. x[1][1]:item()
    end
    assert.equal('3:5', seen[3])
    assert.equal(1, dl:epoch())
    assert.equal(1, (dl:next())[1][1]:item())
    dl:set_epoch(1)
    assert.equal(3, dl:step())
    local loader = data.Loader { tokens = ms.arange(20), batch = 1, context = 4, seed = 1 }
    local peeked = loader:peek()
    assert.equal(0, loader:step())
    assert.is_true(ms.equal(peeked, (loader:next())))
  end)

  it('collates what get() gives', function()
    local dl = data.DataLoader({
      { x = ms.tensor { 1, 2 }, label = 3, name = 'a', more = { true, 0.5 } },
      { x = ms.tensor { 3, 4 }, label = 4, name = 'b', more = { false, 1.5 } },
    }, { batch_size = 2 })
    local batch = dl:next()
    assert.same({ { 1, 2 }, { 3, 4 } }, batch.x:totable())
    assert.same({ 3, 4 }, batch.label:totable())
    assert.equal('f32', batch.label:dtype())
    assert.same({ 'a', 'b' }, batch.name)
    assert.equal('bool', batch.more[1]:dtype())
    assert.same({ 0.5, 1.5 }, batch.more[2]:totable())
    dl = data.DataLoader(Squares(3), { batch_size = 3, collate_fn = function(samples)
      return #samples, samples[2][2]:item()
    end })
    assert.same({ 3, 4 }, { dl:next() })
    for text, list in pairs { -- order does not matter
      ['sample 2 of the batch is f32 (3), expected f32 (2) as sample 1'] =
        { ms.ones(2), ms.ones(3) },
      ["sample 2 of the batch has no entry 'b', sample 1 has one"] =
        { { a = 1, b = 2 }, { a = 1 } },
      ["sample 2 of the batch has an entry 'b', which"] = { { a = 1 }, { a = 1, b = 2 } },
      ["default_collate: [a]: sample 2 of the batch is a string, sample 1 is a number"] =
        { { a = 1 }, { a = 'x' } },
    } do
      checks.raises('ValueError', text, data.default_collate, list)
    end
    checks.raises('TypeError', 'a sample is a function', data.default_collate, { print })
  end)

  it('gives dropout the global index of samples', function()
    local drop = ms.nn.Sequential(ms.nn.Dropout(0.5))
    local function mask(W, rank, batches)
      local x, dl = nil, data.DataLoader({ ms.ones(64), ms.ones(64), ms.ones(64), ms.ones(64) },
        { batch_size = 4 / W, rank = rank, world_size = W, shuffle = true })
      for _ = 1, batches do
        x = dl:next()
      end
      return drop(x)
    end
    for epoch = 1, 2 do
      local all = mask(1, 0, epoch)
      assert.is_true(ms.equal(all:narrow(1, 3, 2), mask(2, 1, epoch)))
    end
    assert.is_false(ms.equal(mask(1, 0, 1), mask(1, 0, 2)))
  end)

  it('refuses positions of other data', function()
    local dl = data.DataLoader(Squares(20), { batch_size = 2 })
    local state = dl:state()
    for text, opts in pairs { -- order does not matter
      ['20 samples, this one has 21 samples'] = { batch_size = 2 },
      ['give batch_size = 2'] = { batch_size = 4 },
      ['shuffle = false, this one has shuffle = true'] = { batch_size = 2, shuffle = true },
      ['drop_last = false, this one has drop_last = true'] = { batch_size = 2, drop_last = true },
    } do
      local other = data.DataLoader(Squares(text:find '21' and 21 or 20), opts)
      checks.raises('ValueError', text, other.load_state, other, state)
    end
    local half = data.DataLoader(Squares(20), { micro_batches = 2 })
    half:next()
    checks.raises('RuntimeError', 'micro-batch 2 of 2 is next', half.state, half)
  end)

  it('refuses what is no dataset', function()
    checks.raises('TypeError', "'dataset' is a number, expected an object with len() and get(i)",
      data.DataLoader, 3)
    local Bad = data.Dataset.extend 'Bad'
    checks.raises('NotImplementedError', 'Bad has no len', data.DataLoader, Bad())
    function Bad.len() return 2 end
    local dl = data.DataLoader(Bad())
    checks.raises('NotImplementedError', 'Bad has no get', dl.next, dl)
    function Bad.get() end
    checks.raises('TypeError', 'value 1 of get(1) is nil', dl.next, dl)
    checks.raises('ValueError', "unknown option 'bach_size', did you mean 'batch_size'?",
      data.DataLoader, Bad(), { bach_size = 1 })
  end)
end)

describe('datasets', function()
  local x, y = ms.arange(10):reshape(5, 2), ms.arange(5)

  it('are rows of tensors', function()
    local rows = data.TensorDataset(x, y)
    assert.equal(5, rows:len())
    local a, b = rows:get(2)
    assert.same({ 2, 3 }, a:totable())
    assert.equal(1, b:item())
    local dl = data.DataLoader(rows, { batch_size = 2, sampler = { 5, 1 } })
    a, b = dl:next()
    assert.same({ { 8, 9 }, { 0, 1 } }, a:totable())
    assert.same({ 4, 0 }, b:totable())
    assert.equal('i64', b:dtype())
    checks.raises('ValueError', 'tensor 2 has shape (4), expected dimension 1 to be 5',
      data.TensorDataset, x, ms.arange(4))
    checks.raises('TypeError', "'tensor 1' is nil", data.TensorDataset)
  end)

  it('are parts of others', function()
    local part = data.Subset(data.TensorDataset(x, y), { 4, 2 })
    assert.equal(2, part:len())
    assert.same({ 2, 3 }, (part:get(2)):totable())
    local a = data.DataLoader(part, { batch_size = 2 }):next()
    assert.same({ { 6, 7 }, { 2, 3 } }, a:totable())
    checks.raises('IndexError', 'index 1 is 6, expected 1 to 5', data.Subset, part.dataset, { 6 })
  end)

  it('are split at random', function()
    local seen = {}
    for k, part in ipairs(data.random_split(Squares(10), { 0.33, 0.33, 0.34 }, { seed = 1 })) do
      assert.equal(({ 4, 3, 3 })[k], part:len())
      for i = 1, part:len() do
        seen[#seen + 1] = (part:get(i))[1]:item()
      end
    end
    local again = data.random_split(Squares(10), { 4, 6 }, { seed = 1 })[1]
    assert.same({ unpack(seen, 1, 4) }, (function()
      local out = {}
      for i = 1, 4 do
        out[i] = (again:get(i))[1]:item()
      end
      return out
    end)())
    table.sort(seen)
    assert.same({ 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 }, seen)
    checks.raises('ValueError', 'the lengths sum to 9, expected 10 samples or fractions of 1',
      data.random_split, Squares(10), { 4, 5 })
  end)
end)
