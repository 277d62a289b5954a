-- lua/moonshard/data: token files, windows for each rank, resuming
local ms = require 'moonshard'
local data = ms.data
local checks = require 'support.checks'

local function file_of(bytes)
  local path = os.tmpname()
  local file = assert(io.open(path, 'wb'))
  file:write(bytes)
  file:close()
  return path
end

local function bytes_to_99()
  local bytes = {}
  for i = 0, 99 do
    bytes[i + 1] = string.char(i)
  end
  return file_of(table.concat(bytes))
end

-- Rows of all micro-batches of `steps` steps, as text, in the order they are numbered.
local function rows_of(world, micro, steps, opts)
  local by_index = {}
  for rank = 0, world - 1 do
    local loader = data.Loader {
      tokens = opts.tokens, batch = 2, context = 3, seed = opts.seed, shuffle = opts.shuffle,
      rank = rank, world_size = world, micro_batches = micro,
    }
    for step = 0, steps - 1 do
      for k = 0, micro - 1 do
        local x, y = loader:next()
        local first, second = x:totable(), y:totable()
        for b = 1, 2 do
          local index = step * world * micro * 2 + (rank * micro + k) * 2 + b
          by_index[index] = table.concat(first[b], ' ') .. ' -> ' .. second[b][3]
        end
      end
    end
  end
  return by_index
end

-- First in this file: a process that has opened its device cannot fork ranks.
describe('data of a job', function()
  it('is split between ranks without options', function()
    local path = bytes_to_99()
    ms.dist.spawn(2, function(rank)
      local opts = { tokens = data.tokens(path), batch = 2, context = 3, shuffle = false }
      local function with(more)
        for name, value in pairs(opts) do -- order does not matter: names differ
          more[name] = value
        end
        return data.Loader(more)
      end
      local x = with({}):next()
      assert(x[1][1]:item() == rank * 6, x)
      assert((with { rank = rank, world_size = 2 }:next()):equal(x))
      assert((with { world_size = 1 }:next())[1][1]:item() == 0)
      assert((with { rank = 0, world_size = 1 }:next())[1][1]:item() == 0)
      checks.raises('ValueError', 'world_size is 3, but the job has 2 ranks', with,
        { world_size = 3 })
      checks.raises('ValueError', ('rank is %d, but this is rank %d of the job'):format(1 - rank,
        rank), with, { rank = 1 - rank })
      checks.raises('ValueError', 'rank is 1, expected 0 to 0', with, { rank = 1, world_size = 1 })
      ms.dist.barrier()
    end)
    os.remove(path)
  end)
end)

describe('data', function()
  local path, tokens

  setup(function()
    path = bytes_to_99()
    tokens = data.tokens(path)
  end)

  teardown(function()
    tokens = nil
    os.remove(path)
    assert.equal(0, checks.live_handles())
  end)

  it('maps token files', function()
    assert.same({ 100 }, tokens:shape())
    assert.equal('u8', tokens:dtype())
    checks.raises('IOError', 'no/such/file', data.tokens, 'no/such/file')
    checks.raises('FormatError', '100 bytes, expected tokens of 8 bytes', data.tokens, path, 'i64')
  end)

  it('maps u16 and u32 files, with headers of llm.c', function()
    local ids = { 50256, 0, 258, 65535, 7, 8, 9 }
    local function bytes_of(width, list)
      local out = {}
      for _, id in ipairs(list) do
        for k = 1, width do
          out[#out + 1] = string.char(math.floor(id / 256 ^ (k - 1)) % 256)
        end
      end
      return table.concat(out)
    end
    local function mapped(bytes, dtype)
      local file = file_of(bytes)
      local ok, made = pcall(data.tokens, file, dtype)
      os.remove(file)
      return ok and made or error(made, 0)
    end
    local function header(magic, version, n)
      return bytes_of(4, { magic, version, n }) .. ('\0'):rep(1012)
    end
    local wide = { 128000, 2 ^ 32 - 1, 1, 2, 3, 4, 5 }
    local h16, h32 = header(20240520, 1, 7), header(20240801, 7, 7)
    for _, case in ipairs {
      { ids, 'u16', mapped(bytes_of(2, ids), 'u16') },
      { ids, 'u16', mapped(h16 .. bytes_of(2, ids)) },
      { wide, 'u32', mapped(bytes_of(4, wide), 'u32') },
      { wide, 'u32', mapped(h32 .. bytes_of(4, wide), 'u32') },
    } do
      local list, dtype, found = unpack(case)
      assert.equal(dtype, found:dtype())
      assert.same({ 7 }, found:shape())
      assert.same(list, found:narrow(1, 1, 7):totable())
      assert.same({ list[3], list[4] }, found:narrow(1, 3, 2):totable())
      local x, y = data.Loader { tokens = found, batch = 1, context = 3, shuffle = false }:next()
      assert.same({ { unpack(list, 1, 3) } }, x:totable())
      assert.same({ { unpack(list, 2, 4) } }, y:totable())
      checks.raises('IndexError', 'tokens 5 to 7 are asked for, 7 exist', found.narrow, found, 1, 6,
        3)
    end
    assert.equal('u8', mapped(h16 .. 'ab', 'u8'):dtype())
    for text, given in pairs { -- order does not matter
      ["' has 3 bytes, expected tokens of 2 bytes each"] = { 'abc', 'u16' },
      ["(magic 20240520) of version 2, expected version 1"] = { header(20240520, 2, 1) .. 'ab' },
      ["' has 2 bytes behind its header of llm.c, expected 14 for the 7 u16 tokens"] =
        { h16 .. 'ab' },
      ["' holds u16 tokens by its header, expected u32"] = { h16 .. bytes_of(2, ids), 'u32' },
    } do
      checks.raises('FormatError', text, mapped, unpack(given))
    end
    checks.raises('ValueError', "'dtype' is 'u17', expected one of u8, i64, u16, u32", mapped, 'ab',
      'u17')
  end)

  it('converts text to bytes and back', function()
    assert.same({ 72, 105 }, data.bytes('Hi'))
    assert.equal('Hi', data.text { 72, 105 })
    checks.raises('TypeError', 'takes a string, got a number', data.bytes, 72)
    checks.raises('ValueError', 'token 2 is 256, expected a byte', data.text, { 72, 256 })
  end)

  it('has windows in order without shuffling, and targets one token later', function()
    local loader = data.Loader { tokens = tokens, batch = 2, context = 4, shuffle = false }
    local x, y = loader:next()
    assert.same({ { 0, 1, 2, 3 }, { 4, 5, 6, 7 } }, x:totable())
    assert.same({ { 1, 2, 3, 4 }, { 5, 6, 7, 8 } }, y:totable())
    assert.same({ { 8, 9, 10, 11 }, { 12, 13, 14, 15 } }, (loader:next()):totable())
  end)

  it('is the same for any number of ranks and micro-batches', function()
    local expected = rows_of(1, 4, 3, { tokens = tokens, seed = 5 })
    assert.same(expected, rows_of(2, 2, 3, { tokens = tokens, seed = 5 }))
    assert.same(expected, rows_of(4, 1, 3, { tokens = tokens, seed = 5 }))
    assert.not_same(expected, rows_of(4, 1, 3, { tokens = tokens, seed = 6 }))
  end)

  it('mixes streams by weight, each in an order of its own', function()
    -- windows of 1: bytes 0 to 48 begin those of the first stream, 49 to 58 those of the second
    local streams = { { tokens:narrow(1, 1, 50), 3 }, { tokens:narrow(1, 50, 11), 1 } }
    local mixed = data.Mixture(streams)
    local function loader(world, rank, micro)
      return data.Loader {
        tokens = mixed, batch = 2, context = 1, seed = 4, rank = rank, world_size = world,
        micro_batches = micro,
      }
    end
    local one, order, counts = loader(1, 0, 2), {}, { 0, 0 }
    assert.equal(59, one.n_windows)
    for n = 1, 4 * 10, 2 do
      local x, y = one:next()
      for b = 1, 2 do
        local token = x[b][1]:item()
        assert.equal(token + 1, y[b][1]:item())
        order[n + b - 1] = token
        local k = token < 49 and 1 or 2
        counts[k] = counts[k] + 1
        assert.is_true(math.abs(counts[1] - 0.75 * (n + b - 1)) < 2)
      end
    end
    assert.same({ 30, 10 }, counts)
    local seen = {}
    for _, token in ipairs(order) do -- 10 windows of the second stream, 30 of 49 of the first
      assert.is_nil(seen[token])
      seen[token] = true
    end
    for rank = 0, 1 do
      local shared = loader(2, rank, 1)
      for step = 0, 9 do
        local x = shared:next()
        assert.equal(order[step * 4 + rank * 2 + 1], x[1][1]:item())
        assert.equal(order[step * 4 + rank * 2 + 2], x[2][1]:item())
      end
    end
    streams[2][2] = 2
    local other = data.Loader { tokens = data.Mixture(streams), batch = 4, context = 1, seed = 4 }
    checks.raises('ValueError', 'tokens of digest', other.load_state, other, one:state())
    assert.equal('Mixture(75%, 25%)', tostring(mixed))
    streams[2][2] = 0
    checks.raises('ValueError', 'the weight of stream 2 is 0, expected a positive number',
      data.Mixture, streams)
  end)

  it('has every window once an epoch, in a new order', function()
    -- 33 windows of 3, 2 a step: 16 steps
    local loader = data.Loader { tokens = tokens, batch = 2, context = 3 }
    assert.equal(16, loader.steps_per_epoch)
    assert.equal(2 * 3, loader:step_targets())
    local orders = {}
    for epoch = 1, 2 do
      local seen, order = {}, {}
      for _ = 1, 16 do
        for _, row in ipairs((loader:next()):totable()) do
          assert.is_nil(seen[row[1]])
          assert.equal(0, row[1] % 3)
          seen[row[1]] = true
          order[#order + 1] = row[1]
        end
      end
      assert.equal(32, #order)
      orders[epoch] = order
      assert.equal(epoch, loader:epoch())
    end
    assert.not_same(orders[1], orders[2])
  end)

  it('iterates over steps and micro-batches', function()
    local loader = data.Loader { tokens = tokens, batch = 1, context = 3, micro_batches = 2 }
    local seen = {}
    for step, x, y, k in loader:batches(3) do
      assert.same(x:shape(), y:shape())
      seen[#seen + 1] = step .. '.' .. k
    end
    assert.same({ '1.1', '1.2', '2.1' }, seen)
    assert.is_nil(loader:batches(0)())
    checks.raises('ValueError', "'most' is -1, expected 0 or more", loader.batches, loader, -1)
    checks.raises('TypeError', "'most' is nan, expected a whole number", loader.batches, loader,
      0 / 0)
  end)

  it('continues from a state on another number of ranks', function()
    local function loader(world, micro, rank)
      return data.Loader { tokens = tokens, batch = 2, context = 3, seed = 1, rank = rank,
        world_size = world, micro_batches = micro }
    end
    local one = loader(1, 2, 0)
    for _ = 1, 10 do -- five steps; an epoch has eight
      one:next()
    end
    local second = loader(2, 1, 1)
    second:load_state(one:state())
    for _ = 1, 6 do
      one:next()
      assert.equal((one:next()):hash(), (second:next()):hash())
    end
  end)

  it('refuses the state of other windows', function()
    local function loader(opts)
      return data.Loader { tokens = opts.tokens or tokens, batch = 2, context = opts.context or 3,
        shuffle = opts.shuffle }
    end
    local first = loader {}
    for _ = 1, 3 do
      first:next()
    end
    local state = first:state()
    local shorter, other = ms.arange(0, 98), ms.arange(1, 101)
    for text, opts in pairs { -- order does not matter: each is refused
      ['a context of 3, this one has a context of 2'] = { context = 2 },
      ['shuffle = true, this one has shuffle = false'] = { shuffle = false },
      ['hold 33 windows, this one has tokens that hold 32 windows'] = { tokens = shorter },
      ['tokens of digest %d+, this one has tokens of digest %d+'] = { tokens = other },
    } do
      local into = loader(opts)
      local ok, err = pcall(into.load_state, into, state)
      assert.is_false(ok)
      assert.truthy(tostring(err):find('ValueError: the position is that of a loader with .*'
        .. text), tostring(err))
      assert.equal(0, into:step())
    end
    local old, into = { samples = 6, seed = 0, samples_per_step = 2 }, loader {}
    into:load_state(old) -- as checkpoints once were
    assert.equal(3, into:step())
  end)

  it('names the batch size that continues a state', function()
    local function loader(world, batch)
      return data.Loader { tokens = tokens, batch = batch, context = 3, rank = 0,
        world_size = world }
    end
    local state = loader(2, 4):state()
    local one, three = loader(1, 4), loader(3, 4)
    checks.raises('ValueError', 'seed 0 and 8 samples a step, this one has seed 0 and 4; with '
      .. '1 rank x 1 micro-batch, give batch = 8', one.load_state, one, state)
    checks.raises('ValueError', '8 samples cannot be divided over 3 ranks x 1 micro-batch evenly',
      three.load_state, three, state)
    loader(1, 8):load_state(state)
  end)

  it('gives dropout the global index of samples', function()
    local drop = ms.nn.Sequential(ms.nn.Dropout(0.5))
    local function mask(world, micro, rank, calls)
      local loader = data.Loader { tokens = tokens, batch = 2, context = 3, rank = rank,
        world_size = world, micro_batches = micro }
      for _ = 1, calls do
        loader:next()
      end
      return drop(ms.ones(2, 64)):hash()
    end
    assert.equal(mask(1, 4, 0, 4), mask(4, 1, 3, 1))
    assert.equal(mask(1, 4, 0, 7), mask(2, 2, 1, 3)) -- step 2: micro-batch 2 of 4
    assert.not_equal(mask(4, 1, 3, 1), mask(4, 1, 2, 1))
    assert.not_equal(mask(1, 1, 0, 1), mask(1, 1, 0, 2))
  end)

  it('refuses sizes and states that do not fit', function()
    local function loader(opts)
      return data.Loader { tokens = tokens, batch = opts.batch or 1, context = opts.context or 3,
        micro_batches = opts.micro, seed = opts.seed, rank = opts.rank, world_size = opts.world }
    end
    checks.raises('ValueError', 'the tokens hold 1 windows of 50, one step takes 2', loader,
      { context = 50, batch = 2 })
    checks.raises('ValueError', 'rank is 2, expected 0 to 1', loader, { rank = 2, world = 2 })
    checks.raises('ValueError', 'batch is 0.5, expected a whole number', loader, { batch = 0.5 })
    checks.raises('ValueError', "'seed' is -1, expected 0 or more", loader, { seed = -1 })
    checks.raises('TypeError', "'seed' is 0.5, expected a whole number", loader, { seed = 0.5 })
    local half = loader { micro = 2 }
    half:next()
    checks.raises('RuntimeError', 'micro-batch 2 of 2 is next', half.state, half)
    local a, b = loader { seed = 1 }, loader { seed = 2 }
    checks.raises('ValueError', 'seed 1 and 1 samples a step, this one has seed 2 and 1',
      b.load_state, b, a:state())
  end)
end)
