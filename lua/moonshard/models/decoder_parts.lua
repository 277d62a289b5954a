--- Parts of Decoder: attention with grouped heads, the feed-forward network, and the block around
--- them. A family's row gives their names and kinds, config.json their shape.

local Dropout = require 'moonshard.nn.dropout'
local GroupedQueryAttention = require 'moonshard.nn.grouped_query_attention'
local LayerNorm = require 'moonshard.nn.layer_norm'
local Linear = require 'moonshard.nn.linear'
local Module = require 'moonshard.nn.module'
local RMSNorm = require 'moonshard.nn.rms_norm'
local SwiGLU = require 'moonshard.nn.swiglu'
local ops = require 'moonshard.ops'
local rules = require 'moonshard.nn.rules'

local parts = {}

---@class ms.models.Parts  what all parts of a model are made from
---@field family ms.models.Family
---@field shape ms.models.Shape
---@field dtype ms.DType?
---@field init ms.nn.InitRule?  of all weights

-- -- linear layers and norms ---------------------------------------------------------------------

-- Linear with the weight (in, out), as GPT-2's files have it.
---@class ms.models.Conv1D: ms.nn.Module
---@overload fun(in_features: integer, out_features: integer, opts: table): ms.models.Conv1D
local Conv1D = Module.extend('models.Conv1D')

function Conv1D:init(in_features, out_features, opts)
  self.in_features, self.out_features = in_features, out_features
  self:param('weight', { in_features, out_features }, opts.init, { dtype = opts.dtype })
  if opts.bias then
    self:param('bias', { out_features }, opts.bias_init, { dtype = opts.dtype })
  end
end

function Conv1D:forward(x)
  return ops.linear(x, self.weight:t(), self.bias)
end

function Conv1D:extra_repr()
  return ('in_features=%d, out_features=%d'):format(self.in_features, self.out_features)
end

parts.Conv1D = Conv1D

-- GPT-2 divides the initial weights that write into the residual.
local function linear(of, in_features, out_features, bias, is_residual)
  local shape = of.shape
  local deviation = of.family.transposed and is_residual
    and shape.deviation / math.sqrt(2 * shape.layers) or shape.deviation
  return (of.family.transposed and Conv1D or Linear)(in_features, out_features, {
    bias = bias, dtype = of.dtype, init = of.init or rules.normal(0, deviation),
    bias_init = rules.zeros(),
  })
end

local NORMS = { RMSNorm = RMSNorm, LayerNorm = LayerNorm }

---@param of ms.models.Parts
---@param width? integer
---@return ms.nn.Module
function parts.norm(of, width)
  return NORMS[of.family.norm](width or of.shape.width, { eps = of.shape.eps, dtype = of.dtype })
end

-- -- attention -----------------------------------------------------------------------------------

---@class ms.models.Attention: ms.nn.GroupedQueryAttention
---@overload fun(of: ms.models.Parts, layer: integer): ms.models.Attention
local Attention = GroupedQueryAttention.extend('models.Attention')

Attention._settings = { 'heads', 'kv_heads', 'head_dim', 'scale', 'dropout', 'windowed' }

local function declare_projections(self, of)
  local shape, width = of.shape, of.shape.width
  local q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
  if of.family.packed then
    self:child('c_attn', linear(of, width, q + 2 * kv, shape.qkv_bias))
    return
  end
  self:child('q_proj', linear(of, width, q, shape.qkv_bias))
  self:child('k_proj', linear(of, width, kv, shape.qkv_bias))
  self:child('v_proj', linear(of, width, kv, shape.qkv_bias))
end

function Attention:init(of, layer)
  local shape, o = of.shape, of.family.names.o
  self.heads, self.kv_heads, self.head_dim = shape.heads, shape.kv_heads, shape.head_dim
  self.scale = (shape.scaled and shape.head_dim ^ -0.5 or 1)
    / (shape.scaled_by_layer and layer or 1)
  self.causal, self.dropout, self._o = true, shape.attention_dropout, o
  self.windowed, self._layer = shape.windowed[layer], layer
  declare_projections(self, of)
  self:child(o, linear(of, self.heads * self.head_dim, shape.width, shape.o_bias, true))
  if shape.qk_norm then
    self:child('q_norm', parts.norm(of, self.head_dim))
    self:child('k_norm', parts.norm(of, self.head_dim))
  end
  self:child('resid_dropout', Dropout(shape.residual_dropout))
  self:_take_stream()
end

function Attention:_project(x)
  if not self.c_attn then
    local q, k, v = GroupedQueryAttention._project(self, x)
    if self.q_norm then
      q, k = self.q_norm(q), self.k_norm(k)
    end
    return q, k, v
  end
  local all = self:_split(self.c_attn(x), self.heads + 2 * self.kv_heads)
  return all:narrow(3, 1, self.heads), all:narrow(3, self.heads + 1, self.kv_heads),
    all:narrow(3, self.heads + self.kv_heads + 1, self.kv_heads)
end

function Attention:forward(x, cos, sin, mask, window, cache)
  local y = self:_attend(x, cos, sin, self.windowed and window or mask, cache)
  return self.resid_dropout(self[self._o](y))
end

-- -- the feed-forward network --------------------------------------------------------------------

-- Those of nn.SwiGLU by their names in config.json.
parts.activations = {
  silu = 'silu', swish = 'silu', relu = 'relu', gelu = 'gelu', gelu_new = 'gelu_tanh',
  gelu_pytorch_tanh = 'gelu_tanh',
}

-- down(act(up(x))).
---@class ms.models.FeedForward: ms.nn.Module
---@overload fun(of: ms.models.Parts): ms.models.FeedForward
local FeedForward = Module.extend('models.FeedForward')

FeedForward._settings = { 'activation' }

function FeedForward:init(of)
  local shape, names = of.shape, of.family.names
  self.activation = parts.activations[shape.activation]
  self._up, self._down = names.up, names.down
  self:child(names.up, linear(of, shape.width, shape.hidden, shape.mlp_bias))
  self:child(names.down, linear(of, shape.hidden, shape.width, shape.mlp_bias, true))
  self:child('dropout', Dropout(shape.residual_dropout))
end

function FeedForward:forward(x)
  local y = SwiGLU._activations[self.activation](self[self._up](x))
  return self.dropout(self[self._down](y))
end

local function feed_forward(of)
  local shape = of.shape
  return of.family.gated and SwiGLU(shape.width, shape.hidden, {
    activation = parts.activations[shape.activation], bias = shape.mlp_bias, dtype = of.dtype,
    init = of.init or rules.normal(0, shape.deviation), bias_init = rules.zeros(),
  }) or FeedForward(of)
end

-- -- the block -----------------------------------------------------------------------------------

--- One layer of a Decoder: x + attention(norm(x)), then x + feed-forward(norm(x)).
---@class ms.models.DecoderLayer: ms.nn.Module
---@overload fun(of: ms.models.Parts, layer: integer): ms.models.DecoderLayer
local DecoderLayer = Module.extend('models.DecoderLayer')

---@param of ms.models.Parts
---@param layer integer  from 1
function DecoderLayer:init(of, layer)
  local names = of.family.names
  self._names = names
  self:child(names.attention_norm, parts.norm(of))
  self:child(names.attention, Attention(of, layer))
  self:child(names.mlp_norm, parts.norm(of))
  self:child(names.mlp, feed_forward(of))
end

---@param x ms.Tensor  (B, T, C)
---@param cos? ms.Tensor  of rotary positions, as ops.rotary() takes them
---@param sin? ms.Tensor
---@param mask? ms.Tensor  bool, of ops.document_mask()
---@param window? ms.Tensor  the mask of layers with a window
---@param cache? ms.models.KeyValueCache
---@return ms.Tensor  (B, T, C)
function DecoderLayer:forward(x, cos, sin, mask, window, cache)
  local names = self._names
  x = x + self[names.attention](self[names.attention_norm](x), cos, sin, mask, window,
    cache)
  return x + self[names.mlp](self[names.mlp_norm](x))
end

parts.DecoderLayer = DecoderLayer

return parts
