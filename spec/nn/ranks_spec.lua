-- Dropout and state dicts on several ranks. This process itself computes nothing, because a process
-- that has opened its device cannot fork.
local ms = require 'moonshard'
local nn = ms.nn
local checks = require 'support.checks'
local runs = require 'support.runs'

describe('dropout', function()
  it('draws masks as if all ranks had one batch, without a loader', function()
    local function masks(world, rows)
      local reports, cause = runs.reports(world, function()
        ms.manual_seed(3)
        local model = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5))
        model(ms.ones(rows, 50))
        local mine = model(ms.ones(rows, 50)):reshape(1, rows, 50) -- every call
        return ms.cat(ms.dist.all_gather(mine), 1):reshape(world * rows, 50):hash()
      end)
      assert.is_nil(cause)
      return reports[0]
    end
    local expected = masks(1, 6)
    assert.equal(expected, masks(2, 3))
    assert.equal(expected, masks(3, 2))
  end)

  it('draws masks by the samples of a loader on any number of ranks', function()
    local Net = nn.Module.extend('my.Net')
    function Net:init() self.table = nn.Embedding(8, 16) end
    function Net:forward(x)
      return ms.ops.dropout(ms.ops.dropout(self.table(x), 0.5), 0.5)
    end
    local function rows(world)
      local reports, cause = runs.reports(world, function()
        ms.manual_seed(3)
        local model, tokens = Net(), {}
        for i = 1, 100 do
          tokens[i] = i % 8
        end
        local loader = ms.data.Loader { tokens = ms.tensor(tokens, { dtype = 'i64' }),
          context = 3, batch = 1, micro_batches = 2 / world }
        local hashes = {}
        for _ = 1, 2 * 2 / world do
          hashes[#hashes + 1] = model((loader:next())):hash()
        end
        return table.concat(hashes, ' ')
      end)
      assert.is_nil(cause)
      local list = {}
      for rank = 0, world - 1 do
        list[rank + 1] = { reports[rank]:match('(%S+) (%S+) ?(%S*) ?(%S*)') }
      end
      return list
    end
    local one, two = rows(1)[1], rows(2)
    assert.same(one, { two[1][1], two[2][1], two[1][2], two[2][2] })
  end)
end)

describe('a state dict', function()
  it('is loaded by all ranks or none', function()
    ms.dist.spawn(2, function(rank)
      local own = nn.Linear(2, 2)
      local m = ms.fsdp.FSDP(nn.Sequential(nn.Linear(2, 2), own), { ignored_modules = { own } })
      local sd, before = m:state_dict(), m:hash()
      for _, entry in ipairs(sd) do
        sd[entry] = ms.full(sd[entry]:shape(), 9)
      end
      if rank == 1 then
        sd['1.weight'] = own.weight:t()
      end
      checks.raises('RuntimeError', rank == 1 and 'the source of shape (2, 2) overlaps'
        or 'load_state_dict: rank 1 cannot take what it was given', m.load_state_dict, m, sd)
      assert.equal(before, m:hash())
    end)
  end)

  it('is loaded into shards from transposed values', function()
    ms.dist.spawn(2, function()
      local m = ms.fsdp.FSDP(nn.Linear(2, 3))
      m:load_state_dict { weight = ms.tensor { { 1, 2, 3 }, { 4, 5, 6 } }:t(), bias = ms.zeros(3) }
      checks.close({ { 1, 4 }, { 2, 5 }, { 3, 6 } }, m:state_dict().weight)
    end)
  end)
end)
