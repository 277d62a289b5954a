--- Decoder-only models of several families (Llama, Qwen 2, Qwen 3, Mistral, GPT-2), built from the
--- fields of a config.json. Paths of modules are those of the families' files.
---
--- Shapes: B rows, T tokens, V vocabulary
---         ids (B, T) -> logits (B, T, V), or with targets (B, T) the mean loss ()
--- Init:   weights N(0, initializer_range), biases zero, norms one.

local Dropout = require 'moonshard.nn.dropout'
local Embedding = require 'moonshard.nn.embedding'
local Linear = require 'moonshard.nn.linear'
local Module = require 'moonshard.nn.module'
local ModuleList = require 'moonshard.nn.module_list'
local Rotary = require 'moonshard.nn.rotary'
local adapter = require 'moonshard.models.adapter'
local arguments = require 'moonshard_ffi.arguments'
local causal = require 'moonshard.models.causal'
local create = require 'moonshard.base.create'
local errors = require 'moonshard.base.errors'
local families = require 'moonshard.models.families'
local folder = require 'moonshard.models.folder'
local generate = require 'moonshard.models.generate'
local ops = require 'moonshard.ops'
local parts = require 'moonshard.models.decoder_parts'
local rules = require 'moonshard.nn.rules'
local without_jit = require 'moonshard.base.without_jit'

-- -- the model without its head ------------------------------------------------------------------

---@class ms.models.DecoderBody: ms.nn.Module
---@overload fun(of: ms.models.Parts): ms.models.DecoderBody
local DecoderBody = Module.extend('models.DecoderBody')

DecoderBody._settings = { 'window' }

local function build_body(self, of)
  local shape, names = of.shape, of.family.names
  local table_of = { dtype = of.dtype, init = of.init or rules.normal(0, shape.deviation) }
  self._names, self.context = names, shape.context
  self.window = shape.window
  self:child(names.embedding, Embedding(shape.vocab, shape.width, {
    dtype = of.dtype, init = table_of.init, padding_idx = shape.pad,
  }))
  if shape.rotary then
    self._rotary = Rotary(shape.head_dim, shape.rotary)
  else
    self:child('wpe', Embedding(shape.context, shape.width, table_of))
  end
  self:child('drop', Dropout(shape.embedding_dropout))
  local layers = ModuleList()
  self:child(names.layers, layers)
  for i = 1, shape.layers do
    layers:append(parts.DecoderLayer(of, i))
  end
  self:child(names.norm, parts.norm(of))
end

function DecoderBody:init(of)
  without_jit.run(build_body, self, of)
end

-- The inputs of the first layer: embeddings, and the cosines and sines of rotary positions.
local function embedded(self, ids, positions, past)
  local x, length = self[self._names.embedding](ids), ids:size(2)
  if self._rotary then
    return self.drop(x), self._rotary:tables(past + length, x:dtype(), positions or past)
  elseif not positions and past + length > self.context then
    errors.raise('ValueError', 'rows have %d tokens, the model has %d positions', past + length,
      self.context)
  end
  return self.drop(x + self.wpe(positions or create.arange(past, past + length)))
end

-- Masks of layers without and with a window; nil: all keys up to the query's.
local function masks(self, length, positions, past)
  local all, window = positions and ops.document_mask(positions, { past = past, causal = false }),
    self.window
  if not window or window >= past + length then
    return all, all
  end
  return all, ops.document_mask(positions or create.arange(past, past + length):unsqueeze(1),
    { past = past, window = window, causal = false })
end

---@param ids ms.Tensor  i64 (B, T)
---@param positions? ms.Tensor  i64 (B, T)
---@param cache? ms.models.KeyValueCache  of T' tokens before; gets these
---@return ms.Tensor  (B, T, C)
function DecoderBody:forward(ids, positions, cache)
  local names, length, past = self._names, ids:size(2), cache and cache.length or 0
  local x, cos, sin = embedded(self, ids, positions, past)
  local all, windowed = masks(self, length, positions, past)
  for _, layer in ipairs(self[names.layers]) do
    x = layer(x, cos, sin, all, windowed, cache)
  end
  if cache then
    cache:advance(length)
  end
  return self[names.norm](x)
end

-- -- the model -----------------------------------------------------------------------------------

---@class ms.models.Decoder: ms.nn.Module
---@field config table  the fields of config.json
---@field config_text string?  config.json as it was read
---@field source string?  the folder that was loaded
---@field without_prefix boolean?  names in its files lack that of the body
---@field generation_config table?  the fields of generation_config.json
---@field vocab integer
---@field context integer  max_position_embeddings, or n_positions
---@field lm_head ms.nn.Linear  (V, C); the embedding's weight with tie_word_embeddings
---@overload fun(config: table, opts?: ms.models.Decoder.Options): ms.models.Decoder
local Decoder = Module.extend('models.Decoder')

---@class ms.models.Decoder.Options
---@field dtype? ms.DType  of the master weights (default 'f32')
---@field init? ms.nn.InitRule  of all weights (default: the family's rules)

local function build(self, config, opts)
  local family, shape = families.of(self._name, config), families.read(self._name, config)
  local names = family.names
  self.config, self.vocab, self.context = config, shape.vocab, shape.context
  self:child(names.body,
    DecoderBody { family = family, shape = shape, dtype = opts.dtype, init = opts.init })
  self._body, self._embedding = names.body, names.embedding
  self:child('lm_head', Linear(shape.width, shape.vocab, {
    bias = false, dtype = opts.dtype, init = opts.init or rules.normal(0, shape.deviation),
    weight = shape.tie and self[names.body][names.embedding].weight or nil,
  }))
  self.lm_head._padded = true
end

--- A model with random weights. from_pretrained() reads them from a folder.
---@param config table  the fields of config.json: `architectures` or `model_type`, sizes, ...;
---  absent ones have the family's defaults
---@param opts? ms.models.Decoder.Options
function Decoder:init(config, opts)
  arguments.list(self._name, 'config', config)
  opts = errors.options(self._name, opts, { dtype = 'floating', init = 'rule' })
  without_jit.run(build, self, config, opts)
end

---@param ids ms.Tensor  i64 (B, T)
---@param targets? ms.Tensor  i64 (B, T): the token after each; -100 is ignored
---@param opts? ms.models.ForwardOptions
---@return ms.Tensor  loss () with targets, else logits (B, T, V)
function Decoder:forward(ids, targets, opts)
  opts = causal.options(self._name, ids, opts)
  local x = self[self._body](ids, opts.positions, opts.cache)
  if opts.cache then -- the next token is all that generation needs
    x = x:narrow(2, ids:size(2), 1)
  end
  local logits = self.lm_head(x)
  if targets == nil then
    return logits:contiguous()
  end
  return causal.loss(logits, targets, opts.reduction)
end

--- Continue a row of tokens, or several of unequal length, with a cache of keys and values. Rows
--- longer than `context` continue from their last tokens, without a cache. Sharded as
--- ms.models.GPT:generate() is.
---@param ids integer[]|integer[][]  tokens from 0; of each row at least one
---@param n integer  number of tokens to add
---@param opts? ms.models.GenerateOptions
---@return integer[]|integer[][]  the new tokens
function Decoder:generate(ids, n, opts)
  return generate(self, ids, n, opts, true)
end

---@class ms.models.SaveOptions
---@field dtype? ms.DType  of the file (default: unchanged)
---@field process_group? ms.dist.Group  as in checkpoint.export()
---@field max_shard_size? number  bytes of a file (default 5e9); more are divided among several,
---  with an index
---@field merge? boolean  of a model with an adapter: add it to the weights. Required then

--- Write config.json and model.safetensors, which `transformers` and from_pretrained() read, and
--- copy the tokenizer's files of the folder that was loaded. Fields of its config are kept, with
--- their spelling; the dtype becomes that of the file. A tied tensor is written once. Collective as
--- checkpoint.export() is; rank 0 gathers one file at a time.
---@param path string  of the folder
---@param opts? ms.models.SaveOptions
function Decoder:save_pretrained(path, opts)
  opts = errors.options('save_pretrained', opts, {
    dtype = 'floating', process_group = 'group', max_shard_size = 'number', merge = 'flag',
  })
  folder.save(path, self, opts)
end

-- -- adapters ------------------------------------------------------------------------------------

--- Freeze the model, and add low-rank adapters, which alone are trained. They begin without effect.
--- Call it before sharding and before making an optimizer.
---@param opts? ms.models.AdapterOptions
---@return self
function Decoder:add_adapter(opts)
  adapter.add(self, opts)
  return self
end

--- Write adapter_config.json and adapter_model.safetensors, which `peft` and load_adapter() read.
--- Collective as save_pretrained() is.
---@param path string  of the folder
---@param opts? { process_group?: ms.dist.Group }
function Decoder:save_adapter(path, opts)
  adapter.save(path, self, opts)
end

--- Read an adapter as `peft` or save_adapter() wrote it, and freeze the model. A model that has an
--- adapter of the same layers and widths gets its values; so has one that is sharded already.
--- KeyError for missing and unexpected tensors, ValueError for other shapes, NotImplementedError
--- for kinds of adapters that are not supported.
---@param path string  of the folder
---@param opts? { dtype?: ms.DType }  of the adapters (default 'f32')
---@return self
function Decoder:load_adapter(path, opts)
  arguments.text('load_adapter', 'path', path)
  opts = errors.options('load_adapter', opts, { dtype = 'floating' })
  adapter.prepare('load_adapter', self, path, opts.dtype)
  adapter.read(self, path)
  return self
end

--- Add the adapter to the weights, in f32 and rounded to their dtype once, and remove it. All
--- parameters are trainable then. RuntimeError for a sharded model: save_pretrained() merges it.
---@return self
function Decoder:merge_adapter()
  adapter.merge(self)
  return self
end

function Decoder:extra_repr()
  return ('vocab=%d, context=%d'):format(self.vocab, self.context)
end

return Decoder
