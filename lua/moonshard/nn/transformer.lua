--- An encoder and a decoder (arXiv:1706.03762).
---
--- Shapes: src (S, N, d_model)  tgt (T, N, d_model); N comes first with batch_first
--- Init:   Glorot's uniform rule for all parameters of two dimensions or more; custom parts keep
---         their own rules.

local LayerNorm = require 'moonshard.nn.layer_norm'
local Module = require 'moonshard.nn.module'
local TransformerDecoder = require 'moonshard.nn.transformer_decoder'
local TransformerDecoderLayer = require 'moonshard.nn.transformer_decoder_layer'
local TransformerEncoder = require 'moonshard.nn.transformer_encoder'
local TransformerEncoderLayer = require 'moonshard.nn.transformer_encoder_layer'
local arguments = require 'moonshard_ffi.arguments'
local create = require 'moonshard.base.create'
local errors = require 'moonshard.base.errors'
local ops = require 'moonshard.ops'
local parts = require 'moonshard.nn.transformer_parts'
local rules = require 'moonshard.nn.rules'
local util = require 'moonshard.base.util'

---@class ms.nn.Transformer: ms.nn.Module
---@field encoder ms.nn.Module
---@field decoder ms.nn.Module
---@field d_model integer
---@field nhead integer
---@field batch_first boolean
---@overload fun(opts?: ms.nn.Transformer.Options): ms.nn.Transformer
local Transformer = Module.extend('nn.Transformer')

Transformer._settings = { 'batch_first' }

---@class ms.nn.Transformer.Options: ms.nn.TransformerLayer.Options
---@field d_model? integer  default 512
---@field nhead? integer  default 8
---@field num_encoder_layers? integer  default 6
---@field num_decoder_layers? integer  default 6
---@field custom_encoder? ms.nn.Module
---@field custom_decoder? ms.nn.Module

local OPTIONS = {
  'd_model', 'nhead', 'num_encoder_layers', 'num_decoder_layers', 'custom_encoder',
  'custom_decoder', unpack(parts.OPTIONS),
}

local function glorot(shape)
  local field = util.product(shape) / (shape[1] * shape[2])
  return rules.xavier_uniform(shape[2] * field, shape[1] * field)
end

---@param opts? ms.nn.Transformer.Options
function Transformer:init(opts)
  opts = errors.options(self._name, opts, OPTIONS)
  local function whole(name, default, least)
    return arguments.whole(self._name, name, opts[name], default, least)
  end
  local d_model, nhead = whole('d_model', 512, 1), whole('nhead', 8, 1)
  local of_layers = {}
  for _, name in ipairs(parts.OPTIONS) do
    of_layers[name] = opts[name]
  end
  self.d_model, self.nhead, self.batch_first = d_model, nhead, opts.batch_first == true

  local function part(name, Layer, Stack)
    if opts['custom_' .. name] ~= nil then
      self:child(name, opts['custom_' .. name])
      return
    end
    local n = whole('num_' .. name .. '_layers', 6, 0)
    local stack = Stack(Layer(d_model, nhead, of_layers), n,
      LayerNorm(d_model, { eps = opts.layer_norm_eps, bias = opts.bias, dtype = opts.dtype }))
    for module in stack:modules() do
      module:_change_rules(function(shape) return #shape > 1 and glorot(shape) or nil end)
    end
    self:child(name, stack)
  end
  part('encoder', TransformerEncoderLayer, TransformerEncoder)
  part('decoder', TransformerDecoderLayer, TransformerDecoder)
end

--- An additive mask (size, size) that is -infinity where the key comes after the query.
---@param size integer
---@param opts? { dtype?: ms.DType }
---@return ms.Tensor
function Transformer.generate_square_subsequent_mask(size, opts)
  arguments.whole('generate_square_subsequent_mask', 'size', size, nil, 0)
  return ops.triu(create.full({ size, size }, -math.huge, opts), 1)
end

---@class ms.nn.Transformer.Call: ms.nn.TransformerDecoder.Call
---@field src_mask? ms.Tensor
---@field src_key_padding_mask? ms.Tensor
---@field src_is_causal? boolean

local CALL = {
  src_mask = 'tensor', tgt_mask = 'tensor', memory_mask = 'tensor', src_key_padding_mask = 'tensor',
  tgt_key_padding_mask = 'tensor', memory_key_padding_mask = 'tensor', src_is_causal = 'flag',
  tgt_is_causal = 'flag', memory_is_causal = 'flag',
}

local function check_inputs(self, src, tgt)
  local n = arguments.tensor(self._name, 'src', src):dim()
  local samples = self.batch_first and 1 or 2
  if arguments.tensor(self._name, 'tgt', tgt):dim() ~= n then
    errors.raise('RuntimeError', '%s: src has %d dimensions and tgt %d, expected as many',
      self._name, n, tgt:dim())
  elseif n == 3 and src:size(samples) ~= tgt:size(samples) then
    errors.raise('RuntimeError', 'the batch number of src and tgt must be equal, got %d and %d',
      src:size(samples), tgt:size(samples))
  elseif src:size(-1) ~= self.d_model or tgt:size(-1) ~= self.d_model then
    errors.raise('RuntimeError', 'the feature number of src and tgt must be equal to d_model, got '
      .. '%d and %d, expected %d', src:size(-1), tgt:size(-1), self.d_model)
  end
end

--- Masks are as in nn.MultiheadAttention.
---@param src ms.Tensor
---@param tgt ms.Tensor
---@param opts? ms.nn.Transformer.Call
---@return ms.Tensor  of the shape of tgt
function Transformer:forward(src, tgt, opts)
  opts = errors.options(self._name, opts, CALL)
  check_inputs(self, src, tgt)
  local memory = self.encoder(src, {
    mask = opts.src_mask, src_key_padding_mask = opts.src_key_padding_mask,
    is_causal = opts.src_is_causal,
  })
  return self.decoder(tgt, memory, {
    tgt_mask = opts.tgt_mask, memory_mask = opts.memory_mask,
    tgt_key_padding_mask = opts.tgt_key_padding_mask,
    memory_key_padding_mask = opts.memory_key_padding_mask, tgt_is_causal = opts.tgt_is_causal,
    memory_is_causal = opts.memory_is_causal,
  })
end

return Transformer
