--- Self-attention, attention to the encoder's output, and a feed-forward network, each with a
--- residual connection and a LayerNorm (arXiv:1706.03762).
---
--- Shapes: tgt (T, N, d_model)  memory (S, N, d_model); N comes first with batch_first

local Module = require 'moonshard.nn.module'
local errors = require 'moonshard.base.errors'
local parts = require 'moonshard.nn.transformer_parts'

---@class ms.nn.TransformerDecoderLayer: ms.nn.Module
---@field self_attn ms.nn.MultiheadAttention
---@field multihead_attn ms.nn.MultiheadAttention
---@overload fun(d_model: integer, nhead: integer, opts?: table): ms.nn.TransformerDecoderLayer
local TransformerDecoderLayer = Module.extend('nn.TransformerDecoderLayer')

TransformerDecoderLayer._settings = { 'norm_first' }

---@param d_model integer
---@param nhead integer  must divide d_model
---@param opts? ms.nn.TransformerLayer.Options
function TransformerDecoderLayer:init(d_model, nhead, opts)
  parts.init_layer(self, d_model, nhead, opts, { 'self_attn', 'multihead_attn' })
end

---@class ms.nn.TransformerDecoder.Call  masks are as in nn.MultiheadAttention
---@field tgt_mask? ms.Tensor
---@field memory_mask? ms.Tensor
---@field tgt_key_padding_mask? ms.Tensor
---@field memory_key_padding_mask? ms.Tensor
---@field tgt_is_causal? boolean
---@field memory_is_causal? boolean

local CALL = {
  tgt_mask = 'tensor', memory_mask = 'tensor', tgt_key_padding_mask = 'tensor',
  memory_key_padding_mask = 'tensor', tgt_is_causal = 'flag', memory_is_causal = 'flag',
}

local function memory_attention(self, x, memory, opts)
  return (self.multihead_attn(x, memory, memory, {
    attn_mask = opts.memory_mask, key_padding_mask = opts.memory_key_padding_mask,
    is_causal = opts.memory_is_causal, need_weights = false,
  }))
end

---@param tgt ms.Tensor
---@param memory ms.Tensor
---@param opts? ms.nn.TransformerDecoder.Call
---@return ms.Tensor
function TransformerDecoderLayer:forward(tgt, memory, opts)
  opts = errors.options(self._name, opts, CALL)
  local x = parts.residual(self, 1, tgt, parts.self_attention, opts.tgt_mask,
    opts.tgt_key_padding_mask, opts.tgt_is_causal)
  x = parts.residual(self, 2, x, memory_attention, memory, opts)
  return parts.residual(self, 3, x, parts.feed_forward)
end

return TransformerDecoderLayer
