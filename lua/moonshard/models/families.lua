--- The families of models that Decoder computes, one row each: names of modules, kinds of layers,
--- and the fields of config.json with the values that they have when they are absent.

local config_fields = require 'moonshard.models.config_fields'
local errors = require 'moonshard.base.errors'
local json = require 'moonshard.base.json'
local parts = require 'moonshard.models.decoder_parts'
local Rotary = require 'moonshard.nn.rotary'
local util = require 'moonshard.base.util'

local families = {}

---@class ms.models.Family
---@field model_type string
---@field names table<string, string>  of the modules, as in the files
---@field ignored string[]  patterns of names in files that hold no weights
---@field fields table<string, ms.models.Field|any>  the shape; a value that is no field is constant
---@field norm 'RMSNorm'|'LayerNorm'
---@field packed boolean  one projection for q, k and v
---@field gated boolean  the network of three products, in place of two
---@field transposed boolean  weights of linear layers are (in, out)

---@class ms.models.Field
---@field name string  in config.json
---@field check ms.models.FieldKind
---@field absent any  the value without the field
---@field null any  the value of null (default: `absent`)

-- The shape of a model, read by families.read().
---@class ms.models.Shape
---@field vocab integer
---@field width integer
---@field hidden integer  width inside the feed-forward network
---@field layers integer
---@field heads integer
---@field kv_heads integer
---@field head_dim integer
---@field context integer
---@field eps number
---@field activation string
---@field tie boolean
---@field deviation number  of initial weights
---@field pad integer?  row of the embedding that gets no gradient
---@field qkv_bias boolean
---@field o_bias boolean
---@field mlp_bias boolean
---@field qk_norm boolean
---@field scaled boolean  scores are divided by the square root of head_dim
---@field scaled_by_layer boolean  and by the layer's number
---@field rotary table?  of Rotary.read(); nil: learned positions
---@field window integer?  keys that a query of a windowed layer attends to, its own among them;
---  nil: no layer has a window
---@field windowed boolean[]  by layer
---@field attention_dropout number
---@field residual_dropout number
---@field embedding_dropout number

local function field(name, check, absent, null)
  return { name = name, check = check, absent = absent, null = null }
end

local LLAMA = {
  vocab = field('vocab_size', 'count', 32000),
  width = field('hidden_size', 'count', 4096),
  hidden = field('intermediate_size', 'count', 11008),
  layers = field('num_hidden_layers', 'count', 32),
  heads = field('num_attention_heads', 'count', 32),
  kv_heads = field('num_key_value_heads', 'count'),
  head_dim = field('head_dim', 'count'),
  context = field('max_position_embeddings', 'count', 2048),
  eps = field('rms_norm_eps', 'size', 1e-6),
  activation = field('hidden_act', 'word', 'silu'),
  tie = field('tie_word_embeddings', 'flag', false),
  deviation = field('initializer_range', 'size', 0.02),
  pad = field('pad_token_id', 'number'),
  qkv_bias = field('attention_bias', 'flag', false),
  o_bias = field('attention_bias', 'flag', false),
  mlp_bias = field('mlp_bias', 'flag', false),
  attention_dropout = field('attention_dropout', 'share', 0),
  residual_dropout = 0, embedding_dropout = 0,
  qk_norm = false, scaled = true, scaled_by_layer = false,
}

local QWEN2 = util.merged(LLAMA, {
  vocab = field('vocab_size', 'count', 151936),
  hidden = field('intermediate_size', 'count', 22016),
  kv_heads = field('num_key_value_heads', 'count', 32, json.null),
  context = field('max_position_embeddings', 'count', 32768),
  window = field('sliding_window', 'count', 4096, json.null),
  uses_window = field('use_sliding_window', 'flag', false),
  first_windowed = field('max_window_layers', 'number', 28),
  qkv_bias = true, o_bias = false, mlp_bias = false,
})

local QWEN3 = util.merged(QWEN2, {
  head_dim = field('head_dim', 'count', 128),
  qkv_bias = LLAMA.qkv_bias, o_bias = LLAMA.o_bias, qk_norm = true,
})

local MISTRAL = util.merged(LLAMA, {
  hidden = field('intermediate_size', 'count', 14336),
  kv_heads = field('num_key_value_heads', 'count', 8),
  context = field('max_position_embeddings', 'count', 131072),
  window = QWEN2.window, uses_window = true, first_windowed = 0,
  qkv_bias = false, o_bias = false, mlp_bias = false,
})

local GPT2 = {
  vocab = field('vocab_size', 'count', 50257),
  width = field('n_embd', 'count', 768),
  hidden = field('n_inner', 'count'),
  layers = field('n_layer', 'count', 12),
  heads = field('n_head', 'count', 12),
  context = field('n_positions', 'count', 1024),
  eps = field('layer_norm_epsilon', 'size', 1e-5),
  activation = field('activation_function', 'word', 'gelu_new'),
  tie = field('tie_word_embeddings', 'flag', true),
  deviation = field('initializer_range', 'size', 0.02),
  attention_dropout = field('attn_pdrop', 'share', 0.1),
  residual_dropout = field('resid_pdrop', 'share', 0.1),
  embedding_dropout = field('embd_pdrop', 'share', 0.1),
  scaled = field('scale_attn_weights', 'flag', true),
  scaled_by_layer = field('scale_attn_by_inverse_layer_idx', 'flag', false),
  qkv_bias = true, o_bias = true, mlp_bias = true, qk_norm = false,
}

local LLAMA_NAMES = {
  body = 'model', embedding = 'embed_tokens', layers = 'layers', norm = 'norm',
  attention_norm = 'input_layernorm', attention = 'self_attn', o = 'o_proj',
  mlp_norm = 'post_attention_layernorm', mlp = 'mlp',
}

local GPT2_NAMES = {
  body = 'transformer', embedding = 'wte', layers = 'h', norm = 'ln_f', attention_norm = 'ln_1',
  attention = 'attn', o = 'c_proj', mlp_norm = 'ln_2', mlp = 'mlp', up = 'c_fc', down = 'c_proj',
}

local function of_llama(model_type, fields)
  return {
    model_type = model_type, names = LLAMA_NAMES, fields = fields, norm = 'RMSNorm', rotary = true,
    packed = false, gated = true, transposed = false, ignored = { '%.rotary_emb%.inv_freq$' },
  }
end

--- Rows by the name in `architectures` of config.json.
---@type table<string, ms.models.Family>
families.rows = {
  LlamaForCausalLM = of_llama('llama', LLAMA),
  Qwen2ForCausalLM = of_llama('qwen2', QWEN2),
  Qwen3ForCausalLM = of_llama('qwen3', QWEN3),
  MistralForCausalLM = of_llama('mistral', MISTRAL),
  GPT2LMHeadModel = {
    model_type = 'gpt2', names = GPT2_NAMES, fields = GPT2, norm = 'LayerNorm', rotary = false,
    packed = true, gated = false, transposed = true,
    ignored = { 'h%.%d+%.attn%.bias$', 'h%.%d+%.attn%.masked_bias$' },
  },
}

-- -- reading -------------------------------------------------------------------------------------

-- Fields that change what a model computes, and the only value that is supported.
local ONLY = {
  pretraining_tp = 1, add_cross_attention = false, reorder_and_upcast_attn = false,
  quantization_config = json.null,
}

local function refuse(from, config)
  config_fields.refuse(from, config, ONLY)
  for i, kind in ipairs(type(config.layer_types) == 'table' and config.layer_types or {}) do
    if kind ~= 'full_attention' and kind ~= 'sliding_attention' then
      errors.raise('NotImplementedError', "%s: layer_types[%d] is '%s', which is not supported, "
        .. "expected 'full_attention' or 'sliding_attention'", from, i - 1, tostring(kind))
    end
  end
end

--- The row of a decoded config.json.
---@param from string  the file, for errors
---@param config table
---@return ms.models.Family
function families.of(from, config)
  local named = type(config.architectures) == 'table' and config.architectures[1]
  for _, name in ipairs(named and {} or util.sorted_keys(families.rows)) do
    named = families.rows[name].model_type == config.model_type and name or named
  end
  named = named or config.model_type
  return families.rows[named] or errors.raise('NotImplementedError', '%s: the architecture is %s, '
    .. 'expected one of %s', from, type(named) == 'string' and "'" .. named .. "'" or 'missing',
    table.concat(util.sorted_keys(families.rows), ', '))
end

-- The layers with a window: those that `layer_types` names, else all from a first one on.
local function set_windows(config, shape)
  local kinds = type(config.layer_types) == 'table' and config.layer_types
  local window = shape.uses_window and shape.window
  shape.windowed, shape.window = {}, nil
  for i = 1, shape.layers do
    local is_windowed = kinds and kinds[i] == 'sliding_attention'
      or not kinds and i > (shape.first_windowed or 0)
    shape.windowed[i] = window and is_windowed or false
    shape.window = shape.windowed[i] and window or shape.window
  end
end

local function complete(from, config, shape)
  set_windows(config, shape)
  shape.kv_heads = shape.kv_heads or shape.heads
  shape.hidden = shape.hidden or 4 * shape.width
  if not shape.head_dim and shape.width % shape.heads ~= 0 then
    errors.raise('ValueError', '%s: the width %d is not a multiple of the %d heads', from,
      shape.width, shape.heads)
  elseif shape.heads % shape.kv_heads ~= 0 then
    errors.raise('ValueError', '%s: the %d heads are not a multiple of the %d key-value heads',
      from, shape.heads, shape.kv_heads)
  end
  if shape.pad and (shape.pad % 1 ~= 0 or shape.pad < -shape.vocab or shape.pad >= shape.vocab) then
    errors.raise('FormatError', '%s: pad_token_id is %g, expected a row of the vocabulary of %d',
      from, shape.pad, shape.vocab)
  end
  if not parts.activations[shape.activation] then
    errors.raise('NotImplementedError', "%s: the activation is '%s', expected one of %s", from,
      shape.activation, table.concat(util.sorted_keys(parts.activations), ', '))
  end
  shape.head_dim = shape.head_dim or shape.width / shape.heads
  if families.of(from, config).rotary then
    if shape.head_dim % 2 ~= 0 then
      errors.raise('ValueError', '%s: heads are %d wide, expected an even width for rotary '
        .. 'positions', from, shape.head_dim)
    end
    shape.rotary = Rotary.read(from, config, shape.context)
  end
  return shape
end

--- The shape in a decoded config.json. FormatError for a field of another type,
--- NotImplementedError for a model that computes something else.
---@param from string
---@param config table
---@return ms.models.Shape
function families.read(from, config)
  local fields, shape = families.of(from, config).fields, {}
  refuse(from, config)
  for _, name in ipairs(util.sorted_keys(fields)) do
    local f = fields[name]
    if type(f) == 'table' then
      shape[name] = config_fields.value(from, config, f.name, f.check, f.absent, f.null)
    else
      shape[name] = f
    end
  end
  return complete(from, config, shape)
end

return families
