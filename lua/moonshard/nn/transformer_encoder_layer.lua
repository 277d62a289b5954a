--- Self-attention and a feed-forward network, each with a residual connection and a LayerNorm
--- (arXiv:1706.03762).
---
--- Shapes: src (S, N, d_model), with batch_first (N, S, d_model)

local Module = require 'moonshard.nn.module'
local errors = require 'moonshard.base.errors'
local parts = require 'moonshard.nn.transformer_parts'

---@class ms.nn.TransformerEncoderLayer: ms.nn.Module
---@field self_attn ms.nn.MultiheadAttention
---@overload fun(d_model: integer, nhead: integer, opts?: table): ms.nn.TransformerEncoderLayer
local TransformerEncoderLayer = Module.extend('nn.TransformerEncoderLayer')

TransformerEncoderLayer._settings = { 'norm_first' }

---@param d_model integer
---@param nhead integer  must divide d_model
---@param opts? ms.nn.TransformerLayer.Options
function TransformerEncoderLayer:init(d_model, nhead, opts)
  parts.init_layer(self, d_model, nhead, opts, { 'self_attn' })
end

local CALL = { src_mask = 'tensor', src_key_padding_mask = 'tensor', is_causal = 'flag' }

--- Masks are as in nn.MultiheadAttention.
---@param src ms.Tensor
---@param opts? { src_mask?: ms.Tensor, src_key_padding_mask?: ms.Tensor, is_causal?: boolean }
---@return ms.Tensor
function TransformerEncoderLayer:forward(src, opts)
  opts = errors.options(self._name, opts, CALL)
  local x = parts.residual(self, 1, src, parts.self_attention, opts.src_mask,
    opts.src_key_padding_mask, opts.is_causal)
  return parts.residual(self, 2, x, parts.feed_forward)
end

return TransformerEncoderLayer
