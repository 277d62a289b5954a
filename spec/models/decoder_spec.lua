-- lua/moonshard/models: folders that the transformers package wrote (tests/fixtures/models.py) give
-- its logits, losses and gradients, are trained sharded, and are saved; damaged ones are refused.
local lfs = require 'lfs'
local ms = require 'moonshard'
local json = require 'moonshard.base.json'
local checks = require 'support.checks'
local decoders = require 'support.decoders'
local numbers = require 'support.numbers'
local shell = require 'support.shell'

local SOURCE = 'tests/fixtures/models/'
local TOLERANCE = numbers.TOLERANCE.f32

local folder

local function decoded(path)
  return json.decode(shell.read(path))
end

-- Change fields of a JSON file; json.null removes one.
local function change(path, changes)
  local value = decoded(path)
  for name, new in next, changes do
    if new == json.null then
      new = nil
    end
    value[name] = new
  end
  shell.write(path, json.encode(value))
end

local function copy_of(name, changes)
  assert(os.execute(("cp -R '%s%s/.' '%s'"):format(SOURCE, name, folder)) == 0)
  if changes then
    change(folder .. '/config.json', changes)
  end
  return folder
end

-- ids, targets and options of a case
local function batch_of(case)
  local function i64(rows)
    return rows and ms.tensor(rows, { dtype = 'i64' })
  end
  return i64(case.ids), i64(case.targets), { positions = i64(case.positions) }
end

-- Ten steps of AdamW have the losses of the case.
local function trains_as(case, model)
  decoders.trains_as(case, model, batch_of(case))
end

local CASES = numbers.read 'models'

-- First, since ranks are forked only before this process has opened a device.
describe('a folder of transformers on two ranks', function()
  before_each(function() folder = shell.make_folder() end)
  after_each(function() shell.remove_folder(folder) end)

  for _, wrapper in ipairs { 'FSDP', 'fully_shard' } do
    it('is sharded, read, saved and trained with ' .. wrapper, function()
      ms.dist.spawn(2, function()
        local model = ms.models.from_pretrained(SOURCE .. 'gpt2',
          { wrap = decoders.WRAPPERS[wrapper] })
        local whole = 4 * model:num_parameters()
        assert.is_true(ms.memory().peak_total < 0.75 * whole) -- no rank had all of it
        model:save_pretrained(folder)
        ms.dist.barrier()
        decoders.same_tensors(SOURCE .. 'gpt2/model.safetensors', folder .. '/model.safetensors')
        trains_as(CASES['gpt2, packed'], model)
        shell.write(folder .. '/file', '')
        checks.raises('IOError', folder .. '/file', model.save_pretrained, model, folder .. '/file')
        lfs.mkdir(folder .. '/config.json.tmp')
        checks.raises('IOError', 'config.json', model.save_pretrained, model, folder)
      end)
    end)
  end
end)

describe('a folder of transformers', function()
  before_each(function() folder = shell.make_folder() end)
  after_each(function() shell.remove_folder(folder) end)
  teardown(function()
    collectgarbage()
    collectgarbage()
    assert.equal(0, checks.live_handles())
  end)

  for _, name in ipairs {
    'llama', 'llama, linear', 'llama, llama3', 'llama, yarn', 'llama, yarn with scales', 'qwen2',
    'qwen2, window', 'qwen3', 'qwen3, window', 'mistral', 'gpt2', 'gpt2, scales',
    'llama, packed', 'qwen2, packed', 'qwen2, window, packed', 'qwen3, packed',
    'qwen3, window, packed', 'mistral, packed', 'gpt2, packed',
  } do
    it('gives logits, gradients and losses of ' .. name, function()
      local case = CASES[name]
      local model = ms.models.from_pretrained(copy_of(case.folder, case.changes))
      local ids, targets, opts = batch_of(case)
      local logits = model(ids, nil, opts)
      numbers.close('logits', logits, case.logits, TOLERANCE)
      numbers.close('last logits', logits:narrow(2, logits:size(2) - 2, 3), case.last, TOLERANCE)
      model(ids, targets, opts):backward()
      local n = 0
      for _, entry in ipairs(model:named_parameters()) do
        numbers.close(entry.name, entry.tensor:grad(), case.gradients[entry.name], TOLERANCE)
        n = n + 1
      end
      for _ in next, case.gradients do
        n = n - 1
      end
      assert.equal(0, n)
      model:zero_grad()
      trains_as(case, model)
    end)
  end

  it('is written with the fields and the spelling that were read, tied weights once', function()
    local path = copy_of 'qwen2'
    local before = decoded(path .. '/config.json')
    ms.models.from_pretrained(path):save_pretrained(path .. '/saved', { dtype = 'bf16' })
    local after = decoded(path .. '/saved/config.json')
    assert.equal(shell.read(path .. '/config.json'), shell.read(path .. '/saved/config.json'))
    assert.equal(json.null, after.of_another_tool[2])
    local old = ms.checkpoint.read_safetensors(path .. '/model.safetensors')
    local new = ms.checkpoint.read_safetensors(path .. '/saved/model.safetensors')
    assert.equal(#old, #new)
    assert.is_nil(new['lm_head.weight'])
    for _, name in ipairs(old) do
      assert.equal(old[name]:hash(), new[name]:hash())
    end
    ms.models.from_pretrained(path, { dtype = 'f16' }):save_pretrained(path .. '/saved')
    assert.equal((shell.read(path .. '/config.json'):gsub('"bfloat16"', '"float16"')),
      shell.read(path .. '/saved/config.json'))
    local model = ms.models.from_pretrained(path)
    before.torch_dtype, before['%s'], before.of_another_tool = 'float32', '50% {', { 2 }
    model.config['%s'], model.config.of_another_tool = '50% {', before.of_another_tool
    model:save_pretrained(path .. '/saved')
    assert.same(before, decoded(path .. '/saved/config.json'))
    model.config.of_another_tool = { 1, json.null }
    model:save_pretrained(path .. '/saved')
    local text = shell.read(path .. '/saved/config.json')
    assert.truthy(text:find('{\n  "%s": "50% {",\n', 1, true))
  end)

  -- Rename and add tensors of the folder's only file; `edit` gets them by name.
  local function edit_tensors(edit)
    local path = folder .. '/model.safetensors'
    local sd, all = ms.checkpoint.read_safetensors(path), {}
    for _, name in ipairs(sd) do
      all[name] = sd[name]
    end
    ms.checkpoint.write_safetensors(path, edit(all) or all)
  end

  local function logits_of(case)
    return ms.models.from_pretrained(folder)((batch_of(case))):hash()
  end

  it('may lack the name of the body, hold masks, or have only the head of tied tensors', function()
    local case = CASES.gpt2
    copy_of 'gpt2'
    local expected = logits_of(case)
    edit_tensors(function(all)
      local short = { ['h.0.attn.bias'] = ms.ones(1), ['h.1.attn.masked_bias'] = ms.ones(1) }
      for name, tensor in next, all do
        short[name:gsub('^transformer%.', '')] = tensor
      end
      return short
    end)
    assert.equal(expected, logits_of(case))
    ms.models.from_pretrained(folder):save_pretrained(folder .. '/saved')
    local saved = ms.checkpoint.read_safetensors(folder .. '/saved/model.safetensors')
    assert.not_nil(saved['h.1.attn.c_attn.weight'])
    assert.is_nil(saved['transformer.h.1.attn.c_attn.weight'])
    edit_tensors(function(all)
      all['lm_head.weight'], all['wte.weight'] = all['wte.weight'], nil
    end)
    assert.equal(expected, logits_of(case))
  end)

  it('is written with the files of its tokenizer', function()
    copy_of 'gpt2'
    shell.write(folder .. '/tokenizer.json', '{"a": "\0\255"}')
    shell.write(folder .. '/merges.txt', 'a b\n')
    shell.write(folder .. '/notes.txt', 'of the user')
    local model = ms.models.from_pretrained(folder)
    for _ = 1, 2 do -- the second time over its own files
      model:save_pretrained(folder .. '/saved')
    end
    for _, name in ipairs { 'tokenizer.json', 'merges.txt' } do
      assert.equal(shell.read(folder .. '/' .. name), shell.read(folder .. '/saved/' .. name))
    end
    assert.is_nil(lfs.attributes(folder .. '/saved/notes.txt'))
    assert.is_nil(lfs.attributes(folder .. '/saved/vocab.json'))
  end)

  it('is written in several files above a size, in place of what was there', function()
    local model = ms.models.from_pretrained(SOURCE .. 'gpt2')
    local expected, names = model:hash(), {}
    local function files()
      local out = {}
      for name in lfs.dir(folder) do
        out[#out + 1] = name:find '^model' and name or nil
      end
      table.sort(out)
      return out
    end
    for i = 1, 5 do
      names[i] = ('model-%05d-of-00005.safetensors'):format(i)
    end
    names[6] = 'model.safetensors.index.json'
    model:save_pretrained(folder)
    model:save_pretrained(folder, { max_shard_size = 5000 })
    assert.same(names, files())
    local index, total = decoded(folder .. '/model.safetensors.index.json'), 0
    for i = 1, 5 do
      local sd = ms.checkpoint.read_safetensors(folder .. '/' .. names[i])
      local size = 0
      for _, name in ipairs(sd) do
        assert.equal(names[i], index.weight_map[name])
        size = size + 4 * sd[name]:numel()
      end
      assert.is_true(size <= 5000)
      total = total + size
    end
    assert.equal(total, index.metadata.total_size)
    assert.equal(4 * model:num_parameters(), total)
    assert.equal(expected, ms.models.from_pretrained(folder):hash())
    model:save_pretrained(folder, { max_shard_size = 1 }) -- each tensor is larger: a file each
    assert.equal(#model:parameters() + 1, #files())
    assert.equal(expected, ms.models.from_pretrained(folder):hash())
    model:save_pretrained(folder)
    assert.same({ 'model.safetensors' }, files())
    assert.equal(expected, ms.models.from_pretrained(folder):hash())
    checks.raises('ValueError', "'max_shard_size' is 0, expected", model.save_pretrained, model,
      folder, { max_shard_size = 0 })
  end)

  it('has two parameters if tensors that its config ties differ', function()
    copy_of 'qwen2'
    local expected = logits_of(CASES.qwen2)
    edit_tensors(function(all) all['lm_head.weight'] = all['model.embed_tokens.weight'] + 0 end)
    assert.equal(expected, logits_of(CASES.qwen2))
    edit_tensors(function(all) all['lm_head.weight'] = all['lm_head.weight'] * 2 end)
    local model
    local warnings = ms.errors.capture_warnings(function()
      model = ms.models.from_pretrained(folder)
    end)
    assert.truthy(warnings[1].message:find("'model.embed_tokens.weight' and 'lm_head.weight' have "
      .. 'different values', 1, true))
    checks.close((model.model.embed_tokens.weight * 2):totable(), model.lm_head.weight, 0)
    model:save_pretrained(folder)
    assert.is_false(decoded(folder .. '/config.json').tie_word_embeddings)
    assert.not_nil(ms.checkpoint.read_safetensors(folder .. '/model.safetensors')['lm_head.weight'])
  end)

  local function index(changes)
    return function()
      local path = folder .. '/model.safetensors.index.json'
      local map = decoded(path).weight_map
      change(path, { weight_map = changes(map) or map })
    end
  end

  -- A file in place of qwen2's only one: a header, and bytes of data.
  local function weights(header, n_bytes, length)
    return function()
      length = length or #header
      local bytes = {}
      for i = 1, 8 do
        bytes[i] = string.char(math.floor(length / 256 ^ (i - 1)) % 256)
      end
      shell.write(folder .. '/model.safetensors', table.concat(bytes) .. header
        .. ('\0'):rep(n_bytes))
    end
  end

  local function entry(dtype, shape, first, last)
    return ('{"dtype":"%s","shape":[%s],"data_offsets":[%d,%d]}'):format(dtype, shape, first, last)
  end

  for _, row in ipairs {
    { 'FormatError', 'config.json: attn_pdrop is 300, expected a number from 0 to 1', 'gpt2',
      { attn_pdrop = 300 } },
    { 'FormatError', 'config.json: pad_token_id is 31, expected a row of the vocabulary of 31',
      'mistral', { pad_token_id = 31 } },
    { 'FormatError', "config.json: hidden_size is 'wide', expected a whole number above 0",
      'llama', { hidden_size = 'wide' } },
    { 'FormatError', 'config.json: attention_bias is 1, expected true or false',
      'llama', { attention_bias = 1 } },
    { 'FormatError', "config.json: rotary positions of kind 'llama3' have no 'low_freq_factor'",
      'llama', { rope_parameters = { rope_type = 'llama3', factor = 8 } } },
    { 'NotImplementedError', "config.json: rotary positions of kind 'longrope' are not supported, "
      .. 'expected one of default, linear, llama3, yarn',
      'llama', { rope_parameters = json.null, rope_scaling = { type = 'longrope' } } },
    { 'NotImplementedError', "config.json: the architecture is 'BertModel', expected one of "
      .. 'GPT2LMHeadModel, LlamaForCausalLM', 'llama', { architectures = { 'BertModel' } } },
    { 'NotImplementedError', 'config.json: pretraining_tp is 2, which is not supported, expected 1',
      'llama', { pretraining_tp = 2 } },
    { 'NotImplementedError', 'config.json: quantization_config is an object',
      'llama', { quantization_config = { bits = 4 } } },
    { 'NotImplementedError', "config.json: layer_types[1] is 'chunked_attention'",
      'qwen2', { layer_types = { 'full_attention', 'chunked_attention' } } },
    { 'NotImplementedError', "config.json: the activation is 'quick_gelu', expected one of gelu, ",
      'gpt2', { activation_function = 'quick_gelu' } },
    { 'ValueError', "model-00001-of-00002.safetensors: 'model.embed_tokens.weight' has shape (31, "
      .. "20), the model's has (32, 20)", 'llama', { vocab_size = 32 } },
    { 'KeyError', 'model.safetensors.index.json: has no model.layers.2.input_layernorm.weight, '
      .. 'model.layers.2.self_attn.q_proj.weight, model.layers.2.self_attn.q_proj.bias, '
      .. 'model.layers.2.self_attn.k_proj.weight and 12 more, which the model expects', 'llama',
      { num_hidden_layers = 3 } },
    { 'KeyError', 'model.safetensors.index.json: has model.layers.0.mlp.down_proj.bias, '
      .. 'model.layers.0.mlp.gate_proj.bias, model.layers.0.mlp.up_proj.bias, '
      .. 'model.layers.1.mlp.down_proj.bias and 2 more, which the model does not have', 'llama',
      { mlp_bias = false } },
    { 'FormatError', 'config.json: malformed JSON at line 1', 'llama', {}, function()
      shell.write(folder .. '/config.json', '{"hidden_size": 20,}')
    end },
    { 'IOError', 'config.json: No such file', 'llama', {}, function()
      os.remove(folder .. '/config.json')
    end },
    { 'IOError', 'model.safetensors', 'qwen2', {}, function()
      os.remove(folder .. '/model.safetensors')
    end },
    { 'FormatError', "the file of 'lm_head.weight' is '../w', expected a name in the same folder",
      'llama', {}, index(function(map) map['lm_head.weight'] = '../w' end) },
    { 'FormatError', "model-00001-of-00002.safetensors: has no tensor 'none', which "
      .. 'model.safetensors.index.json says is there', 'llama', {}, index(function(map)
      map.none = 'model-00001-of-00002.safetensors'
    end) },
    { 'FormatError', "model.safetensors.index.json: 'weight_map' is nil", 'llama', {}, function()
      shell.write(folder .. '/model.safetensors.index.json', '{}')
    end },
    { 'FormatError', 'model.safetensors.index.json: malformed JSON at line 1', 'llama', {},
      function() shell.write(folder .. '/model.safetensors.index.json', '{"weight_map": ') end },
    { 'FormatError', 'model.safetensors.index.json: ', 'llama', {},
      function() shell.write(folder .. '/model.safetensors.index.json', '') end },
    { 'IOError', 'model-00002-of-00002.safetensors', 'llama', {}, function()
      os.remove(folder .. '/model-00002-of-00002.safetensors')
    end },
    { 'FormatError', 'config.json: ', 'llama', {}, function()
      shell.write(folder .. '/config.json', '')
    end },
    { 'FormatError', 'config.json: expected an object', 'llama', {}, function()
      shell.write(folder .. '/config.json', 'null')
    end },
    { 'IOError', 'config.json', 'llama', {}, function()
      os.remove(folder .. '/config.json')
      lfs.mkdir(folder .. '/config.json')
    end },
    { 'FormatError', 'model.safetensors: has 0 bytes, expected at least 8', 'qwen2', {}, function()
      shell.write(folder .. '/model.safetensors', '')
    end },
    { 'FormatError', 'model.safetensors: a header of 1000 bytes, expected at most', 'qwen2', {},
      weights('{"a":', 0, 1000) },
    { 'FormatError', 'model.safetensors: a header of 9007199254740992 bytes, expected at most',
      'qwen2', {}, weights('{}', 0, 2 ^ 53) },
    { 'FormatError', 'model.safetensors: header, byte 5: unexpected token', 'qwen2', {},
      weights('{"a":', 0) },
    { 'FormatError', 'model.safetensors: the header is no object', 'qwen2', {}, weights('[]', 0) },
    { 'FormatError', "model.safetensors: tensor 'a' has unknown dtype 'F31'", 'qwen2', {},
      weights('{"a":' .. entry('F31', '1', 0, 4) .. '}', 4) },
    { 'FormatError', "model.safetensors: tensor 'a' has bytes [0, 8), expected 4 by its shape",
      'qwen2', {}, weights('{"a":' .. entry('F32', '1', 0, 8) .. '}', 8) },
    { 'FormatError', "model.safetensors: tensor 'b' begins at byte 2 of the data, expected 4",
      'qwen2', {}, weights('{"a":' .. entry('F32', '1', 0, 4) .. ',"b":'
        .. entry('F32', '1', 2, 6) .. '}', 6) },
    { 'FormatError', 'model.safetensors: has 4 bytes of data, expected 8 by its header', 'qwen2',
      {}, weights('{"a":' .. entry('F32', '2', 0, 8) .. '}', 4) },
    { 'FormatError', "tensor 'a': its shape has more elements than 64 bits count", 'qwen2', {},
      weights('{"a":' .. entry('F32', '4611686018427387904,4', 0, 4) .. '}', 4) },
    { 'NotImplementedError', "model.safetensors: tensor 'model.embed_tokens.weight' is F8_E4M3 "
      .. 'with 2 dimensions', 'qwen2', {}, weights('{"model.embed_tokens.weight":'
        .. entry('F8_E4M3', '31,24', 0, 744) .. '}', 744) },
    { 'FormatError', 'model.safetensors: is a zip archive, as torch.save writes', 'qwen2', {},
      function() shell.write(folder .. '/model.safetensors', 'PK\3\4' .. ('x'):rep(100)) end },
  } do
    local kind, text, name, changes, damage = unpack(row)
    it('is refused: ' .. text, function()
      copy_of(name, changes)
      if damage then
        damage()
      end
      checks.raises(kind, text, ms.models.from_pretrained, folder)
    end)
  end

  it('may have more tensors with strict = false', function()
    ms.models.from_pretrained(copy_of('llama', { mlp_bias = false }), { strict = false })
  end)
end)

describe('models.Decoder', function()
  it('has the initial values of its family, and learns and generates', function()
    local model = ms.models.Decoder {
      model_type = 'gpt2', vocab_size = 64, n_layer = 2, n_head = 2, n_embd = 128, n_positions = 8,
    }
    model:materialize()
    local function deviation(t)
      return math.sqrt((t * t):mean():item())
    end
    checks.close(0.02, deviation(model.transformer.h[1].mlp.c_fc.weight), 0.0005)
    checks.close(0.01, deviation(model.transformer.h[2].attn.c_proj.weight), 0.0005)
    model = ms.models.Decoder {
      model_type = 'llama', vocab_size = 11, num_hidden_layers = 1, num_attention_heads = 2,
      hidden_size = 16, intermediate_size = 24, max_position_embeddings = 8,
    }
    local opt = ms.optim.AdamW(model:parameters(), { lr = 0.02, weight_decay = 0 })
    local x = ms.tensor({ { 1, 2, 3, 4, 5 } }, { dtype = 'i64' })
    local y = ms.tensor({ { 2, 3, 4, 5, 1 } }, { dtype = 'i64' })
    for _ = 1, 60 do
      model(x, y):backward()
      opt:step()
      opt:zero_grad()
    end
    assert.same({ 3, 4, 5 }, model:generate({ 1, 2 }, 3, { temperature = 0 }))
  end)

  it('draws dropout in training only', function()
    local model = ms.models.from_pretrained(SOURCE .. 'gpt2')
    local ids = batch_of(CASES.gpt2)
    local expected = model(ids):hash()
    model:train()
    assert.not_equal(expected, model(ids):hash())
    assert.not_equal(model(ids):hash(), model(ids):hash())
    for _, module in ipairs(model:modules()) do -- the attention weights alone
      if module.p then
        module.p = 0
      end
    end
    assert.not_equal(expected, model(ids):hash())
    assert.equal(expected, model:eval()(ids):hash())
  end)

  it('refuses rows longer than its learned positions, and positions of another shape', function()
    local model = ms.models.from_pretrained(SOURCE .. 'gpt2')
    local ids, _, opts = batch_of(CASES['gpt2, packed'])
    checks.raises('ValueError', 'models.Decoder: positions are i64 (1, 13), expected i64 (1, 12), '
      .. 'the shape of ids', model, ids:narrow(2, 1, 12), nil, opts)
    checks.raises('ValueError', 'rows have 14 tokens, the model has 13 positions', model,
      ms.zeros(1, 14, { dtype = 'i64' }))
  end)
end)
