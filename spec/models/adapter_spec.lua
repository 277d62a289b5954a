-- lua/moonshard/models/adapter.lua: adapters that the peft package wrote
-- (tests/fixtures/adapters.py) give its logits and losses, are trained sharded, saved and merged;
-- damaged ones are refused.
local ms = require 'moonshard'
local json = require 'moonshard.base.json'
local checks = require 'support.checks'
local decoders = require 'support.decoders'
local numbers = require 'support.numbers'
local shell = require 'support.shell'
local optim = ms.optim

local MODELS, ADAPTERS = 'tests/fixtures/models/', 'tests/fixtures/adapters/'
local TOLERANCE = numbers.TOLERANCE.f32
local CASES = numbers.read 'adapters'

local folder

local function batch_of(case)
  local ids = ms.tensor(case.ids, { dtype = 'i64' })
  local length = ids:size(2) - 1
  return ids:narrow(2, 1, length), ids:narrow(2, 2, length)
end

local function logits_of(model, case)
  return ms.no_grad(function() return model((batch_of(case))) end)
end

-- Ten steps of AdamW have the losses of the case.
local function trains_as(case, model)
  decoders.trains_as(case, model, batch_of(case))
end

-- Write the adapter after three steps over two rows: one on each of two ranks, or on one rank as
-- micro-batches.
local function train_rows(rank, group, path)
  ms.manual_seed(3)
  local model = ms.models.from_pretrained(MODELS .. 'llama', {
    dtype = 'bf16', wrap = function(inner) return decoders.WRAPPERS.FSDP(inner, group) end,
    adapter = { r = 2, alpha = 4, targets = { 'q_proj', 'mlp.down_proj' } },
  })
  local opt = optim.AdamW(decoders.trained(model), { lr = 0.01 })
  local ids, targets = batch_of(CASES.llama)
  local function backward(row)
    model(ids:narrow(1, row, 1), targets:narrow(1, row, 1)):backward()
  end
  model:set_gradient_factor(1 / 2)
  for _ = 1, 3 do
    if group then
      model:no_sync(backward, 1)
    end
    backward(group and 2 or rank + 1)
    opt:step()
    opt:zero_grad()
  end
  model:save_adapter(path)
end

-- First, since ranks are forked only before this process has opened a device.
describe('an adapter on two ranks', function()
  before_each(function() folder = shell.make_folder() end)
  after_each(function() shell.remove_folder(folder) end)

  for _, wrapper in ipairs { 'FSDP', 'fully_shard' } do
    it('is loaded, saved, merged and trained with ' .. wrapper, function()
      local wrap = decoders.WRAPPERS[wrapper]
      ms.dist.spawn(2, function(rank)
        local model = ms.models.from_pretrained(MODELS .. 'llama', {
          adapter = ADAPTERS .. 'llama', wrap = wrap,
        })
        numbers.close('logits', logits_of(model, CASES.llama), CASES.llama.logits, TOLERANCE)
        model:save_adapter(folder)
        decoders.same_tensors(ADAPTERS .. 'llama/adapter_model.safetensors',
          folder .. '/adapter_model.safetensors')
        ms.reset_peak_memory()
        local before = ms.memory().peak_total
        model:save_pretrained(folder .. '/merged', { merge = true, max_shard_size = 6000 })
        assert.is_true(ms.memory().peak_total - before < 2 * model:num_parameters()) -- half of it
        local merged = ms.models.from_pretrained(folder .. '/merged')
        numbers.close('merged', logits_of(merged, CASES.llama), CASES.llama.logits, TOLERANCE)
        checks.raises('RuntimeError', 'is sharded; save_pretrained(path, { merge = true })',
          model.merge_adapter, model)
        model:load_adapter(folder)
        trains_as(CASES.llama, model)
        if rank == 0 then
          shell.write(folder .. '/file', '')
        end
        ms.dist.barrier()
        checks.raises('IOError', folder .. '/file', model.save_adapter, model, folder .. '/file')
      end)
    end)
  end

  it('has the same bits on one rank', function()
    ms.dist.spawn(2, function(rank)
      local alone = folder .. '/alone' .. rank
      train_rows(rank, nil, folder)
      train_rows(rank, ms.dist.split(rank, 0), alone)
      decoders.same_tensors(folder .. '/adapter_model.safetensors',
        alone .. '/adapter_model.safetensors')
    end)
  end)
end)

describe('an adapter', function()
  before_each(function() folder = shell.make_folder() end)
  after_each(function() shell.remove_folder(folder) end)
  teardown(function()
    collectgarbage()
    collectgarbage()
    assert.equal(0, checks.live_handles())
  end)

  local function loaded(name)
    return ms.models.from_pretrained(MODELS .. name, { adapter = ADAPTERS .. name })
  end

  local FIELDS = { -- as peft 0.7 knows them
    'peft_type', 'task_type', 'base_model_name_or_path', 'revision', 'inference_mode', 'r',
    'lora_alpha', 'lora_dropout', 'target_modules', 'bias', 'fan_in_fan_out', 'modules_to_save',
    'use_rslora', 'use_dora', 'init_lora_weights', 'layers_to_transform', 'layers_pattern',
    'rank_pattern', 'alpha_pattern',
  }

  for _, name in ipairs { 'llama', 'gpt2' } do
    it('of peft is loaded, saved, merged and trained: ' .. name, function()
      local case, model = CASES[name], loaded(name)
      numbers.close('logits', logits_of(model, case), case.logits, TOLERANCE)
      model:save_adapter(folder)
      decoders.same_tensors(ADAPTERS .. name .. '/adapter_model.safetensors',
        folder .. '/adapter_model.safetensors')
      local wanted = json.decode(shell.read(ADAPTERS .. name .. '/adapter_config.json'))
      local found = json.decode(shell.read(folder .. '/adapter_config.json'))
      table.sort(wanted.target_modules)
      table.sort(found.target_modules)
      wanted.base_model_name_or_path = MODELS .. name
      wanted.alpha_pattern = name == 'llama' and { ['model.layers.1.mlp.down_proj'] = 9 } or {}
      wanted.rank_pattern = name == 'llama' and {
        ['model.layers.0.self_attn.q_proj'] = 2, ['model.layers.1.self_attn.q_proj'] = 2,
      } or {}
      for _, field in ipairs(FIELDS) do
        assert.same(wanted[field], found[field])
        found[field] = nil
      end
      assert.is_nil((next(found)))
      checks.raises('ValueError', 'merge = true adds it', model.save_pretrained, model, folder)
      model:save_pretrained(folder, { merge = false })
      local base = ms.models.from_pretrained(MODELS .. name)
      assert.equal(base:hash(), ms.models.from_pretrained(folder):hash())
      model:save_pretrained(folder, { merge = true })
      model:merge_adapter()
      numbers.close('merged', logits_of(model, case), case.logits, TOLERANCE)
      assert.equal(#base:parameters(), #decoders.trained(model))
      assert.equal(model:hash(), ms.models.from_pretrained(folder):hash())
      trains_as(case, loaded(name))
    end)
  end

  it('is f32 beside a bf16 model, and is merged with one rounding', function()
    local model = ms.models.from_pretrained(MODELS .. 'llama', {
      dtype = 'bf16', adapter = ADAPTERS .. 'llama',
    })
    local linear = model.model.layers[2].mlp.down_proj
    local a, b = linear.lora.lora_A.weight, linear.lora.lora_B.weight
    assert.same({ 'f32', 'bf16', 'bf16' }, { a:dtype(), linear.weight:dtype(),
      logits_of(model, CASES.llama):dtype() })
    local exact = ms.no_grad(function() -- alpha / r is 9 / 3
      return linear.weight:to 'f64' + b:to('f64'):matmul(a:to 'f64') * 3
    end)
    model:merge_adapter()
    local error = (linear.weight:detach():to 'f64' - exact):abs()
    assert.is_true((error / exact:abs()):max():item() < 2 ^ -8 * 1.001) -- half of a last place
    assert.is_true((error / exact:abs()):max():item() > 0)
  end)

  it('begins without effect, and chooses layers by names, ends of paths and patterns', function()
    local case = CASES.llama
    local base = ms.models.from_pretrained(MODELS .. 'llama')
    local expected = logits_of(base, case):hash()
    for _, row in ipairs {
      { nil, 14, { 'q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj' } },
      { { 'q_proj', 'lm_head' }, 3, { 'q_proj', 'lm_head' } },
      { { 'layers.1.self_attn.q_proj' }, 1, { 'model.layers.1.self_attn.q_proj' } },
      { '.*%.mlp%..*', 6, { 'gate_proj', 'up_proj', 'down_proj' } },
    } do
      local targets, n, names = row[1], row[2], row[3]
      local model = ms.models.from_pretrained(MODELS .. 'llama', {
        adapter = { r = 2, targets = targets },
      })
      assert.equal(expected, logits_of(model, case):hash())
      assert.equal(2 * n, #decoders.trained(model))
      model:save_adapter(folder)
      assert.same(names, setmetatable(json.decode(shell.read(folder .. '/adapter_config.json'))
        .target_modules, nil))
    end
  end)

  it('draws dropout in training only', function()
    local model = ms.models.from_pretrained(MODELS .. 'llama', { adapter = { dropout = 0.5 } })
    model:load_state_dict({ ['model.layers.0.mlp.up_proj.lora.lora_B.weight'] = ms.ones(27, 8) },
      { strict = false })
    local expected = logits_of(model, CASES.llama):hash()
    assert.equal(expected, logits_of(model, CASES.llama):hash())
    assert.not_equal(expected, logits_of(model:train(), CASES.llama):hash())
  end)

  for _, row in ipairs {
    { 'ValueError', "add_adapter: 'wte' matches no linear layer, expected one of c_attn, c_proj, "
      .. 'c_fc, lm_head, or a path', { targets = { 'wte' } } },
    { 'NotImplementedError', 'an adapter of lm_head', { targets = { 'lm_head' } } },
    { 'ValueError', "'r' is 0, expected 1 or more", { r = 0 } },
    { 'ValueError', "add_adapter: unknown option 'rank'", { rank = 4 } },
    { 'TypeError', "'targets[1]' is a number", { targets = { 1 } } },
  } do
    local kind, text, opts = unpack(row)
    it('is refused: ' .. text, function()
      checks.raises(kind, text, ms.models.from_pretrained, MODELS .. 'gpt2', { adapter = opts })
    end)
  end

  it('is added once, before sharding', function()
    local model = ms.models.from_pretrained(MODELS .. 'gpt2')
    checks.raises('RuntimeError', 'save_adapter: the model has no adapter', model.save_adapter,
      model, folder)
    checks.raises('RuntimeError', 'merge_adapter: the model has no adapter', model.merge_adapter,
      model)
    model:add_adapter()
    checks.raises('RuntimeError', 'the model has an adapter', model.add_adapter, model)
    checks.raises('ValueError', "'transformer.h.0.attn.c_attn' has r 2 in the files, 8 in the "
      .. 'model', model.load_adapter, model, ADAPTERS .. 'gpt2')
  end)

  -- -- damaged folders ---------------------------------------------------------------------------

  local function config(changes)
    return function()
      local path = folder .. '/adapter_config.json'
      local value = json.decode(shell.read(path))
      for name, new in next, changes do
        value[name] = new
      end
      shell.write(path, json.encode(value))
    end
  end

  local function tensors(edit)
    return function()
      local path, all = folder .. '/adapter_model.safetensors', {}
      local sd = ms.checkpoint.read_safetensors(path)
      for _, name in ipairs(sd) do
        all[name] = sd[name]
      end
      ms.checkpoint.write_safetensors(path, edit(all) or all)
    end
  end

  local function text(content)
    return function() shell.write(folder .. '/adapter_config.json', content) end
  end

  local LAYER = 'base_model.model.transformer.h.0.attn.c_attn.'

  for _, row in ipairs {
    { 'NotImplementedError', 'adapter_config.json: use_dora is true', config { use_dora = true } },
    { 'NotImplementedError', "modules_to_save is [\"lm_head\"], which is not supported, expected "
      .. 'null', config { modules_to_save = { 'lm_head' } } },
    { 'NotImplementedError', "bias is 'all', which is not supported, expected 'none'",
      config { bias = 'all' } },
    { 'NotImplementedError', 'lora_bias is true', config { lora_bias = true } },
    { 'NotImplementedError', "peft_type is 'IA3'", config { peft_type = 'IA3' } },
    { 'NotImplementedError', "init_lora_weights is 'pissa', which changes the base model",
      config { init_lora_weights = 'pissa' } },
    { 'NotImplementedError', "rank_pattern has the regular expression 'c_(attn|fc)'",
      config { rank_pattern = { ['c_(attn|fc)'] = 4 } } },
    { 'ValueError', "the patterns 'attn.c_attn' and 'c_attn' both match "
      .. "'transformer.h.0.attn.c_attn', with 3 and 4",
      config { rank_pattern = { ['attn.c_attn'] = 3, c_attn = 4 } } },
    { 'FormatError', "adapter_config.json: r is 'two', expected a whole number above 0",
      config { r = 'two' } },
    { 'FormatError', 'lora_dropout is 2, expected a number from 0 to 1',
      config { lora_dropout = 2 } },
    { 'FormatError', 'target_modules is 5, expected a string or a list', config {
      target_modules = 5,
    } },
    { 'FormatError', 'alpha_pattern is 5, expected an object', config { alpha_pattern = 5 } },
    { 'FormatError', "adapter_config.json: has no 'peft_type'", text '{}' },
    { 'FormatError', 'adapter_config.json: expected an object', text '[]' },
    { 'FormatError', 'adapter_config.json: malformed JSON at line 1', text '{"r": 2,' },
    { 'FormatError', 'adapter_config.json', text '' },
    { 'IOError', 'adapter_config.json: No such file', function()
      os.remove(folder .. '/adapter_config.json')
    end },
    { 'IOError', 'adapter_model.safetensors', function()
      os.remove(folder .. '/adapter_model.safetensors')
    end },
    { 'ValueError', "adapter_model.safetensors: '" .. LAYER .. "lora_A.weight' has shape (2, 15), "
      .. "the model's has (4, 15)", config { r = 4 } },
    { 'KeyError', 'adapter_model.safetensors: has no ' .. LAYER .. 'lora_B.weight, which the '
      .. 'adapter needs', tensors(function(all) all[LAYER .. 'lora_B.weight'] = nil end) },
    { 'KeyError', 'has no ' .. LAYER .. 'lora_A.weight, ' .. LAYER .. 'lora_B.weight, which',
      tensors(function(all)
        all[LAYER .. 'lora_A.weight'], all[LAYER .. 'lora_B.weight'] = nil, nil
      end) },
    { 'KeyError', 'has base_model.model.transformer.wte.lora_A.weight, which belong to no linear',
      tensors(function(all)
        all['base_model.model.transformer.wte.lora_A.weight'] = ms.ones(2, 2)
      end) },
    { 'KeyError', 'none of its 1 tensors belongs to a linear layer of the model: it has '
      .. "h.0.attn.c_attn.lora_A.weight, expected names such as '" .. LAYER .. "lora_A.weight'",
      tensors(function() return { ['h.0.attn.c_attn.lora_A.weight'] = ms.ones(2, 2) } end) },
    { 'KeyError', 'adapter_model.safetensors: has no tensors', tensors(function() return {} end) },
    { 'NotImplementedError', "'base_model.model.transformer.wte.lora_embedding_A' belongs to an "
      .. 'adapter of an embedding', tensors(function(all)
        all['base_model.model.transformer.wte.lora_embedding_A'] = ms.ones(2, 2)
      end) },
  } do
    local kind, message, damage = unpack(row)
    it('in a folder is refused: ' .. message, function()
      assert(os.execute(("cp '%sgpt2/'* '%s'"):format(ADAPTERS, folder)) == 0)
      damage()
      checks.raises(kind, message, ms.models.from_pretrained, MODELS .. 'gpt2',
        { adapter = folder })
    end)
  end

  it('may have fewer layers than its config names, if that limits them', function()
    assert(os.execute(("cp '%sgpt2/'* '%s'"):format(ADAPTERS, folder)) == 0)
    tensors(function(all)
      for name in next, all do
        if name:find('h.1.', 1, true) then
          all[name] = nil
        end
      end
    end)()
    config { layers_to_transform = { 0 } }()
    local model = ms.models.from_pretrained(MODELS .. 'gpt2', { adapter = folder })
    assert.equal(8, #decoders.trained(model))
  end)
end)
