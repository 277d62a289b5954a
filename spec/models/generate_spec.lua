-- lua/moonshard/models/generate.lua: tokens of transformers, options, the cache, sharded models.
local ms = require 'moonshard'
local checks = require 'support.checks'
local decoders = require 'support.decoders'
local numbers = require 'support.numbers'
local shell = require 'support.shell'

local SOURCE = 'tests/fixtures/models/'
local CASES = numbers.read 'models'
local GREEDY = { temperature = 0, eos = false }

local folder

local function read(case, changes)
  assert(os.execute(("cp -R '%s%s/.' '%s'"):format(SOURCE, case.folder, folder)) == 0)
  local path = folder .. '/config.json'
  local config = ms.json.decode(shell.read(path))
  for _, fields in ipairs { case.changes, changes or {} } do
    for name, value in next, fields do
      config[name] = value ~= ms.json.null and value or nil
    end
  end
  shell.write(path, ms.json.encode(config))
  return ms.models.from_pretrained(folder)
end

-- The same without a cache.
local function recomputed(model, ...)
  return ms.models.GPT.generate(model, ...)
end

-- First, since ranks are forked only before this process has opened a device.
describe('generate on two ranks', function()
  for _, wrapper in ipairs { 'FSDP', 'fully_shard' } do
    it('gives the tokens of one process with ' .. wrapper, function()
      ms.dist.spawn(2, function()
        local case = CASES['llama, packed']
        local alone = ms.models.from_pretrained(SOURCE .. case.folder)
        local model = ms.models.from_pretrained(SOURCE .. case.folder,
          { wrap = decoders.WRAPPERS[wrapper] })
        assert.same(case.greedy, model:generate(case.prompts, 8, GREEDY))
        local sampled = { seed = 3, top_p = 0.9, eos = false }
        assert.same(alone:generate(case.prompts, 8, sampled),
          model:generate(case.prompts, 8, sampled))
      end)
    end)
  end
end)

describe('generate', function()
  before_each(function() folder = shell.make_folder() end)
  after_each(function() shell.remove_folder(folder) end)
  teardown(function()
    collectgarbage()
    collectgarbage()
    assert.equal(0, checks.live_handles())
  end)

  for _, name in ipairs { 'llama', 'qwen2', 'qwen2, window', 'qwen3', 'qwen3, window', 'mistral',
    'gpt2' } do
    it('gives the tokens of transformers for rows of unequal length: ' .. name, function()
      local case = CASES[name .. ', packed']
      local model = read(case)
      assert.same(case.greedy, model:generate(case.prompts, 8, GREEDY))
      assert.same(case.greedy, recomputed(model, case.prompts, 8, GREEDY))
      assert.same(case.greedy[1], model:generate(case.prompts[1], 8, GREEDY))
    end)
  end

  it('gives the same tokens with a cache that grows, past the context, and sampled', function()
    for _, row in ipairs {
      { 'llama, packed', 150, GREEDY, { max_position_embeddings = 300 } },
      { 'gpt2, packed', 20, GREEDY },
      { 'qwen3, packed', 40, { seed = 2, temperature = 2, eos = false, repetition_penalty = 1.5 } },
    } do
      local name, n, opts, changes = unpack(row)
      local case = CASES[name]
      local model = read(case, changes)
      local new = model:generate(case.prompts, n, opts)
      assert.equal(n, #new[2])
      assert.same(recomputed(model, case.prompts, n, opts), new)
    end
  end)

  it('ends rows at the end tokens of the call or of the files', function()
    local case = CASES['llama, packed'] -- 29, 25, 28, ...; 11, 12, 6, ...; 28, 5, ...
    local model = read(case)
    local heard = {}
    local function generate(eos)
      return model:generate(case.prompts, 8, { temperature = 0, eos = eos,
        on_token = function(token, row)
          heard[row] = heard[row] or {}
          table.insert(heard[row], token)
        end })
    end
    local expected = { { 29, 25, 28 }, { 11, 12 }, { 28 } }
    assert.same(expected, generate { 28, 12 })
    assert.same(expected, heard)
    model.config.eos_token_id = 28
    assert.same({ 28 }, generate()[3])
    shell.write(folder .. '/generation_config.json', '{"eos_token_id": [5, 12]}')
    model = ms.models.from_pretrained(folder)
    assert.same({ { 29, 25, 28, 25, 25, 5 }, { 11, 12 }, { 28, 5 } }, generate())
    assert.same(case.greedy, generate(false))
    shell.write(folder .. '/generation_config.json', '[]')
    checks.raises('FormatError', 'generation_config.json: expected an object',
      ms.models.from_pretrained, folder)
  end)

  it('samples from limited sets, differently in each row', function()
    local model = read(CASES['llama, packed'])
    local prompts = { { 1, 2 }, { 1, 2 } }
    for _, opts in ipairs { { top_k = 1 }, { top_p = 1e-9 }, { min_p = 1 } } do
      opts.eos = false
      assert.same(model:generate({ 1, 2 }, 8, GREEDY), model:generate({ 1, 2 }, 8, opts))
    end
    local seeded = { seed = 1, temperature = 3, eos = false }
    local new = model:generate(prompts, 8, seeded)
    assert.not_same(new[1], new[2])
    assert.same(new, model:generate(prompts, 8, seeded))
  end)

  it('refuses prompts and options that it cannot use', function()
    local model = read(CASES['llama, packed'])
    for _, row in ipairs {
      { 'ValueError', 'at least one token, ids[2] is empty', { { 1 }, {} } },
      { 'TypeError', "'ids[2][1]' is a string, expected a whole number", { { 1 }, { 'x' } } },
      { 'ValueError', 'top p 0', { 1 }, { top_p = 0 } },
      { 'ValueError', "'eos'[2] is x, expected the id of a token", { 1 }, { eos = { 1, 'x' } } },
      { 'ValueError', "unknown option 'max_length'", { 1 }, { max_length = 2 } },
    } do
      local kind, text, ids, opts = unpack(row)
      checks.raises(kind, text, model.generate, model, ids, 2, opts)
    end
  end)
end)
