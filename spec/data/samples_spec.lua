-- lua/moonshard/samples: batches know the global index of their samples
local ms = require 'moonshard'
local data = ms.data
local runs = require 'support.runs'

local TOKENS = {}
for i = 1, 400 do
  TOKENS[i] = (i * i + i) % 8
end

-- Hash of a model that W ranks trained with dropout for two steps. `handle(model, train, valid, m)`
-- runs the m micro-batches of one step.
local function trained(W, handle)
  local reports, cause = runs.reports(W, function()
    local text = ms.tensor(TOKENS, { dtype = 'i64' })
    ms.manual_seed(3)
    local model = ms.fsdp.FSDP(ms.models.GPT {
      vocab = 8, layers = 1, heads = 2, width = 8, context = 3, dropout = 0.3,
    })
    model:set_gradient_factor(1 / 4)
    local opt = ms.optim.SGD(model:parameters(), { lr = 0.1 })
    local m = 4 / W
    local function loader(micro, batch, seed)
      return data.Loader { tokens = text, context = 3, batch = batch, micro_batches = micro,
        seed = seed }
    end
    local train, valid = loader(m, 2, 5), loader(1, 8 / W, 9)
    for _ = 1, 2 do
      handle(model, train, valid, m)
      opt:step()
      opt:zero_grad()
    end
    return model:hash()
  end)
  assert.is_nil(cause)
  return reports[0]
end

local function run(model, batch, k, m)
  local function go()
    model(batch[1], batch[2]):backward()
  end
  if k < m then
    model:no_sync(go)
  else
    go()
  end
end

local HANDLINGS = {
  ['one after another'] = function(model, train, _, m)
    for k = 1, m do
      run(model, { train:next() }, k, m)
    end
  end,
  ['all of a step before the first forward'] = function(model, train, _, m)
    local batches = {}
    for k = 1, m do
      batches[k] = { train:next() }
    end
    for k = 1, m do
      run(model, batches[k], k, m)
    end
  end,
  ['validation between a batch and its forward'] = function(model, train, valid, m)
    for k = 1, m do
      local batch = { train:next() }
      if k == 1 then
        model:eval()
        ms.no_grad(function()
          model(valid:next())
        end)
        model:train()
      end
      run(model, batch, k, m)
    end
  end,
  ['a seed between a batch and its forward'] = function(model, train, _, m)
    for k = 1, m do
      local batch = { train:next() }
      ms.manual_seed(3)
      run(model, batch, k, m)
    end
  end,
}

describe('samples', function()
  it('follow batches, whatever runs between next() and forward', function()
    local expected = trained(1, HANDLINGS['one after another'])
    for name, handle in pairs(HANDLINGS) do
      for _, W in ipairs { 1, 2, 4 } do
        assert.equal(expected, trained(W, handle), ('%s, %d ranks'):format(name, W))
      end
    end
  end)

  it('count the calls of a module for each batch', function()
    local loader = data.Loader { tokens = ms.tensor(TOKENS, { dtype = 'i64' }), context = 3,
      batch = 2 }
    local drop = ms.nn.Dropout(0.5)
    local model = ms.nn.Sequential(ms.nn.Embedding(8, 16), drop)
    ms.manual_seed(3)
    local a, b = loader:next(), loader:next()
    local first, second = model(a):hash(), model(a):hash()
    assert.not_equal(first, second)
    ms.manual_seed(3)
    assert.equal(first, model(a):hash())
    model(b)
    assert.equal(second, model(a):hash()) -- what another batch drew does not count
    ms.manual_seed(3)
    local other = model(b):hash()
    ms.manual_seed(3)
    assert.equal(other, model(b):hash())
  end)
end)
