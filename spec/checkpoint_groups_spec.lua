-- lua/moonshard/checkpoint: models over sub-groups of the ranks, each with its own checkpoints.
local ms = require 'moonshard'
local checks = require 'support.checks'
local runs = require 'support.runs'
local shell = require 'support.shell'
local wrap = require 'support.wrap'

local nn, optim, checkpoint = ms.nn, ms.optim, ms.checkpoint

-- A model over a group and its optimizer after one step.
local function trained(group, seed, strategy)
  ms.manual_seed(seed)
  local model = wrap(nn.Sequential { nn.Linear(5, 7), nn.Linear(7, 3) },
    { process_group = group, sharding_strategy = strategy })
  local opt = optim.AdamW(model:parameters(), { lr = 0.1 })
  model(ms.full({ 2, 5 }, 0.5)):sum():backward()
  opt:step()
  opt:zero_grad()
  return model, opt
end

-- Hash of the model after one more step.
local function stepped(model, opt)
  model(ms.full({ 2, 5 }, 0.25)):sum():backward()
  opt:step()
  opt:zero_grad()
  return runs.hash_of(model)
end

-- The result of `fn`, or its error as text.
local function told(fn, ...)
  local ok, result = pcall(fn, ...)
  return ok and result or 'error: ' .. result.message
end

-- By rank: the colors of groups of four ranks.
local SPLITS = { ['2+2'] = { 0, 1, 0, 1 }, ['3+1'] = { 0, 0, 0, 1 } }

describe('a checkpoint of a sub-group', function()
  local root

  before_each(function() root = runs.folder() end)
  after_each(function()
    shell.remove_folder(root)
    checks.close_library()
  end)

  for split, colors in pairs(SPLITS) do
    for _, strategy in ipairs { 'FULL_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD' } do
      it(('holds the model of its group: %s, %s'):format(split, strategy), function()
        local reports, cause = runs.reports(4, function(rank)
          local color = colors[rank + 1]
          local model, opt = trained(ms.dist.split(color), 10 + color, strategy)
          local path = checkpoint.save(root .. color, 'last', { step = color, model = model,
            optimizer = opt })
          checkpoint.export(root .. color .. '.safetensors', model)
          local before = runs.hash_of(model)
          local expected = stepped(model, opt)
          local meta = checkpoint.load(path, { model = model, optimizer = opt })
          assert(meta.step == color and runs.hash_of(model) == before, 'loaded')
          assert(stepped(model, opt) == expected, 'stepped')
          checkpoint.import(root .. color .. '.safetensors', model)
          assert(runs.hash_of(model) == before, 'imported')
          return before
        end)
        assert.is_nil(cause)
        for rank = 1, 3 do
          local same = colors[rank + 1] == colors[1]
          assert.equal(same, reports[rank] == reports[0])
        end
        for color = 0, 1 do
          shell.remove_folder(root .. color)
          os.remove(root .. color .. '.safetensors')
        end
      end)
    end
  end

  it('loads in groups of other sizes to the same bits', function()
    local reports, cause = runs.reports(4, function(rank)
      local model, opt = trained(nil, 3)
      local before = runs.hash_of(model)
      checkpoint.save(root, 'all', { step = 1, model = model, optimizer = opt })
      local expected, seen = stepped(model, opt), {}
      for _, split in ipairs { '2+2', '3+1' } do
        local part, part_opt = trained(ms.dist.split(SPLITS[split][rank + 1]), 3)
        stepped(part, part_opt)
        checkpoint.load(root .. '/all', { model = part, optimizer = part_opt })
        assert(runs.hash_of(part) == before, split)
        seen[split] = stepped(part, part_opt) == expected
      end
      return tostring(seen['2+2']) -- three ranks round another mean
    end)
    assert.is_nil(cause)
    assert.same({ [0] = 'true', 'true', 'true', 'true' }, reports)
  end)

  it('is refused for a model and an optimizer of two groups', function()
    local reports, cause = runs.reports(4, function(rank)
      local pair = ms.dist.split(rank % 2)
      local model = trained(pair, 1)
      local _, other = trained(nil, 1)
      local both = nn.Sequential { model, (trained(nil, 1)) }
      return table.concat({
        told(checkpoint.save, root, 'x', { step = 1, model = model, optimizer = other }),
        told(checkpoint.load, root .. '/x', { model = model, optimizer = other }),
        told(checkpoint.export, root .. '/x', both),
      }, '\n')
    end)
    assert.is_nil(cause)
    for rank = 0, 3 do
      local pair = ('%d, %d'):format(rank % 2, rank % 2 + 2)
      local tail = ', as another group: each group has checkpoints of its own, and a model over '
        .. 'several groups has none (state_dict_type SHARDED_STATE_DICT gives its parts)'
      assert.equal([[
error: checkpoint.save: the optimizer is sharded over ranks 0, 1, 2, 3, the model over ranks ]]
        .. pair .. tail .. [[

error: checkpoint.load: the optimizer is sharded over ranks 0, 1, 2, 3, the model over ranks ]]
        .. pair .. tail .. [[

error: checkpoint.export: the model is sharded over ranks 0, 1, 2, 3, in part over ranks ]]
        .. pair .. tail, reports[rank])
    end
  end)

  it('holds a plain model of its ranks', function()
    local _, cause = runs.reports(4, function(rank)
      local color = rank % 2
      local pair = ms.dist.split(color)
      ms.manual_seed(color)
      local plain = nn.Linear(2, 2):materialize()
      local own = { model = plain, process_group = pair }
      local before = plain:hash()
      local path = checkpoint.save(root .. color, 'x', { step = 1, model = plain,
        process_group = pair })
      local file = root .. color .. '.safetensors'
      checkpoint.export(file, plain, { process_group = pair })
      local manager = checkpoint.Manager { root = root .. color, process_group = pair }
      manager:save { step = 2, model = plain }
      for _, load in ipairs {
        function() checkpoint.load(path, own) end,
        function() checkpoint.import(file, plain, { process_group = pair }) end,
        function() assert(manager:resume({ model = plain }).step == 2) end,
      } do
        ms.no_grad(function() plain.weight:fill_(0) end)
        load()
        assert(plain:hash() == before)
      end
      return ''
    end)
    assert.is_nil(cause)
    for color = 0, 1 do
      shell.remove_folder(root .. color)
      os.remove(root .. color .. '.safetensors')
    end
  end)
end)
