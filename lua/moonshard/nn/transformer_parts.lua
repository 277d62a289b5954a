--- Code shared by the layers and stacks of nn.Transformer.

local Dropout = require 'moonshard.nn.dropout'
local LayerNorm = require 'moonshard.nn.layer_norm'
local Linear = require 'moonshard.nn.linear'
local ModuleList = require 'moonshard.nn.module_list'
local MultiheadAttention = require 'moonshard.nn.multihead_attention'
local arguments = require 'moonshard_ffi.arguments'
local check = require 'moonshard.nn.check'
local copies = require 'moonshard.nn.copy'
local errors = require 'moonshard.base.errors'
local ops = require 'moonshard.ops'
local tree = require 'moonshard.nn.tree'
local util = require 'moonshard.base.util'

local parts = {}

---@class ms.nn.TransformerLayer.Options
---@field dim_feedforward? integer  default 2048
---@field dropout? number  default 0.1
---@field activation? 'relu'|'gelu'|fun(x: ms.Tensor): ms.Tensor  or a module; default 'relu'
---@field layer_norm_eps? number  default 1e-5
---@field batch_first? boolean  default false
---@field norm_first? boolean  normalise before each block, not after it (default false)
---@field bias? boolean  default true
---@field dtype? ms.DType

parts.OPTIONS = {
  'dim_feedforward', 'dropout', 'activation', 'layer_norm_eps', 'batch_first', 'norm_first', 'bias',
  'device', 'dtype',
}

local CHECKS = {
  dim_feedforward = 'whole', dropout = 'number', layer_norm_eps = 'number', batch_first = 'flag',
  norm_first = 'flag', bias = 'flag', device = 'device', dtype = 'floating',
}

local ACTIVATIONS = { relu = ops.relu, gelu = function(x) return ops.gelu(x) end }

local function activation(what, given)
  if given == nil then
    return ops.relu
  elseif type(given) == 'string' then
    return ACTIVATIONS[given] or errors.choice(what, 'activation', given, { 'gelu', 'relu' })
  end
  return arguments.fn(what, 'activation', given)
end

--- Declare the children of a layer in PyTorch's order.
---@param self ms.nn.Module
---@param d_model integer
---@param nhead integer
---@param opts ms.nn.TransformerLayer.Options?
---@param attentions string[]  names of the attention modules
function parts.init_layer(self, d_model, nhead, opts, attentions)
  local what = self._name
  check.sizes(what, 1, { 'd_model', 'nhead' }, d_model, nhead)
  opts = util.merged(errors.options(what, opts, parts.OPTIONS))
  local act = activation(what, opts.activation)
  opts.activation = nil
  errors.options(what, opts, CHECKS)
  local dropout = opts.dropout or 0.1
  self.norm_first = opts.norm_first == true
  for _, name in ipairs(attentions) do
    self:child(name, MultiheadAttention(d_model, nhead, {
      dropout = dropout, bias = opts.bias, batch_first = opts.batch_first, dtype = opts.dtype,
    }))
  end
  local hidden, linear = opts.dim_feedforward or 2048, { bias = opts.bias, dtype = opts.dtype }
  self:child('linear1', Linear(d_model, hidden, linear))
  self:child('dropout', Dropout(dropout))
  self:child('linear2', Linear(hidden, d_model, linear))
  for i = 1, #attentions + 1 do
    self:child('norm' .. i, LayerNorm(d_model, {
      eps = opts.layer_norm_eps, bias = opts.bias, dtype = opts.dtype,
    }))
  end
  for i = 1, #attentions + 1 do
    self:child('dropout' .. i, Dropout(dropout))
  end
  self.activation = act
end

--- The residual connection around block(x), with the i-th normalisation before or after it.
---@param self ms.nn.Module  a layer
---@param i integer
---@param x ms.Tensor
---@param block fun(self: ms.nn.Module, x: ms.Tensor, ...): ms.Tensor
function parts.residual(self, i, x, block, ...)
  local norm, dropout = self['norm' .. i], self['dropout' .. i]
  if self.norm_first then
    return x + dropout(block(self, norm(x), ...))
  end
  return norm(x + dropout(block(self, x, ...)))
end

---@return ms.Tensor
function parts.feed_forward(self, x)
  return self.linear2(self.dropout(self.activation(self.linear1(x))))
end

---@return ms.Tensor
function parts.self_attention(self, x, mask, key_padding_mask, is_causal)
  return (self.self_attn(x, x, x, {
    attn_mask = mask, key_padding_mask = key_padding_mask, is_causal = is_causal,
    need_weights = false,
  }))
end

--- Declare the copies of a layer and the final normalisation.
---@param self ms.nn.Module
---@param layer ms.nn.Module
---@param num_layers integer
---@param norm? ms.nn.Module
function parts.init_stack(self, layer, num_layers, norm)
  if not tree.is_module(layer) then
    arguments.refuse(self._name, 'layer', layer, 'a module')
  end
  self.num_layers = arguments.whole(self._name, 'num_layers', num_layers, nil, 0)
  local layers = ModuleList()
  for _ = 1, num_layers do
    layers:append(copies.layer(layer))
  end
  self:child('layers', layers)
  if norm ~= nil then
    self:child('norm', norm)
  end
end

return parts
