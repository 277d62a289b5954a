-- lua/moonshard/base/random.lua: streams of random numbers and their state
local ms = require 'moonshard'
local nn, checkpoint = ms.nn, ms.checkpoint
local checks = require 'support.checks'
local runs = require 'support.runs'
local shell = require 'support.shell'

local function gpt()
  return ms.models.GPT { vocab = 50, layers = 1, heads = 2, width = 8, context = 8 }
end

-- Number of equal positions of two rows.
local function alike(a, b)
  local n = 0
  for i = 1, #a do
    n = n + (a[i] == b[i] and 1 or 0)
  end
  return n
end

-- One draw of everything that is random, as text.
local function drawn(model)
  local x = ms.ones(4, 16)
  return table.concat({
    ms.randn(8):hash(), ms.rand(8):hash(), ms.ops.dropout(x, 0.5):hash(),
    ms.ops.dropout(x, 0.5, 'here'):hash(), model.drop(x):hash(), gpt():hash(),
    table.concat(model:generate({ 1 }, 8), ','),
  }, '\n')
end

local function with_drop()
  local model = gpt()
  model.drop = nn.Dropout(0.5)
  return model:materialize()
end

describe('dropout as a function', function()
  it('draws a new mask at every call and repeats them after manual_seed', function()
    local x = ms.ones(4, 64)
    local function masks(...)
      ms.manual_seed(3)
      local list = {}
      for i = 1, 4 do
        list[i] = ms.ops.dropout(x, 0.5, ...):hash()
      end
      return list
    end
    for _, site in ipairs { true, 'h.0.drop', ms.ops.site 'h.1.drop' } do
      local list = masks(site)
      for i = 1, 4 do
        for j = 1, i - 1 do
          assert.not_equal(list[i], list[j], ('%s: calls %d and %d'):format(tostring(site), j, i))
        end
      end
      assert.same(list, masks(site))
    end
    assert.not_same(masks(true), masks 'h.0.drop')
  end)

  it('takes a training flag, as in PyTorch', function()
    local x = ms.ones(4, 64)
    ms.manual_seed(3)
    local first = ms.ops.dropout(x, 0.5, true):hash()
    assert.equal(x:hash(), ms.ops.dropout(x, 0.5, false):hash())
    local second = ms.ops.dropout(x, 0.5):hash()
    ms.manual_seed(3)
    assert.same({ first, second },
      { ms.ops.dropout(x, 0.5):hash(), ms.ops.dropout(x, 0.5):hash() })
    checks.raises('ValueError', 'dropout: probability is 1.5, expected 0 to 1', ms.ops.dropout,
      x, 1.5, false)
  end)
end)

describe('a seed', function()
  it('gives parameters the values of the seed when they were declared', function()
    local function values(between)
      ms.manual_seed(1)
      local layer = ms.nn.Linear(4, 4)
      ms.manual_seed(between)
      return layer:materialize():hash()
    end
    assert.equal(values(1), values(2))
  end)
end)

describe('generate', function()
  it('continues from call to call after manual_seed', function()
    ms.manual_seed(5)
    local model = gpt()
    local first, second = model:generate({ 1 }, 40), model:generate({ 1 }, 40)
    assert.is_true(alike(first, second) < 20) -- about 1 by chance
    ms.manual_seed(5)
    assert.same(first, model:generate({ 1 }, 40))
    ms.manual_seed(6)
    assert.is_true(alike(first, model:generate({ 1 }, 40)) < 20)
    local hot = { temperature = 1 }
    ms.manual_seed(5)
    local row, one_by_one = { 1 }, {}
    for i = 1, 40 do
      one_by_one[i] = model:generate(row, 1, hot)[1]
      row[#row + 1] = one_by_one[i]
    end
    assert.same(first, one_by_one)
    ms.manual_seed(-1) -- 2^64 - 1 is a seed, too
    assert.equal(4, #model:generate({ 1 }, 4))
  end)

  it('leaves the stream alone with a seed of its own or temperature 0', function()
    ms.manual_seed(5)
    local model = gpt()
    local first, second = model:generate({ 1 }, 10), model:generate({ 1 }, 10)
    ms.manual_seed(5)
    local pinned = model:generate({ 1 }, 10, { seed = 9 })
    assert.same(first, model:generate({ 1 }, 10))
    assert.same(pinned, model:generate({ 1 }, 10, { seed = 9 }))
    model:generate({ 1 }, 10, { temperature = 0 })
    assert.same(second, model:generate({ 1 }, 10))
  end)
end)

describe('the state of the random numbers', function()
  it('can be restored, also in another process', function()
    ms.manual_seed(-7)
    local model = with_drop()
    drawn(model)
    local other, state = nn.Linear(1, 1), ms.get_rng_state()
    assert.equal('18446744073709551609', state.seed)
    local path = runs.folder()
    checkpoint.save(path, 'a', { step = 0, model = other, config = { rng = state } })
    local expected = { drawn(model), drawn(model) }
    assert.not_equal(expected[1], expected[2])
    ms.set_rng_state(state)
    assert.same(state, ms.get_rng_state())
    assert.same(expected, { drawn(model), drawn(model) })
    ms.close() -- this process stops being a rank, so that one can start
    local reports, cause = runs.reports(1, function()
      ms.manual_seed(-7)
      local again = with_drop()
      ms.manual_seed(1)
      ms.set_rng_state(checkpoint.read_meta(path .. '/a').config.rng)
      return drawn(again) .. '\n\n' .. drawn(again)
    end)
    assert.is_nil(cause)
    assert.equal(table.concat(expected, '\n\n'), reports[0])
    os.execute("rm -r '" .. path .. "'")
  end)

  it('can be restored between a batch and its forward', function()
    local Net = nn.Module.extend('my.Net')
    function Net:init() self.table, self.drop = nn.Embedding(8, 16), nn.Dropout(0.5) end
    function Net:forward(x) return ms.ops.dropout(self.drop(self.table(x)), 0.5) end
    local tokens = ms.tensor({ 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5 }, { dtype = 'i64' })
    local function loader() return ms.data.Loader { tokens = tokens, context = 2, batch = 2 } end
    local other = Net()
    local function masks(between)
      ms.manual_seed(3)
      local model, out = Net(), {}
      local train = loader()
      for _ = 1, 2 do
        local x = train:next()
        for _ = 1, 2 do
          out[#out + 1] = model(x):hash()
          between()
          out[#out + 1] = model(ms.tensor(x:totable(), { dtype = 'i64' })):hash()
          between()
        end
        out[#out + 1] = ms.randn(2):hash()
      end
      return out
    end
    assert.same(masks(function() end), masks(function()
      local state = ms.get_rng_state()
      ms.manual_seed(99)
      other((loader():next()))
      drawn(with_drop())
      ms.set_rng_state(state)
    end))
    assert.same(masks(function() end), masks(function()
      ms.set_rng_state(ms.get_rng_state())
    end))
  end)

  it('is checked before it is set', function()
    ms.manual_seed(3)
    ms.randn(2)
    local before = ms.get_rng_state()
    local function changed(field, value)
      local state = ms.get_rng_state()
      state[field] = value
      return state
    end
    for _, case in ipairs {
      { 'TypeError', "'state' is nil, expected a table", nil },
      { 'ValueError', "'seed' is '18446744073709551616', expected",
        changed('seed', '18446744073709551616') },
      { 'ValueError', "'tensors' is -1, expected 0 or more", changed('tensors', -1) },
      { 'TypeError', "'modules' is nil, expected a whole number", changed('modules', nil) },
      { 'TypeError', "'runs.x' is a string, expected a whole number",
        changed('runs', { x = 'y' }) },
    } do
      checks.raises(case[1], case[2], ms.set_rng_state, case[3])
      assert.same(before, ms.get_rng_state())
    end
  end)
end)

describe('a checkpoint', function()
  local root
  before_each(function() root = runs.folder() end)
  after_each(function()
    shell.remove_folder(root)
    ms.close() -- this process stops being a rank, so that ranks can start
  end)

  it('restores the random numbers', function()
    local function begin()
      ms.manual_seed(4)
      return with_drop()
    end
    local model = begin()
    local function with_optimizer(m)
      return { step = 1, model = m, optimizer = ms.optim.SGD(m:parameters(), { lr = 0.1 }) }
    end
    drawn(model)
    checkpoint.save(root, 'a', with_optimizer(model))
    local function next_ones(m)
      local x = ms.ones(4, 16)
      return { ms.randn(8):hash(), ms.ops.dropout(x, 0.5):hash(),
        ms.ops.dropout(x, 0.5, 'here'):hash(), m.drop(x):hash(), m:generate({ 1 }, 8) }
    end
    local expected = next_ones(model)
    local second = begin()
    ms.ops.dropout(ms.ones(1), 0.5, 'elsewhere')
    local parts = with_optimizer(second)
    parts.step = nil
    checkpoint.load(root .. '/a', parts)
    assert.same(expected, next_ones(second))
    ms.manual_seed(4) -- the site that the checkpoint does not have had begun anew
    local first = ms.ops.dropout(ms.ones(64), 0.5, 'elsewhere'):hash()
    ms.ops.dropout(ms.ones(64), 0.5, 'elsewhere')
    checkpoint.load(root .. '/a', parts)
    assert.equal(first, ms.ops.dropout(ms.ones(64), 0.5, 'elsewhere'):hash())
  end)

  it('leaves random numbers alone when only a model is loaded', function()
    local model = nn.Linear(1, 1)
    ms.randn(2)
    checkpoint.save(root, 'a', { step = 1, model = model })
    ms.randn(2)
    ms.ops.dropout(ms.ones(2), 0.5)
    local state = ms.get_rng_state()
    checkpoint.load(root .. '/a', { model = model })
    assert.same(state, ms.get_rng_state())
  end)

  it('continues a sharded run with random inputs to the same bits', function()
    local function train(from, to)
      local reports, cause = runs.reports(2, function()
        ms.manual_seed(4)
        local model = ms.fsdp.FSDP(nn.Linear(4, 4))
        local opt = ms.optim.SGD(model:parameters(), { lr = 0.1 })
        local manager = checkpoint.Manager { root = root }
        if from > 1 then
          manager:resume { model = model, optimizer = opt }
        end
        for step = from, to do
          local x = ms.randn(2, 4)
          ms.ops.dropout(model(x) - x, 0.5):mean():backward()
          opt:step()
          opt:zero_grad()
          if step == 2 then
            manager:save { step = step, model = model, optimizer = opt }
          end
        end
        return model:hash()
      end)
      assert.is_nil(cause)
      return reports[0]
    end
    assert.equal(train(1, 4), train(3, 4))
  end)
end)
